"""Source without the options that a page does not use: their parameters and the branches that they make dead are left out.

Every step edits the text at one place that the parsed code names, so all other lines stay byte for byte. Does not import the code.
"""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping

OPEN = object()
"""The value of an expression that depends on more than the given options."""
OPERATORS: dict[type, Callable] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
NEUTRAL = {ast.Add: (0, "left right"), ast.Sub: (0, "right"), ast.Mult: (1, "left right")}
"""What an operation may drop, and on which side."""
Edit = tuple[int, int, bytes]


def options(text: str) -> dict[str, str]:
    """``bias=None vector=False`` by name. Raises ValueError where a value is no literal."""
    found = dict(re.findall(r"(\w+)=(\S+)", text))
    if " ".join(f"{name}={value}" for name, value in found.items()) != " ".join(text.split()):
        raise ValueError(f"cannot read {text!r}: write name=value for each option")
    for name, value in found.items():
        try:
            ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise ValueError(f"the option {name} has no literal value: {value}") from None
    return found


def fold(text: str, given: Mapping[str, str]) -> str:
    """The source of a function, or of a class with an ``__init__``, for options ``given`` as literals.

    Leaves out these parameters, what only passes them on, the branches that they make dead, and comments on lines of their own that
    name one. Raises ValueError for a parameter that is not there or that the code sets to something else, and for code that would need
    more than this: a branch that is taken or has another beside it, an operand of ``and``, ``or``, ``not`` or ``in``.
    """
    top = ast.parse(text).body[0]
    methods = (
        [top]
        if not isinstance(top, ast.ClassDef)
        else [n for n in top.body if getattr(n, "name", "") == "__init__"]
    )
    for name in given:
        if not any(name == a.arg for method in methods for a in _parameters(method)):
            raise ValueError(f"it has no parameter {name!r}")
        if any(
            isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)
            for n in ast.walk(top)
        ):
            raise ValueError(f"it sets {name!r} itself")
    kept = {
        t.attr
        for n in ast.walk(top)
        if isinstance(n, ast.Assign)
        for t, v in _pairs(n)
        if _own(t) and _named(v, t.attr)
    }
    code = text.encode()
    while edit := next(_Step(code, given, kept & set(given)).edits(), None):
        start, end, new = edit
        code = code[:start] + new + code[end:]
    named = re.compile(rf"\b({'|'.join(given)})\b") if given else re.compile("(?!)")
    blocks = itertools.groupby(
        code.decode().splitlines(True), lambda line: line.lstrip().startswith("#")
    )
    kept_blocks = (("".join(lines), comment) for comment, lines in blocks)
    return "".join(
        block for block, comment in kept_blocks if not (comment and named.search(block))
    )


def _parameters(method: ast.AST) -> list[ast.arg]:
    args = getattr(method, "args", None)
    return (
        [*args.posonlyargs, *args.args, *args.kwonlyargs]
        if isinstance(args, ast.arguments)
        else []
    )


def _pairs(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment with its value; none where they are not written one for one."""
    to, of = node.targets[0], node.value
    if isinstance(to, ast.Tuple) and isinstance(of, ast.Tuple):
        return list(zip(to.elts, of.elts, strict=True)) if len(to.elts) == len(of.elts) else []
    return [] if isinstance(to, ast.Tuple) else [(to, of)]


def _named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and _named(node.value, "self")


class _Step:
    """The code after some edits, and the next ones that it takes."""

    def __init__(self, code: bytes, given: Mapping[str, str], kept: set[str]):
        self.code, self.given, self.kept = code, given, kept
        self.top = ast.parse(code).body[0]
        self.starts = list(
            itertools.accumulate((len(line) for line in code.splitlines(True)), initial=0)
        )

    def edits(self) -> Iterator[Edit]:
        for node in ast.walk(self.top):  # what is around comes before what is inside
            match node:
                case ast.If() if self.value(node.test) is not OPEN:
                    yield self.dead(node)
                case ast.IfExp() if self.value(node.test) is not OPEN:
                    yield self.instead(
                        node, node.body if self.value(node.test) else node.orelse
                    )
                case ast.BoolOp() | ast.UnaryOp() | ast.Compare(ops=[ast.In() | ast.NotIn()]):
                    if any(self.value(part) is not OPEN for part in ast.iter_child_nodes(node)):
                        raise ValueError(f"cannot leave out a part of {ast.unparse(node)}")
                case ast.BinOp() if type(node.op) in NEUTRAL:
                    nothing, sides = NEUTRAL[type(node.op)]
                    for side, other in (("left", "right"), ("right", "left")):
                        if side in sides and self.value(getattr(node, side)) == nothing:
                            yield self.instead(node, getattr(node, other))
                case ast.Assign():
                    yield from self.assignment(node)
                case ast.Call():
                    for argument in (
                        *node.args[-1:],
                        *(k for k in node.keywords if self.option(k.value)),
                    ):
                        if self.option(argument) or isinstance(argument, ast.keyword):
                            yield self.without(*self.span(argument))
                case ast.Name() | ast.Attribute() if name := self.option(node):
                    yield *self.span(node), self.given[name].encode()
        yield from self.signature()

    def option(self, node: ast.AST) -> str:
        """The option that an expression is the value of, else nothing."""
        if (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and node.id in self.given
        ):
            return node.id
        return (
            node.attr
            if _own(node) and isinstance(node.ctx, ast.Load) and node.attr in self.kept
            else ""
        )

    def value(self, node: ast.expr) -> object:
        """What an expression is for the given options; OPEN where it depends on none, or on more."""
        return self._value(node) if any(self.option(n) for n in ast.walk(node)) else OPEN

    def _value(self, node: ast.expr) -> object:
        if name := self.option(node):
            return ast.literal_eval(self.given[name])
        match node:
            case ast.Constant():
                return node.value
            case ast.BinOp() if type(node.op) in OPERATORS:
                sides = self._value(node.left), self._value(node.right)
                if isinstance(node.op, ast.Mult) and any(
                    side is not OPEN and side == 0 for side in sides
                ):
                    return 0
                return OPEN if OPEN in sides else OPERATORS[type(node.op)](*sides)
            case ast.Compare() if all(type(op) in OPERATORS for op in node.ops):
                found = [self._value(n) for n in (node.left, *node.comparators)]
                told = (
                    OPERATORS[type(op)](*of)
                    for op, of in zip(node.ops, itertools.pairwise(found), strict=True)
                )
                return OPEN if any(f is OPEN for f in found) else all(told)
            case ast.IfExp() if (test := self._value(node.test)) is not OPEN:
                return self._value(node.body if test else node.orelse)
        return OPEN

    # ---------------------------------------------------------------------------------------------- places in the text

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[
            node.end_lineno - 1
        ] + node.end_col_offset

    def around(self, start: int, end: int) -> tuple[int, int] | None:
        """The place of parentheses that only group what is between them."""
        before, after = self.code[:start].rstrip(), self.code[end:]
        if (
            not before.endswith(b"(")
            or not after.lstrip().startswith(b")")
            or re.search(rb"[\w\])]\($", before)
        ):
            return None
        return len(before) - 1, end + len(after) - len(after.lstrip()) + 1

    def instead(self, node: ast.expr, inside: ast.expr) -> Edit:
        """Put a part of an expression in the place of all of it."""
        place, wanted = self.span(node), self.span(inside)
        if outer := self.around(*place):
            atom = isinstance(
                inside, ast.Name | ast.Constant | ast.Attribute | ast.Subscript | ast.Call
            )
            place = outer if atom else place
        else:
            wanted = self.around(*wanted) or wanted
        return *place, self.code[slice(*wanted)]

    def without(self, start: int, end: int) -> Edit:
        """Leave out one of several things between commas, and its line if nothing else is there."""
        if comma := re.match(rb"\s*,[ ]*", self.code[end:]):
            end += comma.end()
            line = self.code.rfind(b"\n", 0, start) + 1
            if not self.code[line:start].strip() and self.code[end : end + 1] == b"\n":
                return line, end + 1, b""
            start = (
                len(self.code[:start].rstrip(b" "))
                if self.code[end : end + 1] == b"\n"
                else start
            )
        else:
            start = len(self.code[:start].rstrip().removesuffix(b","))
        return start, end, b""

    # --------------------------------------------------------------------------------------------------------- edits

    def dead(self, node: ast.If) -> Edit:
        """Leave a branch out that is dead. Raises ValueError for one that is taken, or that has another beside it."""
        if (
            self.value(node.test)
            or node.orelse
            or self.code[self.span(node)[0] :].startswith(b"elif")
        ):
            raise ValueError(
                f"cannot leave out one of the branches of {ast.unparse(node.test)}"
            )
        return self.starts[node.lineno - 1], self.starts[node.end_lineno], b""

    def assignment(self, node: ast.Assign) -> Iterator[Edit]:
        """Leave out what an assignment sets to an option, or to itself."""
        pairs = _pairs(node)
        rest = [
            (t, v)
            for t, v in pairs
            if not (_own(t) and t.attr in self.kept and _named(v, t.attr))
        ]
        rest = [(t, v) for t, v in rest if not (isinstance(t, ast.Name) and _named(v, t.id))]
        if len(rest) < len(pairs):
            said = (
                b", ".join(self.code[slice(*self.span(n))] for n in of)
                for of in zip(*rest, strict=True)
            )
            whole = self.starts[node.lineno - 1], self.starts[node.end_lineno], b""
            yield (*self.span(node), b" = ".join(said)) if rest else whole

    def signature(self) -> Iterator[Edit]:
        for method in [self.top] if not isinstance(self.top, ast.ClassDef) else self.top.body:
            if getattr(method, "name", "") != "__init__" and method is not self.top:
                continue
            args = method.args
            positional = [*args.posonlyargs, *args.args]
            defaults = dict(
                zip(reversed(positional), reversed(args.defaults), strict=False)
            ) | dict(zip(args.kwonlyargs, args.kw_defaults, strict=True))
            for arg in _parameters(method):
                if arg.arg in self.given:
                    start, end = self.span(arg)[0], self.span(defaults.get(arg) or arg)[1]
                    if [arg] == args.kwonlyargs and not args.vararg:
                        start = self.code.rindex(b"*", 0, start)
                    yield self.without(start, end)

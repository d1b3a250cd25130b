"""Source without the options that a page does not use, and without what they make dead.

Every step edits the text at a place that the parsed code names, so other lines stay byte for
byte.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace

OPEN = object()
"""The value of an expression that depends on more than the fixed options."""
NEUTRAL = {
    ast.Add: (0, ("left", "right")),
    ast.Sub: (0, ("right",)),
    ast.Mult: (1, ("left", "right")),
}
"""What an operation may drop, and on which sides."""
ATOMS = (ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Call)
"""Expressions that need no parentheses around them."""
Edit = tuple[int, int, bytes]
"""Start, end and the new bytes between them."""


def parse(text: str) -> dict[str, str]:
    """Return the values of ``bias=None vector=False`` by name, as written.

    Raises ValueError where one is not written so, or is no literal.
    """
    values = {}
    for part in text.split():
        name, _, value = part.partition("=")
        try:
            ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise ValueError(f"write name=value with a literal value, not {part!r}") from None
        values[name] = value
    return values


def fix(text: str, fixed: Mapping[str, str]) -> str:
    """Return the source of a function, or of a class with an ``__init__``, for fixed options.

    Leaves out these parameters, what only passes them on, a dead ``if`` without an ``else``,
    and comments on lines of their own that name one. Elsewhere the value stands in the place of
    its name. Raises ValueError for a parameter that is not there, or that the code sets to
    something else.

    >>> print(fix('''def mean(x, *, bias=None):
    ...     mu = x.mean()
    ...     if bias is not None:
    ...         mu = mu + bias
    ...     return mu''', {"bias": "None"}))
    def mean(x):
        mu = x.mean()
        return mu
    """
    if not fixed:
        return text
    tree = ast.parse(text).body[0]
    parameters = [parameter.arg for parameter in _parameters(tree)]
    changed = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for name in fixed:
        if name not in parameters:
            raise ValueError(f"it has no parameter {name!r}")
        if name in changed:
            raise ValueError(f"it sets {name!r} itself")
    stored = [name for name in fixed if f"self.{name}" in text]
    code = text.encode()
    edit = next(_Listing(code, fixed, stored).edits(), None)
    while edit:
        start, end, new = edit
        code = code[:start] + new + code[end:]
        edit = next(_Listing(code, fixed, stored).edits(), None)
    return _without_comments(code.decode(), fixed)


def _without_comments(text: str, fixed: Mapping[str, str]) -> str:
    """Leave out the comments on lines of their own that name an option."""
    mention = re.compile(rf"\b({'|'.join(fixed)})\b")
    lines = text.splitlines(keepends=True)
    paragraphs = []
    for is_comment, block in itertools.groupby(lines, lambda line: line.lstrip()[:1] == "#"):
        paragraph = "".join(block)
        if not is_comment or not mention.search(paragraph):
            paragraphs.append(paragraph)
    return "".join(paragraphs)


def _function(tree: ast.stmt) -> ast.FunctionDef:
    """Return the function that takes the parameters of a definition."""
    if isinstance(tree, ast.FunctionDef):
        return tree
    methods = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return methods["__init__"]


def _parameters(tree: ast.stmt) -> list[ast.arg]:
    arguments = _function(tree).args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


class _Listing:
    """A source, and the next edits that it takes."""

    def __init__(self, code: bytes, fixed: Mapping[str, str], stored: Sequence[str]):
        self.code = code
        self.fixed = fixed
        self.stored = stored
        self.tree = ast.parse(code).body[0]
        lengths = [len(line) for line in code.splitlines(keepends=True)]
        self.starts = list(itertools.accumulate(lengths, initial=0))
        self.values = {name: ast.literal_eval(value) for name, value in fixed.items()}
        stored_values = {name: self.values[name] for name in stored}
        self.values["self"] = SimpleNamespace(**stored_values)

    def edits(self) -> Iterator[Edit]:
        """Yield the edits that the source takes, those of a whole before those of its parts."""
        for node in ast.walk(self.tree):
            match node:
                case ast.If():
                    yield from self.branch(node)
                case ast.IfExp():
                    test = self.value(node.test)
                    if test is not OPEN:
                        yield self.instead(node, node.body if test else node.orelse)
                case ast.BinOp() if type(node.op) in NEUTRAL:
                    yield from self.operation(node)
                case ast.Assign():
                    yield from self.assignment(node)
                case ast.Call():
                    yield from self.call(node)
                case ast.Name() | ast.Attribute():
                    name = self.option(node)
                    if name:
                        yield *self.span(node), self.fixed[name].encode()
        yield from self.signature()

    def option(self, node: ast.AST) -> str:
        """Return the option that an expression reads, or nothing."""
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            return ""
        if isinstance(node, ast.Name) and node.id in self.fixed:
            return node.id
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            return node.attr if node.attr in self.stored else ""
        return ""

    def value(self, node: ast.expr) -> object:
        """Return what an expression is for the fixed options, or OPEN."""
        is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        if is_product and 0 in (self.value(node.left), self.value(node.right)):
            return 0
        if not any(self.option(part) for part in ast.walk(node)):
            return OPEN
        try:  # no name but those of the options is known here, not even a built-in one
            return eval(ast.unparse(node), {"__builtins__": {}}, self.values)
        except Exception:  # an unknown name, or whatever the expression raises
            return OPEN

    def branch(self, node: ast.If) -> Iterator[Edit]:
        """Leave out a branch that is dead and has no other beside it."""
        is_elif = self.code[self.span(node)[0] :].startswith(b"elif")
        test = self.value(node.test)
        if test is not OPEN and not test and not node.orelse and not is_elif:
            yield self.starts[node.lineno - 1], self.starts[node.end_lineno], b""

    def operation(self, node: ast.BinOp) -> Iterator[Edit]:
        """Leave out a term that is zero, or a factor that is one."""
        neutral, sides = NEUTRAL[type(node.op)]
        parts = {"left": node.left, "right": node.right}
        for side in sides:
            operand = parts["right" if side == "left" else "left"]
            dropped = parts[side]
            literal = isinstance(dropped, ast.Constant) and dropped.value == neutral
            if literal or self.value(dropped) == neutral:
                yield self.instead(node, operand)

    def assignment(self, node: ast.Assign) -> Iterator[Edit]:
        """Leave out what an assignment keeps of an option, or sets to itself."""
        target, value = node.targets[0], node.value
        targets, values = [target], [value]
        if isinstance(target, ast.Tuple):
            if not isinstance(value, ast.Tuple):
                return
            targets, values = target.elts, value.elts
        pairs = list(zip(targets, values, strict=True))
        left_over = [pair for pair in pairs if not self.says_nothing(*pair)]
        if not left_over:
            yield self.starts[node.lineno - 1], self.starts[node.end_lineno], b""
        elif len(left_over) < len(pairs):
            sides = [b", ".join(map(self.text, side)) for side in zip(*left_over, strict=True)]
            yield *self.span(node), b" = ".join(sides)

    def says_nothing(self, target: ast.expr, value: ast.expr) -> bool:
        """Say whether an assignment is ``self.option = option`` or ``name = name``."""
        name = ast.unparse(value)
        return ast.unparse(target) in (name, f"self.{name}") and (
            name in self.stored or isinstance(target, ast.Name)
        )

    def call(self, node: ast.Call) -> Iterator[Edit]:
        """Drop keyword arguments that only pass an option on, and such a last positional
        argument of our own functions.

        Elsewhere write the value.
        """
        passed = [keyword for keyword in node.keywords if self.option(keyword.value)]
        is_ours = isinstance(node.func, ast.Name) and not hasattr(builtins, node.func.id)
        if is_ours and node.args and self.option(node.args[-1]):
            passed.append(node.args[-1])
        for argument in passed:
            yield self.without(*self.span(argument))

    def signature(self) -> Iterator[Edit]:
        """Leave out the parameters of the fixed options."""
        arguments = _function(self.tree).args
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = dict(zip(reversed(positional), reversed(arguments.defaults), strict=False))
        defaults |= dict(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
        for parameter in _parameters(self.tree):
            if parameter.arg not in self.fixed:
                continue
            start, _ = self.span(parameter)
            _, end = self.span(defaults.get(parameter) or parameter)
            if arguments.kwonlyargs == [parameter]:
                start = self.code.rindex(b"*", 0, start)
            yield self.without(start, end)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where an expression starts and ends."""
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.AST) -> bytes:
        return self.code[slice(*self.span(node))]

    def grouped(self, start: int, end: int) -> tuple[int, int]:
        """Return a span with the parentheses that only group it, where there are some."""
        opening = re.search(rb"(?<![\w\])])\(\s*$", self.code[:start])
        closing = re.match(rb"\s*\)", self.code[end:])
        return (opening.start(), end + closing.end()) if opening and closing else (start, end)

    def instead(self, node: ast.expr, part: ast.expr) -> Edit:
        """Put a part of an expression in the place of all of it."""
        span, part_span = self.span(node), self.span(part)
        outer = self.grouped(*span)
        if outer == span:
            part_span = self.grouped(*part_span)
        elif isinstance(part, ATOMS):
            span = outer
        return *span, self.code[slice(*part_span)]

    def without(self, start: int, end: int) -> Edit:
        """Leave out one of several things between commas, and its line if it is alone there."""
        comma = re.match(rb"\s*,[ ]*", self.code[end:])
        if not comma:
            return len(self.code[:start].rstrip().removesuffix(b",")), end, b""
        end += comma.end()
        line = self.code.rfind(b"\n", 0, start) + 1
        if self.code[end : end + 1] != b"\n":
            return start, end, b""
        if not self.code[line:start].strip():
            return line, end + 1, b""
        return len(self.code[:start].rstrip(b" ")), end, b""

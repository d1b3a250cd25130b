"""The house stays as its plan draws it: floors, sizes, and what must never be committed."""

from __future__ import annotations

import ast
import graphlib
import itertools
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import capslib
from capslib.lab.runs import checkout, git

PACKAGE = Path(capslib.__file__).parent
ROOT = PACKAGE.parent


WINGS = ("the lab", "the papers", "the library")


def plan() -> dict[str, tuple[str, int, int]]:
    """Wing, line from below, and place on it of every room, read from the plan in the package's docstring."""
    rooms, wing = {}, ""
    for line, text in enumerate(capslib.__doc__.splitlines()):
        # rooms stand two blanks apart, then comes what they are for
        if match := re.match(r"    (.{11})  (\w+(?:  \w+)*)   ", text):
            wing = match[1].strip() or wing
            rooms |= {
                name: (wing, -line, place) for place, name in enumerate(match[2].split("  "))
            }
    return rooms


PLAN = plan()


def room(module: str) -> str | None:
    """The room that a module of capslib lies in: its file, or the folder below a wing. None for the wings' own front doors."""
    parts = module.split(".")[1:]
    if parts[:1] in (["lab"], ["papers"]):
        parts = parts[1:]
    return parts[0] if parts else None


def module_of(path: Path) -> str:
    return ".".join(("capslib", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


FILES = {
    module_of(path): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.parent != PACKAGE or not path.name.startswith("__")
}


def imports(path: Path) -> set[str]:
    """The modules of capslib that a file imports, wherever in it; not those it needs for annotations only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    skipped = {
        id(n)
        for i in ast.walk(tree)
        if isinstance(i, ast.If) and "TYPE_CHECKING" in ast.dump(i.test)
        for n in ast.walk(i)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                found.add(name if name in FILES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & FILES.keys()


def test_every_room_is_on_the_plan_and_the_plan_has_no_other():
    assert {room(module) for module in FILES} - {None} == set(PLAN)
    assert {wing for wing, *_ in PLAN.values()} == set(WINGS)
    for module in FILES:
        folder = module.split(".")[1]
        assert room(module) is None or PLAN[room(module)][0] == {
            "lab": "the lab",
            "papers": "the papers",
        }.get(folder, "the library")


def test_no_room_is_named_twice():
    """But for the stems: a paper has a room of its own, and one file among the networks."""
    names = [
        room(m)
        for m, path in FILES.items()
        if room(m) and len(m.split(".")) == 2 + (m.split(".")[1] in ("lab", "papers"))
    ]
    assert len(names) == len(set(names))
    for module in FILES:
        parts = module.split(".")
        if len(parts) > 3 and parts[1] == "papers":
            assert parts[3] not in PLAN, f"{module} is called as a room of the house"


@pytest.mark.parametrize("module", FILES)
def test_a_module_imports_only_from_below_or_from_its_left(module):
    own = room(module)
    for name in imports(FILES[module]):
        other = room(name)
        if own is None or other in (None, own):
            assert not (own and name == "capslib.lab"), "the front door of the lab"
            continue
        assert PLAN[other][1:] < (PLAN[own][1], 0) or (
            PLAN[other][1] == PLAN[own][1] and PLAN[other][2] < PLAN[own][2]
        ), f"{module} imports {name}, which is not below it"


def test_the_library_imports_no_paper_and_no_paper_imports_the_lab():
    height = {wing: n for n, wing in enumerate(reversed(WINGS))}
    wing = {
        m: "the lab"
        if m.startswith("capslib.lab")
        else "the papers"
        if m.startswith("capslib.papers")
        else "the library"
        for m in FILES
    }
    back = [
        (m, name)
        for m, path in FILES.items()
        for name in imports(path)
        if height[wing[name]] > height[wing[m]]
    ]
    assert not back


def test_no_files_import_each_other_in_a_circle():
    """Inside rooms too, and where an import hides in a function."""
    graph = {
        module: {name for name in imports(path) if name != module}
        for module, path in FILES.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # names the circle, if there is one


def test_names_configurations_records_and_the_command_line_need_no_torch():
    code = """
import sys
from capslib.errors import UserError
from capslib.registry import LOSSES, NETWORKS, ROUTINGS
assert "em" in ROUTINGS and "sign" in NETWORKS and "margin" in LOSSES
try:
    ROUTINGS["emm"]
except UserError as error:
    assert "Did you mean 'em'" in str(error)
assert "torch" not in sys.modules, "registries"
from capslib import papers
from capslib.lab import records
from capslib.papers import query
papers.experiments("negation_limitation")["depth"].trials("paper")
papers.queries("negation_limitation")
records.Record.model_json_schema()
assert "torch" not in sys.modules, "trials, claims and records"
from capslib.lab import batch, claims, cli, settings, store
assert "torch" not in sys.modules, "the lab"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


def test_the_library_and_the_papers_need_no_package_of_the_lab():
    """``pip install capslib`` brings neither pandas nor dask nor a notebook; a paper's training runs without them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of_lab = [
        re.match(r"[a-z0-9_-]+", line)[0] for line in project["optional-dependencies"]["lab"]
    ]
    code = f"""
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({sorted(set(of_lab) - {"scipy"})}))  # not there; scikit-learn brings scipy
import capslib
for module in pkgutil.walk_packages(capslib.__path__, "capslib."):
    if not module.name.startswith("capslib.lab") and module.name != "capslib.__main__":
        importlib.import_module(module.name)
from capslib.papers import experiments
from capslib.training import Context
sign = experiments("negation_limitation")["sign"]
arm = sign.at("smoke")["dynamic/bias"].changed({{"points": 20, "epochs": 1}})
print(sign.run(arm, Context(seed=0)).parameters)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert done.stdout.strip().isdigit(), done.stderr


def tracked() -> list[Path]:
    if checkout(ROOT).revision is None:
        pytest.skip(f"no git checkout: {checkout(ROOT).reason}")
    names = git("ls-files", "-z", folder=ROOT).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).exists()]


def test_nothing_is_committed_that_must_not_be():
    files = tracked()
    assert not [p for p in files if p.suffix in (".ipynb", ".pt", ".pth", ".npy", ".gz")]
    assert not [p for p in files if p.suffix == ".npz" and ROOT / "results" not in p.parents]
    assert not [p for p in files if p.stat().st_size > 1_000_000]


def test_lines_of_every_committed_file_end_alike_in_every_clone():
    """Git would turn another end into a change of the whole file, as soon as somebody touches it."""
    tracked()
    lines = git("ls-files", "--eol", folder=ROOT).stdout.splitlines()
    assert not [line for line in lines if line.startswith(("i/crlf", "i/mixed"))]
    assert not [line for line in lines if "attr/text=auto eol=lf" not in line]


def test_every_committed_record_is_sound():
    from capslib.lab.review import review
    from capslib.lab.store import Store

    assert review(Store(ROOT / "results")).problems == []


def test_the_package_says_where_it_comes_from_which_pythons_run_it_and_that_it_is_typed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    metadata = project["project"]
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    repository = re.search(r"url: (\S+)", config)[1]
    assert metadata["urls"]["Repository"] == repository
    assert all(url.startswith(repository) for url in metadata["urls"].values())
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    tested = re.findall(r'"(3\.\d+)"', re.search(r"matrix: .*", workflow)[0])
    named = {
        line.rsplit(" ", 1)[1]
        for line in metadata["classifiers"]
        if re.search(r":: 3\.\d+$", line)
    }
    assert named == set(tested)
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["capslib"]
    assert (PACKAGE / "py.typed").exists()


# ---------------------------------------------------------------------------------------------- what machines run

WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())
FLOWS = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in WORKFLOWS]
JOBS = [(flow, name) for flow in FLOWS for name in flow["jobs"]]
EACH_JOB = pytest.mark.parametrize(("flow", "name"), JOBS)
MADE = (".venv/", "_build/", ".data/", "../")
"""How paths begin that a command makes, or looks for beside the house."""


def lines_of_shell() -> Iterator[str]:
    """Yield every line that a job or `.ci/run` gives to a shell."""
    yield from (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    for flow, name in JOBS:
        for step in flow["jobs"][name]["steps"]:
            yield from step.get("run", "").splitlines()


LINES = [line for line in lines_of_shell() if shlex.split(line, comments=True)]
COMMANDS = [pytest.param(shlex.split(line, comments=True), id=line.strip()) for line in LINES]


def is_path(word: str) -> bool:
    """Whether a word of a command is the path of something that has to be in the house."""
    named = re.fullmatch(r"([\w.*-]+/)+[\w.*-]*|[\w.*-]+\.(py|sh|toml|txt|yml)", word)
    return named is not None and not word.startswith(MADE)


@pytest.mark.parametrize("words", COMMANDS)
def test_what_a_command_names_is_there(words):
    for path in filter(is_path, words):
        assert list(ROOT.glob(path)), path


@pytest.mark.parametrize(
    "words", [command for command in COMMANDS if command.values[0][0] == "make"]
)
def test_make_has_each_verb_that_a_command_gives(words):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    verbs = [word for word in words[1:] if not word.startswith("-")]
    assert verbs
    for verb in verbs:
        assert re.search(rf"^{re.escape(verb)}:", makefile, re.M), verb


def names_of_tests(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [name for name in names if name.startswith("test_")]


@pytest.mark.parametrize(
    "words", [command for command in COMMANDS if "pytest" in command.values[0]]
)
def test_what_a_command_selects_is_there(words):
    """Each word of ``-k`` selects a test, so does each file, and some test has the marker of ``-m``."""
    options = words[words.index("pytest") + 1 :]
    files = [ROOT / word for word in options if is_path(word)]
    if "-k" in options:
        alternatives = options[options.index("-k") + 1].split(" or ")
        selected = set()
        for file, word in itertools.product(files, alternatives):
            if any(word in name for name in names_of_tests(file)):
                selected |= {file, word}
        assert selected == {*files, *alternatives}
    if "-m" in options:
        mark = f"pytest.mark.{options[options.index('-m') + 1]}\n"
        files = (ROOT / "tests").rglob("test_*.py")
        assert any(mark in file.read_text(encoding="utf-8") for file in files)


@EACH_JOB
def test_a_job_that_may_write_runs_nothing_of_the_project(flow, name):
    """Whatever a package or a notebook does in a job, it cannot push."""
    job = flow["jobs"][name]
    permissions = job.get("permissions", flow["permissions"])
    checkouts = [step for step in job["steps"] if "actions/checkout" in step.get("uses", "")]
    if checkouts:
        assert permissions == {"contents": "read"}
    for step in checkouts:
        assert step["with"]["persist-credentials"] is False


@EACH_JOB
def test_an_action_is_named_by_its_commit(flow, name):
    """A tag may be moved. The repositories of the actions confirm these commits."""
    for step in flow["jobs"][name]["steps"]:
        assert re.fullmatch(r"|[\w./-]+@[0-9a-f]{40}", step.get("uses", "")), step


LIBRARY = [
    module for module in FILES if not module.startswith(("capslib.lab", "capslib.papers"))
]


@pytest.mark.parametrize("module", LIBRARY)
def test_a_module_of_the_library_lists_what_it_defines_for_others(module):
    defined, listed = set(), None
    for node in ast.parse(FILES[module].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            defined |= {name.id for name in names if isinstance(name, ast.Name)}
            if isinstance(target, ast.Name) and target.id == "__all__":
                listed = ast.literal_eval(node.value)
    public = {name for name in defined if not name.startswith("_")}
    if FILES[module].name == "__init__.py":
        assert public <= set(listed or ())
    else:
        assert public == set(listed)

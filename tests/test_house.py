"""The house stays as its plan draws it, and what must never be committed is not."""

from __future__ import annotations

import ast
import functools
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
from capslib.lab.provenance import checkout, git
from capslib.papers import WITH_TRIALS

PACKAGE = Path(capslib.__file__).parent
ROOT = PACKAGE.parent


def plan() -> dict[str, str]:
    """Read the wing of every room, from the bottom up, in the plan of the package's docstring.

    Rooms stand two blanks apart, and what they are for stands behind them. ``STEM`` is a room
    for each paper and each study.
    """
    lines, wing = [], ""
    for line in capslib.__doc__.splitlines():
        match = re.match(r"    (.{11})  (\w+(?:  \w+)*)(   |$)", line)
        if match:
            wing = match[1].strip() or wing
            names = list(WITH_TRIALS) if match[2] == "STEM" else match[2].split()
            lines.append((wing, names))
    rooms = {}
    for wing, names in reversed(lines):
        for name in names:
            assert name not in rooms, f"{name} stands twice on the plan"
            rooms[name] = wing
    return rooms


PLAN = plan()
ORDER = list(PLAN)


def module_of(path: Path) -> str:
    parts = ("capslib", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


FILES = {
    module_of(path): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.parent != PACKAGE or not path.name.startswith("__")
}
EACH_MODULE = pytest.mark.parametrize("module", FILES)


def wing_of(module: str) -> str:
    folder = module.split(".")[1]
    return f"the {folder}" if folder in ("lab", "papers") else "the library"


def room_of(module: str) -> str | None:
    """The file or folder of a wing that a module lies in. None for a wing's front door."""
    names = module.split(".")[1:]
    if names[0] in ("lab", "papers"):
        names = names[1:]
    return names[0] if names else None


@functools.cache
def imports(module: str) -> set[str]:
    """The modules of capslib that one imports, wherever in it, but not for annotations only."""
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports by a relative name: write the whole one"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                names.add(submodule if submodule in FILES else node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & FILES.keys() - {module}


def test_every_room_is_on_the_plan_in_its_wing_and_the_plan_has_no_other():
    rooms = {(room_of(module), wing_of(module)) for module in FILES if room_of(module)}
    assert rooms == set(PLAN.items())


@EACH_MODULE
def test_a_module_imports_only_from_below_or_from_its_left(module):
    room = room_of(module)
    for name in imports(module):
        source = room_of(name)
        if room and source and source != room:
            below = ORDER[: ORDER.index(room)]
            assert source in below, f"{module} imports {name}, which is not below it"
            assert not {room, source} <= set(WITH_TRIALS), f"{module} imports another paper"
        assert not (room and name == "capslib.lab"), "the front door of the lab"


@EACH_MODULE
def test_the_library_imports_no_paper_and_no_paper_imports_the_lab(module):
    wings = ["the library", "the papers", "the lab"]
    for name in imports(module):
        assert wings.index(wing_of(name)) <= wings.index(wing_of(module)), name


def test_no_files_import_each_other_in_a_circle():
    """Inside rooms too, and where an import hides in a function."""
    graph = {module: imports(module) for module in FILES}
    graphlib.TopologicalSorter(graph).prepare()  # names the circle, if there is one


def python(code: str) -> subprocess.CompletedProcess:
    """Run code in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")


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
from capslib.papers import check
papers.experiments("negation_limitation")["depth"].trials("paper")
papers.checks_of("negation_limitation")
records.Record.model_json_schema()
assert "torch" not in sys.modules, "trials, claims and records"
from capslib.lab import batch, claims, cli, settings, store
assert "torch" not in sys.modules, "the lab"
"""
    process = python(code)
    assert process.returncode == 0, process.stderr


def test_the_library_and_the_papers_need_no_package_of_the_lab():
    """``pip install capslib`` brings neither pandas nor dask: a paper's training needs none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = dict.fromkeys(
        re.split(r"\W*>=", line)[0] for line in project["optional-dependencies"]["lab"]
    )
    del packages["scipy"]  # which scikit-learn brings
    code = f"""
import importlib, pkgutil, sys
sys.modules.update({packages})  # None: not there
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
    process = python(code)
    assert process.stdout.strip().isdigit(), process.stderr


def tracked() -> list[Path]:
    if checkout(ROOT).revision is None:
        pytest.skip(f"no git checkout: {checkout(ROOT).reason}")
    names = git("ls-files", "-z", folder=ROOT).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).exists()]


def test_nothing_is_committed_that_must_not_be():
    for path in tracked():
        assert path.suffix not in (".ipynb", ".pt", ".pth", ".npy", ".gz"), path
        assert path.suffix != ".npz" or ROOT / "results" in path.parents, path
        assert path.stat().st_size <= 1_000_000, path


def test_lines_of_every_committed_file_end_alike_in_every_clone():
    """Git would turn another end into a change of the whole file once somebody touches it."""
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
    assert re.findall(r":: (3\.\d+)", "\n".join(metadata["classifiers"])) == tested
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["capslib"]
    assert (PACKAGE / "py.typed").exists()


# ------------------------------------------------------------------------- what machines run


def jobs() -> Iterator[tuple[dict, str]]:
    """Yield every workflow with the name of each of its jobs."""
    for path in sorted((ROOT / ".github" / "workflows").iterdir()):
        flow = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name in flow["jobs"]:
            yield flow, name


JOBS = list(jobs())
EACH_JOB = pytest.mark.parametrize(("flow", "name"), JOBS)
MADE = (".venv/", "_build/", ".data/", "../")
"""How paths begin that a command makes, or looks for beside the house."""


def commands() -> Iterator[list[str]]:
    """Yield the words of every command that a job or `.ci/run` gives to a shell."""
    scripts = [(ROOT / ".ci" / "run").read_text(encoding="utf-8")]
    for flow, name in JOBS:
        scripts += [step.get("run", "") for step in flow["jobs"][name]["steps"]]
    for line in "\n".join(scripts).splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def each_command(program: str = ""):
    """Parametrise a test with the commands that have a word."""
    chosen = [words for words in commands() if not program or program in words]
    return pytest.mark.parametrize("words", chosen, ids=map(" ".join, chosen))


def is_path(word: str) -> bool:
    """Whether a word of a command is the path of something that has to be in the house."""
    match = re.fullmatch(r"([\w.*-]+/)+[\w.*-]*|[\w.*-]+\.(py|sh|toml|txt|yml)", word)
    return match is not None and not word.startswith(MADE)


@each_command()
def test_what_a_command_names_is_there(words):
    for path in filter(is_path, words):
        assert list(ROOT.glob(path)), path


@each_command("make")
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


@each_command("pytest")
def test_what_a_command_selects_is_there(words):
    """Each file and each word of ``-k`` selects a test, and a test has the marker of ``-m``."""
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
def test_a_job_that_checks_out_the_project_may_only_read(flow, name):
    """Whatever a package or a notebook does in such a job, it cannot push."""
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


LIBRARY = [module for module in FILES if wing_of(module) == "the library"]


@pytest.mark.parametrize("module", LIBRARY)
def test_a_module_of_the_library_lists_what_it_defines_for_others(module):
    names, listed = set(), []
    for node in ast.parse(FILES[module].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            elements = target.elts if isinstance(target, ast.Tuple) else [target]
            names |= {element.id for element in elements if isinstance(element, ast.Name)}
            if "__all__" in names and not listed:
                listed = ast.literal_eval(node.value)
    public = {name for name in names if not name.startswith("_")}
    assert public <= set(listed)
    assert FILES[module].name == "__init__.py" or public == set(listed)

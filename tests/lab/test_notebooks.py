"""Executing a chapter: when, with which parameters, and what is left when a cell fails. The
chapters here have three cells.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import jupytext
import jupytext.cli
import psutil
import pytest
from helpers import make_record
from toys import until

from capslib.errors import UserError
from capslib.lab import notebooks
from capslib.lab.batch import Session
from capslib.lab.settings import Settings
from capslib.lab.store import Store
from capslib.papers import WITH_TRIALS, experiments

STEM = "negation_limitation"
ROOT = Path(__file__).parents[2]

CHAPTER = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% tags=["parameters"]
scale = "smoke"
seeds = None
results_dir = None

# %%
import pathlib
pathlib.Path("ran").open("a").write("x")

# %%
print(scale, seeds, results_dir)
"""


@pytest.fixture
def book(tmp_path, monkeypatch) -> Path:
    """A book of one chapter in a folder of its own, with a copy of capslib that may be edited;
    the working folder.
    """
    folder = tmp_path / "book of one"
    (folder / "notebooks").mkdir(parents=True)
    (folder / "_toc.yml").touch()
    (folder / "notebooks" / f"{STEM}.py").write_text(CHAPTER, encoding="utf-8")
    package = Path(notebooks.__file__).parents[1]
    shutil.copytree(package, folder / "capslib", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(notebooks, "__file__", str(folder / "capslib" / "lab" / "notebooks.py"))
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CAPSLIB_RESULTS", raising=False)
    return folder


def times_run(book: Path) -> int:
    return len((book / "ran").read_text(encoding="utf-8")) if (book / "ran").exists() else 0


def printed(folder: Path) -> str:
    path = folder / "book" / "papers" / f"{STEM}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "".join(cells[-1]["outputs"][0]["text"])


def with_a_cell(book: Path, code: str) -> None:
    """Give the chapter one more cell, the fifth with the one that Papermill puts in, and one
    after it.
    """
    (book / "notebooks" / f"{STEM}.py").write_text(
        f"{CHAPTER}\n# %%\n{code}\n\n# %%\nprint('never')\n", encoding="utf-8"
    )


# ------------------------------------------------------------------------------------------
# what it depends on


def append(path: Path) -> None:
    """Add a line to a file, which may be new."""
    with path.open("a", encoding="utf-8") as file:
        file.write("\n# edited\n")


CHANGES = (
    "capslib/routing/em.py",
    "capslib/training.py",
    f"capslib/papers/{STEM}/__init__.py",
    f"capslib/networks/{STEM}.py",
    "capslib/networks/em_routing.py",  # a paper may use the network of another
    f"capslib/lab/ledger/{STEM}.csv",
    f"capslib/lab/ledger/deviations/{STEM}.csv",
    "capslib/new.py",
)
NO_CHANGES = (
    "capslib/papers/em_routing/adversarial.py",
    "capslib/lab/ledger/em_routing.csv",
    "capslib/lab/ledger/deviations/em_routing.csv",
    "capslib/training.pyc",
    "notebooks/em_routing.py",
)


def test_a_chapter_is_executed_again_after_a_change_of_what_it_uses(book, trial, monkeypatch):
    marks = [notebooks.fingerprint(STEM, Settings())]
    for name in CHANGES:
        append(book / name)
        marks.append(notebooks.fingerprint(STEM, Settings()))
    path = Store(book / "results").put(make_record(trial))
    marks.append(notebooks.fingerprint(STEM, Settings()))
    append(path)
    marks.append(notebooks.fingerprint(STEM, Settings()))
    (book / "capslib" / "losses.py").unlink()
    marks.append(notebooks.fingerprint(STEM, Settings()))
    marks.append(notebooks.fingerprint(STEM, Settings(seeds=2)))
    monkeypatch.setattr(importlib.metadata, "version", lambda library: "99")
    marks.append(notebooks.fingerprint(STEM, Settings()))
    assert len(set(marks)) == len(marks)


def test_a_chapter_is_left_alone_after_other_changes(book, trial):
    mark = notebooks.fingerprint(STEM, Settings())
    for name in NO_CHANGES:
        append(book / name)
    (book / "capslib" / "training.py").touch()
    trial = trial.model_copy(update={"paper": "em_routing"})
    path = Store(book / "results").put(make_record(trial))
    os.mkfifo(path.with_name("0123456789abcdef.json"))  # which hangs nobody
    assert notebooks.fingerprint(STEM, Settings()) == mark


# ------------------------------------------------------------------------------------------
# execution


def test_a_chapter_does_not_start_without_the_data_of_trials_that_were_only_rehearsed(book):
    parameters = {"scale": "cpu", "seeds": 1, "data_dir": "none", "results_dir": "records"}
    session = Session.start(**parameters)
    for name in experiments(STEM):
        for trial in session.trials(STEM, name):
            session.store.put(make_record(trial, exit="cut"))
    with pytest.raises(UserError, match="is missing"):
        notebooks.check(STEM, session)


def test_it_executes_once_until_something_changes(book, monkeypatch):
    """Some clusters have temporary folders with paths too long for a socket."""
    long = book / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    settings = Settings.check({"seeds": 3, "results_dir": "records"})
    assert notebooks.execute(STEM, settings) == "executed"
    assert printed(book) == f"smoke 3 {book / 'records'}\n"
    first = notebooks.target(STEM).read_text(encoding="utf-8")
    assert notebooks.execute(STEM, settings) == "unchanged"
    assert notebooks.target(STEM).read_text(encoding="utf-8") == first
    assert "papermill" not in first, "timings would make every build differ"
    injected = [cell for cell in json.loads(first)["cells"] if "injected" in str(cell)]
    assert "remove-cell" in injected[0]["metadata"]["tags"]
    append(book / "capslib" / "layers.py")
    assert notebooks.execute(STEM, settings) == "executed"
    assert notebooks.execute(STEM, settings, force=True) == "executed"
    assert times_run(book) == 3


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"metadata": []}', "{" * 9])
def test_an_output_that_cannot_be_read_is_made_again(book, content):
    notebooks.target(STEM).parent.mkdir(parents=True)
    notebooks.target(STEM).write_text(content, encoding="utf-8")
    assert notebooks.mark_of(STEM) == {}


PAGE = (
    CHAPTER
    + """
# %% tags=["hide-input"] mystnb={"figure": {"caption": "Two."}}
1 + 1

# %% [markdown]
# The sume is two.
"""
)
EDITS = {
    "The sume": "The sum",
    '"Two."': '"The sum."',
    '"hide-input"': '"hide-input", "front"',
    "\n# %%\nimport": "\n# %% [markdown]\n# First, a file.\n\n# %%\nimport",
    "\n# %% [markdown]\n# The sum is two.\n": "",
    "\n# %% tags=": "\n# %% [markdown]\n# Moved.\n\n# %% tags=",
}
"""A sentence, a caption, a tag of the page, a cell of text that is new, gone, and elsewhere."""
NEW_CODE = {
    "1 + 1": "1 + 2",
    "print(scale": "print(1 + 1)\n\n# %%\nprint(scale",
    '"hide-input"': '"skip-execution"',
    'tags=["hide-input"]': 'tags=["raises-exception"]',
    "# %% [markdown]\n# The sume is two.": "# %%\n2",
}
"""Another cell, one more, one that does not run, one that may fail, and text that becomes code.
"""


def without_ids(path: Path) -> dict:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        del cell["id"]
    return notebook


def test_a_change_of_text_keeps_the_outputs_and_leaves_what_an_execution_would(book):
    path = book / "notebooks" / f"{STEM}.py"
    path.write_text(PAGE, encoding="utf-8")
    notebooks.execute(STEM, Settings())
    text = PAGE
    for old, new in EDITS.items():
        text = text.replace(old, new, 1)
        path.write_text(text, encoding="utf-8")
        assert notebooks.execute(STEM, Settings()) == "text renewed, outputs kept", new
    renewed = without_ids(notebooks.target(STEM))
    assert times_run(book) == 1
    assert notebooks.execute(STEM, Settings(), force=True) == "executed"
    assert without_ids(notebooks.target(STEM)) == renewed
    path.write_text(f"{text}\n# %% [markdown]\n# The end.\n", encoding="utf-8")
    append(book / "capslib" / "layers.py")
    assert notebooks.execute(STEM, Settings()) == "executed", "text is not all that changed"


def test_outputs_of_other_code_or_of_code_that_runs_in_another_way_are_not_kept(book):
    path = book / "notebooks" / f"{STEM}.py"
    path.write_text(PAGE, encoding="utf-8")
    notebooks.execute(STEM, Settings())
    parameters = {"scale": "smoke"}
    assert notebooks.with_outputs_of_the_book(STEM, parameters) is not None
    for old, new in NEW_CODE.items():
        path.write_text(PAGE.replace(old, new), encoding="utf-8")
        assert notebooks.with_outputs_of_the_book(STEM, parameters) is None, new
    # Somebody may open the executed notebook, edit its code and save it.
    path.write_text(PAGE, encoding="utf-8")
    target = notebooks.target(STEM)
    edited = target.read_text(encoding="utf-8").replace("1 + 1", "1 + 2")
    target.write_text(edited, encoding="utf-8")
    assert notebooks.with_outputs_of_the_book(STEM, parameters) is None


RUNS = """
import toys
from capslib.lab.batch import Session
toys.dask_setup(None)
session = Session.start(results_dir="records", seeds=1)
session.run(toys.STEM, "toy", where={"size": 1})
print("between")
_ = session.run(toys.STEM, "toy")
"""


def test_it_shows_how_trials_get_on_and_a_page_has_one_line_of_each_run(
    book, monkeypatch, capsys
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    monkeypatch.setattr(notebooks, "LINE_INTERVAL", 0)
    with_a_cell(book, RUNS)
    assert notebooks.execute(STEM, Settings()) == "executed"
    output = capsys.readouterr().err
    for arm in ("size_1", "size_2", "size_3"):
        assert re.search(rf"^{STEM}: +ok .*{arm}", output, re.M)
    *_, cell, _ = json.loads(notebooks.target(STEM).read_text(encoding="utf-8"))["cells"]
    text = "".join("".join(part["text"]) for part in cell["outputs"])
    assert text.splitlines() == [
        "0 records loaded, 1 run: toy, smoke scale; figures prefer larger runs",
        "between",
        "1 record loaded, 2 run: toy, smoke scale; figures prefer larger runs",
    ]


@pytest.mark.parametrize("error", ['raise ValueError("no luck")', "1 +"])
def test_a_cell_that_fails_leaves_the_book_as_it_was_and_says_which(book, error):
    target = notebooks.target(STEM)
    target.parent.mkdir(parents=True)
    target.write_text("what was there before", encoding="utf-8")
    with_a_cell(book, error)
    line = CHAPTER.count("\n") + 3
    with pytest.raises(UserError, match=rf"^{STEM}: cell 4 \(line {line}\) failed") as failed:
        notebooks.execute(STEM, Settings())
    message = str(failed.value)
    assert error in message
    assert "\x1b" not in message
    assert target.read_text(encoding="utf-8") == "what was there before"
    assert f"_build/failed/{STEM}.ipynb" in message
    partial = book / "_build" / "failed" / f"{STEM}.ipynb"
    assert '"output_type": "error"' in partial.read_text(encoding="utf-8")


def test_a_kernel_that_dies_leaves_no_output_and_says_in_which_cell(book):
    with_a_cell(book, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    message = rf"^{STEM}: Kernel died in cell 4\.(.|\n)*: _build/failed/{STEM}\.ipynb$"
    with pytest.raises(UserError, match=message):
        notebooks.execute(STEM, Settings())
    assert not notebooks.target(STEM).exists()
    (partial,) = book.rglob("*.ipynb*")
    assert "smoke None None" in partial.read_text(encoding="utf-8")


def test_a_kernel_that_does_not_start_is_a_user_error(book):
    # python -m looks into the working folder first.
    (book / "ipykernel_launcher.py").write_text("raise SystemExit(1)", encoding="utf-8")
    message = rf"^{STEM}: Kernel died before replying to kernel_info\. It did not start: "
    with pytest.raises(UserError, match=message):
        notebooks.execute(STEM, Settings())
    assert not notebooks.target(STEM).exists()


def test_it_runs_in_its_own_interpreter_whatever_kernel_a_hub_has_registered(
    book, tmp_path, monkeypatch
):
    spec = tmp_path / "hub" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    kernel = {"argv": ["false"], "display_name": "of a hub", "language": "python"}
    spec.write_text(json.dumps(kernel), encoding="utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "hub"))
    with_a_cell(book, f"import sys; assert sys.executable == {sys.executable!r}")
    assert notebooks.execute(STEM, Settings()) == "executed"


WAITS = """
import toys
from capslib.lab.batch import Session
toys.dask_setup(None)
Session.start(results_dir="records").run(toys.STEM, "toy", change={"does": "waits"})
"""


@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill)]
)
def test_a_stop_writes_checkpoints_and_leaves_the_book_as_it_was_and_no_kernel(
    book, number, send
):
    with_a_cell(book, WAITS)
    target = notebooks.target(STEM)
    target.parent.mkdir(parents=True)
    target.write_text("what was there before", encoding="utf-8")
    # A runner in the background may have turned it off.
    listen = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    with subprocess.Popen(
        [sys.executable, "-m", "capslib", "execute", STEM],
        stderr=subprocess.PIPE,
        encoding="utf-8",
        preexec_fn=listen,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(book)},
    ) as process:
        until(lambda: process.poll() is not None or any(pids(book)))
        send(process.pid, number)
        _, output = process.communicate()
    assert process.returncode == 128 + number, output
    assert f"{STEM}: stopped, with its checkpoints written." in output
    assert "Traceback" not in output
    (pid,) = pids(book)
    assert not psutil.pid_exists(int(pid))
    assert len(list((book / "records" / ".trainings").iterdir())) == 1
    assert target.read_text(encoding="utf-8") == "what was there before"
    assert list(book.rglob("*.ipynb*")) == [target]
    assert not list(book.glob("capslib-*")), "temporary files stayed"


def pids(book: Path) -> list[str]:
    """Return the processes that run toys in this folder."""
    return [path.read_text(encoding="utf-8") for path in book.glob("ran *")]


def test_temporary_files_that_cannot_be_written_are_a_user_error(book, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/dev/full")
    with pytest.raises(
        UserError, match=rf"^{STEM} cannot be executed: .* for temporary files is /dev/full"
    ):
        notebooks.execute(STEM, Settings())
    assert not notebooks.target(STEM).exists()


def test_executions_four_at_a_time(tmp_path):
    """Each kernel has sockets in a folder of its own: none takes the port of another."""
    folders = [tmp_path / str(number) for number in range(4)]
    processes = []
    for folder in folders:
        (folder / "notebooks").mkdir(parents=True)
        (folder / "_toc.yml").touch()
        (folder / "notebooks" / f"{STEM}.py").write_text(CHAPTER, encoding="utf-8")
        command = [sys.executable, "-m", "capslib", "execute", STEM, "-p", "seeds=2"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            command, cwd=folder, stderr=-1, encoding="utf-8", env=environment
        )
        processes.append(process)
    for folder, process in zip(folders, processes, strict=True):
        _, message = process.communicate()
        assert process.returncode == 0, message
        assert times_run(folder) == 1
        assert printed(folder) == "smoke 2 None\n"


@pytest.mark.parametrize(
    ("stem", "message"),
    [
        ("negation", f"Did you mean '{STEM}'"),
        ("sparse_unsupervised", f"There is no notebooks/sparse_unsupervised.py in .*{STEM}"),
    ],
)
def test_a_chapter_that_is_not_there_is_a_user_error(book, stem, message):
    with pytest.raises(UserError, match=message):
        notebooks.execute(stem, Settings())


# ------------------------------------------------------------------------------------------
# the real chapters

CHAPTERS = sorted((ROOT / "notebooks").glob("*.py"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_a_chapter_has_one_parameters_cell_with_the_names_and_defaults_of_the_settings(path):
    assert path.stem in WITH_TRIALS
    cells = jupytext.read(path).cells
    (cell,) = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    parameters: dict[str, object] = {}
    exec(cell.source, {}, parameters)
    fields = Settings.model_fields
    assert list(parameters) == list(fields)
    assert parameters == {name: field.default for name, field in fields.items()}


@pytest.mark.parametrize(
    ("name", "value"), [("scale", "papr"), ("seeds", 0), ("device", "gpu")]
)
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_the_cell_after_the_parameters_refuses_a_wrong_one_of_plain_papermill(
    path, name, value
):
    code = [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    tags = [cell.metadata.get("tags", []) for cell in code]
    parameters = next(number for number, tag in enumerate(tags) if "parameters" in tag)
    namespace: dict[str, object] = {}
    exec(code[parameters].source, namespace)
    namespace[name] = value  # as Papermill does, in a cell of its own
    with pytest.raises(UserError, match=f"{name}.* {value!r}"):
        exec(code[parameters + 1].source, namespace)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_a_chapter_has_a_header_that_makes_no_diff_and_no_twin(path):
    assert not path.with_suffix(".ipynb").exists(), "the two would clash in the book"
    text = path.read_text(encoding="utf-8")
    header = text.partition("# %%")[0]
    assert "kernelspec" in header
    assert "jupytext_version" not in header
    for line in text.splitlines():
        assert line.isascii() or not line.startswith("# %%"), "JupyterLab escapes it"


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_a_chapter_that_goes_to_a_notebook_and_back_is_the_same_file(path, tmp_path):
    """An author may work on the ``.ipynb``, which keeps the metadata of a cell in the order of
    the alphabet.
    """
    for name in (ROOT / "jupytext.toml", path):
        shutil.copy(name, tmp_path)
    source, notebook = tmp_path / path.name, tmp_path / f"{path.stem}.ipynb"
    jupytext.cli.jupytext(["--quiet", "--to", "ipynb", str(source)])
    source.unlink()
    jupytext.cli.jupytext(["--quiet", "--to", "py:percent", str(notebook)])
    assert source.read_bytes() == path.read_bytes()

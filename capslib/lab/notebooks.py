"""Execute a chapter whose inputs have changed, or renew its text alone.

Jupytext reads ``notebooks/STEM.py``, Papermill executes it to ``book/papers/STEM.ipynb``, or
to ``book/STEM.ipynb`` for a study.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from capslib import papers
from capslib.errors import Interrupted, UserError
from capslib.files import check_writable, write_atomically
from capslib.lab.batch import Session, check_data
from capslib.lab.progress import OVERWRITTEN, printable
from capslib.lab.settings import Settings
from capslib.lab.signals import StopRequest
from capslib.lab.store import Store, project_root
from capslib.papers.experiment import Trial

if TYPE_CHECKING:
    from jupyter_client import AsyncKernelManager
    from nbformat import NotebookNode
    from papermill.exceptions import PapermillExecutionError

LIBRARIES = (
    "torch",
    "numpy",
    "pandas",
    "matplotlib",
    "seaborn",
    "scikit-learn",
    "scipy",
    "einops",
)
"""Libraries whose version can change what a chapter shows."""


def source(stem: str) -> Path:
    """Return the Jupytext notebook of a chapter.

    Raises UserError for an unknown stem, or a chapter that is not written yet.
    """
    papers.module(stem)
    root = project_root()
    path = root / "notebooks" / f"{stem}.py"
    if not path.exists():
        chapters = ", ".join(sorted(p.stem for p in path.parent.glob("*.py"))) or "none"
        name = path.relative_to(root)
        raise UserError(f"There is no {name} in {root}. Chapters here: {chapters}.")
    return path


KERNELSPEC = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---
"""


def keep_kernelspec(model: dict[str, Any], **_: Any) -> None:
    """Have a notebook that JupyterLab saves name Python 3, whatever the kernel is called here.

    JupyterLab calls it before it saves a file.
    """
    if model["type"] == "file" and model["format"] == "text":
        header = r"\A# ---\n# jupyter:\n#   kernelspec:\n(#     .*\n)+# ---\n"
        model["content"] = re.sub(header, KERNELSPEC, model["content"])


def page_of(stem: str) -> str:
    """Return the page of the book that a notebook becomes."""
    return f"book/papers/{stem}" if stem in papers.PAPERS else f"book/{stem}"


def target(stem: str) -> Path:
    """Return where the executed notebook of a paper or a study is."""
    return project_root() / f"{page_of(stem)}.ipynb"


def check(stem: str, session: Session) -> None:
    """Raise UserError for what would stop a chapter after minutes.

    That is a missing notebook, missing data, a book that cannot be written.
    """
    source(stem)
    check_writable(target(stem).parent, "The chapter", "Make that folder writable.")
    if session.settings.scheduler is not None:
        return
    missing: list[Trial] = []
    for name in papers.experiments(stem):
        trials = session.trials(stem, name)
        missing += [trial for trial in trials if session.store.ended(trial) is None]
    check_data(missing, session.settings.data_dir)


def fingerprint(stem: str, settings: Settings) -> str:
    """Return a hash of everything beside its notebook that a chapter shows.

    That is its parameters, its records and its ledger, the versions of Python and of the
    libraries, and every file of capslib except what other papers run and claim: their networks
    may be a part of its own.
    """
    versions = [platform.python_version(), *map(importlib.metadata.version, LIBRARIES)]
    digest = hashlib.sha256()
    for text in (settings.model_dump_json(), *versions):
        digest.update(text.encode() + b"\0")
    other_stems = set(papers.WITH_TRIALS) - {stem}
    package = Path(__file__).parents[1]
    files = [path for path in Store(settings.results_dir).paths(stem) if path.is_file()]
    for path in [*package.rglob("*.py"), *package.rglob("*.csv")]:
        names = path.relative_to(package).with_suffix("").parts
        if path.parent.name == "networks" or other_stems.isdisjoint(names):
            files.append(path)
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def mark_of(stem: str) -> dict[str, Any]:
    """Return the mark that an earlier execution left in the book's chapter; empty if none."""
    try:
        return dict(json.loads(target(stem).read_text(encoding="utf-8"))["metadata"]["capslib"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def execute(stem: str, settings: Settings, *, force: bool = False) -> str:
    """Bring one chapter of the book up to date.

    Return ``executed``; ``text renewed, outputs kept`` where only text, captions or tags for
    the page have changed; or ``unchanged``. Standard error shows how its trials get on, and at
    a terminal a bar its cells. What was in the book before stays until the new one is whole.

    Raises UserError for a chapter that fails: it names the cell, and the partial notebook in
    ``_build/failed``. Raises Interrupted on Ctrl-C and SIGTERM, when the trials that ran have
    written their checkpoints.
    """
    code = hashlib.sha256(source(stem).read_bytes()).hexdigest()
    mark = {"fingerprint": fingerprint(stem, settings), "notebook": code}
    old = {} if force else mark_of(stem)
    if mark.items() <= old.items():
        return "unchanged"

    import nbformat

    values: dict[str, Any] = {"scale": settings.scale}
    for name, value in settings.model_dump(exclude_defaults=True).items():
        values[name] = str(value.resolve()) if isinstance(value, Path) else value
    done = "text renewed, outputs kept"
    notebook = None
    if old.get("fingerprint") == mark["fingerprint"]:
        notebook = with_outputs_of_the_book(stem, values)
    if notebook is None:
        done = "executed"
        try:
            notebook = run_cells(stem, values)
        except OSError as error:
            folder = f"The folder for temporary files is {tempfile.gettempdir()}."
            raise UserError(f"{stem} cannot be executed: {error}. {folder}") from None
    clean(notebook)
    notebook.metadata["capslib"] = {**mark, "parameters": values}
    write_atomically(target(stem), nbformat.writes(notebook).encode())
    return done


def clean(notebook: NotebookNode) -> None:
    """Remove what would make every build differ, and lines that were written over."""
    notebook.metadata.pop("papermill", None)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        if "injected-parameters" in tags(cell):
            cell.metadata.tags.append("remove-cell")
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = OVERWRITTEN.sub("", output.text)
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("text", True)]


def tags(cell: NotebookNode) -> list[str]:
    """Return the tags of a cell."""
    return cell.metadata.get("tags", [])


TAGS_FOR_PAPERMILL = {"parameters", "skip-execution", "raises-exception"}
"""Tags that change how Papermill runs a notebook. Others are for the page."""


def with_outputs_of_the_book(stem: str, values: dict[str, Any]) -> NotebookNode | None:
    """Return the notebook with the outputs that the book has.

    Return None if they are outputs of other code, or of code that ran in another way.
    """
    import jupytext
    import nbformat
    import papermill

    new = papermill.execute_notebook(
        jupytext.read(source(stem)),
        None,
        values,
        kernel_name="python3",
        language="python",
        prepare_only=True,
    )
    old = nbformat.read(target(stem), as_version=4)
    new_code = [cell for cell in new.cells if cell.cell_type == "code"]
    old_code = [cell for cell in old.cells if cell.cell_type == "code"]
    if len(new_code) != len(old_code):
        return None
    for cell, executed in zip(new_code, old_code, strict=True):
        changed_tags = {*tags(cell)} ^ {*tags(executed)}
        if cell.source != executed.source or TAGS_FOR_PAPERMILL & changed_tags:
            return None
        cell.update(outputs=executed.outputs, execution_count=executed.execution_count)
    new.metadata = old.metadata | new.metadata
    return new


LINE_INTERVAL = 10.0
"""Seconds between two lines about trials, so that a notebook at smoke scale is brief."""
ROUTINE_LINE = re.compile(r"\s*(ok\b|start\b|at\b|\d)")
"""How lines of ``RunDisplay`` begin that may be left out; others are always shown."""


class TrialLines:
    """The file that the kernel prints to. It shows on standard error how trials get on.

    It leaves out lines that end in a line break: these are outputs of cells.
    """

    def __init__(self, stem: str):
        self.stem = stem
        self.shown = -math.inf

    def write(self, text: str) -> None:
        from tqdm.auto import tqdm

        for line in OVERWRITTEN.findall(text):
            due = time.monotonic() - self.shown >= LINE_INTERVAL
            if line.strip() and (due or not ROUTINE_LINE.match(line)):
                # Above the bar of papermill.
                tqdm.write(f"{self.stem}: {printable(line.rstrip())}", file=sys.stderr)
                self.shown = time.monotonic()

    def flush(self) -> None:
        sys.stderr.flush()


def own_kernel() -> type[AsyncKernelManager]:
    """Return what starts the kernel of this interpreter.

    A hub may register another one under the name ``python3``.
    """
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpecManager
    from traitlets import default

    class OwnKernel(AsyncKernelManager):
        @default("kernel_spec_manager")
        def _no_registered_kernels(self) -> KernelSpecManager:
            # Without folders it takes the kernel of the ipykernel beside it.
            return KernelSpecManager(kernel_dirs=[])

    return OwnKernel


def run_cells(stem: str, values: dict[str, Any]) -> NotebookNode:
    """Execute a chapter with these parameters, and return it.

    Raises what :func:`execute` raises.
    """
    import jupytext
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    for name in ("CAPSLIB_DATA", "CAPSLIB_RESULTS"):  # the kernel has another working folder
        if name in os.environ:
            os.environ[name] = str(Path(os.environ[name]).expanduser().absolute())
    # The path of a socket has 107 bytes at most.
    short = tempfile.gettempdir() if len(tempfile.gettempdir()) < 80 else "/tmp"
    with (
        tempfile.TemporaryDirectory(prefix="capslib-", dir=short) as folder,
        NotebookStop() as stop,
    ):
        unexecuted = Path(folder, f"{stem}.ipynb")
        executed = Path(folder, "executed.ipynb")
        nbformat.write(jupytext.read(source(stem)), unexecuted)
        # Sockets in a folder of its own, and no ports: any number of kernels can start at once.
        sockets = {"transport": "ipc", "ip": f"{folder}/kernel"}
        try:
            papermill.execute_notebook(
                str(unexecuted),
                str(executed),
                values,
                kernel_name="python3",
                kernel_manager_class=own_kernel(),
                language="python",
                cwd=str(project_root()),
                progress_bar={"desc": stem, "disable": None},  # only at a terminal
                stdout_file=TrialLines(stem),
                config=Config({"KernelManager": sockets}),
                extra_arguments=["--log-level=CRITICAL"],  # an interrupted kernel complains
                on_cell_execute=stop.start,
            )
            reason = ""
        except PapermillExecutionError as error:
            reason = explain(error, source(stem).read_text(encoding="utf-8"))
        except RuntimeError as error:  # the kernel died
            reason = f"{error}{stop.where_it_died()}"
        if stop():
            raise Interrupted(stop.signal)
        if not reason:
            return nbformat.read(executed, as_version=4)
        failed = project_root() / "_build" / "failed" / f"{stem}.ipynb"
        write_atomically(failed, executed.read_bytes())
    path = failed.relative_to(project_root())
    raise UserError(f"{stem}: {reason}\nThe partial notebook: {path}")


def explain(error: PapermillExecutionError, notebook: str) -> str:
    """Return which cell failed, at which line of the notebook, and the end of its traceback."""
    text, cell, _ = notebook.partition(f"\n{error.source}\n")
    line = f" (line {text.count(chr(10)) + 2})" if cell else ""
    traceback = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))  # without colours
    lines = [
        f"cell {error.cell_index}{line} failed with {error.ename}: {error.evalue}",
        *traceback.splitlines()[-15:],
    ]
    return "\n".join(lines)


class NotebookStop(StopRequest):
    """Callable that is true once a signal has come that stops a notebook.

    Ctrl-C and SIGTERM interrupt the running cell, so that its trials write their checkpoints:
    its kernel has a session of its own, and hears of neither. The next cell does not start.
    """

    current: int | None = None

    def _note(self, number: int, frame: object) -> None:
        super()._note(number, frame)
        if self.current is not None:
            for kernel in psutil.Process().children():
                kernel.send_signal(signal.SIGINT)

    def start(self, cell: Any, cell_index: int, **_: object) -> None:
        """Note which cell starts. Papermill calls it."""
        if self():
            raise Interrupted(self.signal)
        self.current = cell_index

    def where_it_died(self) -> str:
        """Return where the kernel died, and where to look for the reason."""
        if self.current is None:
            command = f"{sys.executable} -m ipykernel_launcher"
            return f". It did not start: what `{command}` prints tells why."
        advice = "Unless its own code ended it, memory ran out: look into the system's log."
        return f" in cell {self.current}. {advice}"

"""Execute a chapter whose inputs have changed, or renew its text alone: Jupytext → Papermill → ``book/papers/STEM.ipynb``."""

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
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil

from capslib import papers
from capslib.errors import Interrupted, UserError
from capslib.files import check_writable, write_atomically
from capslib.lab.batch import Session, Signals, check_data
from capslib.lab.progress import PASSING, printable
from capslib.lab.settings import Settings
from capslib.lab.store import Store, project_root

if TYPE_CHECKING:
    from jupyter_client import AsyncKernelManager
    from nbformat import NotebookNode

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
    """The Jupytext notebook of a chapter. Raises :class:`UserError` for an unknown stem or a chapter that is not written yet."""
    papers.module(stem)
    path = project_root() / "notebooks" / f"{stem}.py"
    if not path.exists():
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.py"))) or "none"
        raise UserError(
            f"There is no {path.relative_to(project_root())} in {project_root()}. Chapters here: {there}."
        )
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
    """JupyterLab's hook before it saves a file: a notebook names Python 3, whatever the kernel that ran is called on this machine."""
    if model["type"] == "file" and model["format"] == "text":
        model["content"] = re.sub(
            r"\A# ---\n# jupyter:\n#   kernelspec:\n(#     .*\n)+# ---\n",
            KERNELSPEC,
            model["content"],
        )


def target(stem: str) -> Path:
    return project_root() / "book" / "papers" / f"{stem}.ipynb"


def check(stem: str, session: Session) -> None:
    """Raise :class:`UserError` for what would stop a chapter after minutes: no notebook, no data, a book that cannot be written."""
    source(stem)
    check_writable(target(stem).parent, "The chapter", "Make that folder writable.")
    trials = [
        trial for name in papers.experiments(stem) for trial in session.trials(stem, name)
    ]
    if session.settings.scheduler is None:
        check_data(
            [trial for trial in trials if session.store.get(trial) is None],
            session.settings.data_dir,
        )


def fingerprint(stem: str, settings: Settings) -> str:
    """A hash of everything beside its notebook that a chapter shows.

    That is its parameters, its records and its ledger, the versions of Python and of the libraries, and every file of capslib
    except what other papers run and claim: their networks may be a part of its own.
    """
    digest = hashlib.sha256()
    for text in (
        settings.model_dump_json(),
        platform.python_version(),
        *map(importlib.metadata.version, LIBRARIES),
    ):
        digest.update(text.encode() + b"\0")
    others = set(papers.STEMS) - {stem}
    package = Path(__file__).parents[1]
    files = [
        path
        for path in package.rglob("*")
        if path.suffix in (".py", ".csv")
        and (
            path.parent.name == "networks"
            or others.isdisjoint(path.relative_to(package).with_suffix("").parts)
        )
    ]
    files += [path for path in Store(settings.results_dir).paths(stem) if path.is_file()]
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def marks(stem: str) -> tuple[str, str] | None:
    """The fingerprint and the hash of the notebook behind the book's chapter; None where there is none, or something else wrote it."""
    try:
        noted = json.loads(target(stem).read_text(encoding="utf-8"))["metadata"]["capslib"]
        return noted["fingerprint"], noted["notebook"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def execute(stem: str, settings: Settings, *, force: bool = False) -> str:
    """Bring one chapter of the book up to date. Returns ``executed``; ``text renewed, outputs kept`` where only text, captions or
    tags for the page have changed; or ``unchanged``.

    Standard error shows how its trials get on, and at a terminal a bar its cells.
    What was in the book before stays until the new one is whole. The :class:`UserError` of a chapter that fails names the cell, or
    in which cell the kernel died, and the partial notebook, kept in ``_build/failed``. Raises :class:`Interrupted` on Ctrl-C and
    SIGTERM, when the trials that ran have written their checkpoints.
    """
    mark, notebook = (
        fingerprint(stem, settings),
        hashlib.sha256(source(stem).read_bytes()).hexdigest(),
    )
    before = None if force else marks(stem)
    if before == (mark, notebook):
        return "unchanged"

    import nbformat

    values: dict[str, Any] = {
        name: str(value.resolve()) if isinstance(value, Path) else value
        for name, value in settings.model_dump().items()
        if value != Settings.model_fields[name].default or name == "scale"
    }
    done = "text renewed, outputs kept"
    shown = _renewed(stem, values) if before and before[0] == mark else None
    if shown is None:
        done = "executed"
        try:
            shown = _papermill(stem, values)
        except OSError as error:
            raise UserError(
                f"{stem} cannot be executed: {error}. The folder for temporary files is {tempfile.gettempdir()}."
            ) from None
    shown.metadata["capslib"] = {
        "fingerprint": mark,
        "notebook": notebook,
        "parameters": values,
    }
    shown.metadata.pop("papermill", None)
    for cell in shown.cells:
        for timings in ("papermill", "execution"):
            cell.metadata.pop(timings, None)
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.metadata.tags.append("remove-cell")
        for output in (outputs := cell.get("outputs", [])):
            if output.output_type == "stream":
                output.text = PASSING.sub("", output.text)
        outputs[:] = [output for output in outputs if output.get("text", True)]
    write_atomically(target(stem), nbformat.writes(shown).encode())
    return done


OBEYED = {"parameters", "skip-execution", "raises-exception"}
"""Tags that change how Papermill runs a notebook. Others are for the page."""


def _renewed(stem: str, values: dict[str, Any]) -> NotebookNode | None:
    """The notebook with the outputs that the book has, where every cell of code is the one that they are of; else None."""
    import jupytext
    import nbformat
    import papermill

    kept, how = (
        nbformat.read(target(stem), as_version=4),
        dict(kernel_name="python3", language="python", prepare_only=True),
    )
    new = papermill.execute_notebook(jupytext.read(source(stem)), None, values, **how)
    code = [
        [cell for cell in notebook.cells if cell.cell_type == "code"]
        for notebook in (new, kept)
    ]
    ours, theirs = (
        [(cell.source, OBEYED.intersection(cell.metadata.get("tags", []))) for cell in of]
        for of in code
    )
    if ours != theirs:
        return None
    for cell, same in zip(*code, strict=True):
        cell.update(outputs=same.outputs, execution_count=same.execution_count)
    new.metadata = kept.metadata | new.metadata
    return new


EVERY = 10.0
"""Seconds between two lines about trials, so that a notebook at smoke scale does not fill a screen."""
EXPECTED = re.compile(r"\s*(ok|start|at|\d)")
"""How lines begin that may be left out: a failure, or that the run stops, is always shown."""


def own_kernel() -> type[AsyncKernelManager]:
    """Return what starts the kernel of this interpreter, whatever others a hub registers under the name ``python3``."""
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpecManager
    from traitlets import default

    class OwnKernel(AsyncKernelManager):
        @default("kernel_spec_manager")
        def _no_registered_kernels(self) -> KernelSpecManager:
            return KernelSpecManager(
                kernel_dirs=[]
            )  # there it takes the one of ipykernel beside it

    return OwnKernel


def _papermill(stem: str, values: dict[str, Any]) -> NotebookNode:
    import jupytext
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError
    from tqdm.auto import tqdm
    from traitlets.config import Config

    said = -math.inf

    def show(printed: str) -> None:
        nonlocal said
        for line in filter(str.strip, PASSING.findall(printed)):
            if time.monotonic() - said >= EVERY or not EXPECTED.match(line):
                tqdm.write(
                    f"{stem}: {printable(line.rstrip())}", file=sys.stderr
                )  # above papermill's bar
                said = time.monotonic()

    short = (
        tempfile.gettempdir() if len(tempfile.gettempdir()) < 80 else "/tmp"
    )  # a socket's path may have 107 bytes
    with tempfile.TemporaryDirectory(prefix="capslib-", dir=short) as folder, _Cells() as cells:
        before, after = Path(folder, f"{stem}.ipynb"), Path(folder, "executed.ipynb")
        nbformat.write(jupytext.read(source(stem)), before)
        # The kernel's idle threads must not spin: on a busy machine they take the cores from others, which costs minutes.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        for name in {
            "CAPSLIB_DATA",
            "CAPSLIB_RESULTS",
        } & os.environ.keys():  # the kernel has another working folder
            os.environ[name] = str(Path(os.environ[name]).expanduser().absolute())
        try:
            papermill.execute_notebook(
                str(before),
                str(after),
                values,
                kernel_name="python3",
                kernel_manager_class=own_kernel(),
                language="python",
                cwd=str(project_root()),
                progress_bar={"desc": stem, "disable": None},  # only at a terminal
                stdout_file=SimpleNamespace(write=show, flush=sys.stderr.flush),
                # Sockets in a folder of its own: without ports, any number of kernels can start at once.
                config=Config(
                    {"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}}
                ),
                extra_arguments=["--log-level=CRITICAL"],  # an interrupted kernel complains
                on_cell_execute=cells.starts,
            )
        except PapermillExecutionError as error:
            last = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback)).splitlines()[
                -15:
            ]  # without colours
            text, found, _ = (
                source(stem).read_text(encoding="utf-8").partition(f"\n{error.source}\n")
            )
            line = f" (line {text.count(chr(10)) + 2})" if found else ""
            what = "\n".join(
                (
                    f"cell {error.cell_index}{line} failed with {error.ename}: {error.evalue}",
                    *last,
                    "",
                )
            )
        except (
            RuntimeError
        ) as error:  # the kernel died; a RuntimeError in a cell arrives as the error above
            if cells.current is None:
                what = f"{error}. It did not start: what `{sys.executable} -m ipykernel_launcher` prints tells why.\n"
            else:
                what = f"{error} in cell {cells.current}. Unless its own code ended it, memory ran out: look into the system's log.\n"
        else:
            if not cells():
                return nbformat.read(after, as_version=4)
        if cells():
            raise Interrupted(cells.signal)
        failed = project_root() / "_build" / "failed" / f"{stem}.ipynb"
        write_atomically(failed, after.read_bytes())
    raise UserError(f"{stem}: {what}The partial notebook: {failed.relative_to(project_root())}")


class _Cells(Signals):
    """Which cell of a notebook is ``current``, the one that runs.

    Ctrl-C and SIGTERM interrupt it, so that its trials write their checkpoints: its kernel has a session of its own, and hears of
    neither. The next cell does not start.
    """

    current: int | None = None

    def _note(self, number: int, frame: object) -> None:
        super()._note(number, frame)
        for kernel in psutil.Process().children() if self.current is not None else ():
            kernel.send_signal(signal.SIGINT)

    def starts(self, cell: Any, cell_index: int, **_: object) -> None:
        if self():
            raise Interrupted(self.signal)
        self.current = cell_index

"""Runnable notebooks: the site publishes clean ``.ipynb`` files, because the repository keeps only ``.py``, and buttons open them.

The Pages workflow pushes the built site to the branch ``gh-pages``. There each notebook has an address on GitHub, which Colab and
Binder can open.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

import jupytext
import nbformat

PUBLISHED = "_static/notebooks/{stem}.ipynb"
BRANCH = "gh-pages"


def runnable(source: Path, repository: str) -> nbformat.NotebookNode:
    """Turn a ``py:percent`` file into a notebook without outputs. Its first cell installs ``capslib`` where it is missing."""
    notebook = jupytext.read(source)
    install = nbformat.v4.new_code_cell(
        "# Installs this book's module where it is missing, as on Colab. In a checkout with `make lab` it does nothing.\n"
        "import importlib.util\n\n"
        'if importlib.util.find_spec("capslib") is None:\n'
        f'    %pip install --quiet "capslib @ git+{repository}"',
        id="install-capslib",
    )
    notebook.cells.insert(0, install)
    for n, cell in enumerate(notebook.cells[1:]):
        cell["id"] = f"cell-{n}"  # jupytext draws random ids; one source must give one file
    notebook.metadata.kernelspec = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    notebook.metadata.pop("jupytext", None)
    nbformat.validate(notebook)
    return notebook


def publish(folder: Path, site: Path, repository: str) -> None:
    """Write every notebook of ``folder`` into the site, and the requirements that Binder installs."""
    for source in sorted(folder.glob("*.py")):
        target = site / PUBLISHED.format(stem=source.stem)
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(runnable(source, repository), target)
    binder = site / "binder" / "requirements.txt"
    binder.parent.mkdir(exist_ok=True)
    binder.write_text(
        f"--extra-index-url https://download.pytorch.org/whl/cpu\njupyterlab>=4\ncapslib @ git+{repository}\n", encoding="utf-8"
    )


def launch_links(stem: str, repository: str) -> dict[str, str]:
    """The addresses at which Colab and Binder open a chapter's published notebook."""
    name = repository.rstrip("/").removesuffix(".git").split("github.com/")[-1]
    path = PUBLISHED.format(stem=stem)
    return {
        "Colab": f"https://colab.research.google.com/github/{name}/blob/{BRANCH}/{path}",
        "Binder": f"https://mybinder.org/v2/gh/{name}/{BRANCH}?urlpath={quote(f'lab/tree/{path}', safe='')}",
    }


def picture(executed: Path) -> tuple[str, bytes, str] | None:
    """The figure on a chapter's card: suffix, content and alt text of the first SVG of the cell tagged ``thumbnail``."""
    if not executed.is_file():
        return None
    notebook = nbformat.read(executed, as_version=4)
    for cell in notebook.cells:
        if "thumbnail" not in cell.metadata.get("tags", []):
            continue
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/svg+xml" in data:
                return ".svg", "".join(data["image/svg+xml"]).encode(), alt
    return None


def copy_if_changed(source: Path, target: Path) -> None:
    """Copy a file into the site unless an equal one is there, so that an unchanged build writes nothing."""
    if target.is_file() and target.read_bytes() == source.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)

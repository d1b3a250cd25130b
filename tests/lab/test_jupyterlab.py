"""JupyterLab as ``make lab`` starts it, on a copy of the notebooks: open, run and save leave a
clean diff.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.py"))
FILES = ("Makefile", "requirements.txt", "pyproject.toml", "jupytext.toml")
pytestmark = pytest.mark.xdist_group("jupyterlab")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Calls the server: method and path, and what to send."""
    tree, runtime = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("runtime")
    shutil.copytree(ROOT / "notebooks", tree / "notebooks")
    for name in FILES:
        shutil.copy(ROOT / name, tree)
    chapter = {
        k: v for k, v in os.environ.items() if not k.startswith("MAKE")
    }  # these tests may run under make, which then says so
    recipe = subprocess.run(
        ["make", "--dry-run", "lab"],
        cwd=tree,
        env=chapter,
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout
    _, answer, command = recipe.replace("\\\n", " ").partition(".venv/bin/jupyter ")
    assert answer, recipe
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jupyter",
            *shlex.split(command),
            "--no-browser",
            "--allow-root",
            "--port=0",
        ],
        cwd=tree,
        env=os.environ
        | {"JUPYTER_RUNTIME_DIR": str(runtime), "JUPYTER_CONFIG_DIR": str(runtime)},
        stderr=(runtime / "log").open("w", encoding="utf-8"),
    )
    try:
        for _ in range(600):
            if answer := list(runtime.glob("jpserver-*.json")):
                break
            assert server.poll() is None, (runtime / "log").read_text(encoding="utf-8")
            time.sleep(0.1)
        address = json.loads(answer[0].read_text(encoding="utf-8"))

        def call(method: str, path: str, body: object = None):
            data = None if body is None else json.dumps(body).encode()
            headers = {"Authorization": f"token {address['token']}"}
            request = urllib.request.Request(
                address["url"] + path, data, headers, method=method
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                return (
                    json.load(answer)
                    if "json" in answer.headers["Content-Type"]
                    else answer.url
                )

        call.tree = tree
        yield call
    finally:
        server.terminate()
        server.wait(30)


def ran(notebook, kernelspec):
    """What Lab writes into a notebook when it starts a kernel for it and runs a cell."""
    notebook["metadata"] |= {
        "kernelspec": kernelspec,
        "language_info": {"name": "python", "version": "3.11.7"},
    }
    cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    cell["execution_count"] = 1
    cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "1\n"}]
    cell["metadata"] |= {
        "trusted": True,
        "execution": {"iopub.status.busy": "2026-01-02T03:04:05Z"},
        "collapsed": True,
    }


def test_it_opens_on_the_notebooks(lab):
    assert lab("GET", "").partition("?")[0].endswith("/lab/tree/notebooks")
    assert {child["name"] for child in lab("GET", "api/contents/notebooks")["content"]} >= {
        path.name for path in CHAPTERS
    }


FOREIGN = {"name": "caps", "display_name": "Py 3.14 (caps)", "language": "python"}
OPENED = [
    pytest.param(path, FOREIGN, id=f"{path.stem}, run by a kernel of another name")
    for path in CHAPTERS
]
OPENED += [
    pytest.param(CHAPTERS[0], None, id="not run"),
    pytest.param(CHAPTERS[0], "of this environment", id="run"),
]


@pytest.mark.parametrize(("path", "kernel"), OPENED)
def test_a_chapter_that_is_opened_and_saved_is_the_same_file(lab, path, kernel):
    url = f"api/contents/notebooks/{path.name}"
    notebook = lab("GET", f"{url}?type=notebook")["content"]
    if kernel == "of this environment":
        spec = lab("GET", "api/kernelspecs")["kernelspecs"]["python3"]["spec"]
        kernel = {"name": "python3", **{key: spec[key] for key in ("display_name", "language")}}
    if kernel:
        ran(notebook, kernel)
    lab("PUT", url, {"type": "notebook", "format": "json", "content": notebook})
    assert (lab.tree / "notebooks" / path.name).read_bytes() == path.read_bytes()


def test_what_an_author_changes_is_saved(lab):
    path = lab.tree / "notebooks" / CHAPTERS[0].name
    content, url = path.read_text(encoding="utf-8"), f"api/contents/notebooks/{path.name}"
    notebook = lab("GET", f"{url}?type=notebook")["content"]
    notebook["cells"][-1]["source"] += "\n\nOne line more."
    lab("PUT", url, {"type": "notebook", "format": "json", "content": notebook})
    assert path.read_text(encoding="utf-8") == content.rstrip("\n") + "\n#\n# One line more.\n"
    path.write_text(content, encoding="utf-8")

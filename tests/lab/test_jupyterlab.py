"""JupyterLab as ``make lab`` starts it, on a copy of the notebooks: open, run and save leave a
clean diff.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from jupyter_server.serverapp import list_running_servers
from toys import until

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.py"))
FILES = ("Makefile", "requirements.txt", "pyproject.toml", "jupytext.toml")
pytestmark = pytest.mark.xdist_group("jupyterlab")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Calls the server: method and path, and what to send."""
    tree = tmp_path_factory.mktemp("tree")
    runtime = tmp_path_factory.mktemp("runtime")
    shutil.copytree(ROOT / "notebooks", tree / "notebooks")
    for name in FILES:
        shutil.copy(ROOT / name, tree)
    # These tests may run under make, which then says so.
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("MAKE")}
    recipe = subprocess.run(
        ["make", "--dry-run", "lab"],
        cwd=tree,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout
    words = recipe.replace("\\\n", " ").partition(".venv/bin/jupyter ")[2]
    command = [sys.executable, "-m", "jupyter", *shlex.split(words)]
    folders = {"JUPYTER_RUNTIME_DIR": str(runtime), "JUPYTER_CONFIG_DIR": str(runtime)}
    server = subprocess.Popen(
        [*command, "--no-browser", "--allow-root", "--port=0"],
        cwd=tree,
        env=os.environ | folders,
        stderr=(runtime / "log").open("w", encoding="utf-8"),
    )
    try:
        until(lambda: listens(server, runtime))
        (address,) = list_running_servers(runtime)

        def call(method: str, path: str, body: object = None):
            data = None if body is None else json.dumps(body).encode()
            headers = {"Authorization": f"token {address['token']}"}
            request = urllib.request.Request(
                address["url"] + path, data, headers, method=method
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                if "json" in answer.headers["Content-Type"]:
                    return json.load(answer)
                return answer.url

        call.tree = tree
        yield call
    finally:
        server.terminate()
        server.wait(30)


def listens(server: subprocess.Popen, runtime: Path) -> bool:
    """Say whether the server takes calls: it writes its address before it opens its port."""
    assert server.poll() is None, (runtime / "log").read_text(encoding="utf-8")
    addresses = list(list_running_servers(runtime))
    if not addresses:
        return False
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", addresses[0]["port"])) == 0


def ran(notebook: dict) -> None:
    """Change a notebook as Lab does when it starts a kernel for it and runs a cell."""
    kernel = {"name": "caps", "display_name": "Py 3.14 (caps)", "language": "python"}
    language = {"name": "python", "version": "3.11.7"}
    notebook["metadata"] |= {"kernelspec": kernel, "language_info": language}
    cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    cell["execution_count"] = 1
    cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "1\n"}]
    times = {"iopub.status.busy": "2026-01-02T03:04:05Z"}
    cell["metadata"] |= {"trusted": True, "execution": times, "collapsed": True}


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_that_is_opened_run_and_saved_is_the_same_file(lab, path):
    """Even if a kernel of another name runs it."""
    assert lab("GET", "").partition("?")[0].endswith("/lab/tree/notebooks")
    url = f"api/contents/notebooks/{path.name}"
    notebook = lab("GET", f"{url}?type=notebook")["content"]
    for change in (lambda notebook: None, ran):
        change(notebook)
        lab("PUT", url, {"type": "notebook", "format": "json", "content": notebook})
        assert (lab.tree / "notebooks" / path.name).read_bytes() == path.read_bytes()


def test_what_an_author_changes_is_saved(lab):
    path = lab.tree / "notebooks" / CHAPTERS[0].name
    content = path.read_text(encoding="utf-8")
    url = f"api/contents/notebooks/{path.name}"
    notebook = lab("GET", f"{url}?type=notebook")["content"]
    notebook["cells"][-1]["source"] += "\n\nOne line more."
    lab("PUT", url, {"type": "notebook", "format": "json", "content": notebook})
    assert path.read_text(encoding="utf-8") == content.rstrip("\n") + "\n#\n# One line more.\n"
    path.write_text(content, encoding="utf-8")

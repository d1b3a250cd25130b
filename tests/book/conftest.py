"""What the tests of the book share: the extension on the path, the built book, a browser, and a
tiny book to break."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from helpers import lacking

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))  # as Jupyter Book does, from _config.yml


@pytest.fixture(scope="session")
def site() -> Path:
    """The built book."""
    built = ROOT / "_build" / "html"
    if not (built / "book" / "intro.html").is_file():
        lacking("the book is not built: run `make book` first")
    return built.resolve()


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Headless Chromium, the system's own."""
    sync_api = pytest.importorskip("playwright.sync_api")
    programs = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    program = next(filter(None, programs), None) or lacking("there is no chromium")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield chromium
        chromium.close()


DEMO = '''"""A module to show."""


def twice(x):
    """Says more than the page needs."""
    return 2 * x  # FIRST
'''

PAGES = {
    "book/intro.md": """# A tiny book

```{verdict-matrix}
```
```{paper-rows}
```
```{runs}
```
```{record-schema}
```
```{start}
```
```{bibtex}
```
```{claims-table} NEG-T1-rba-bias EM-W-8
```
{repository}`GitHub` {count}`claims` claims, {count}`records` behind them.

Words come first. Our network has {ours}`NEG-T1-rba-bias`
{interval}`NEG-T1-rba-bias`, *the paper's {theirs}`NEG-T1-rba-bias`*. More words follow.

{measured}`negation_limitation/sign@paper:dynamic/bias:train_accuracy`.

```{image} _static/favicon.svg
:alt: "An icon. It has {ours}`NEG-T1-rba-bias`, the paper {theirs}`NEG-T1-rba-bias`."
```
""",
    "book/papers/negation_limitation.md": """# Negation

```{masthead} negation_limitation
```

```{headlines} negation_limitation
```

(sign)=
## Sign

```{live-source} capslib.demo.twice
:test: tests/test_demo.py::test_twice
```

{claim}`NEG-T1-rba-bias` is of {cite}`peer2021`.

```{claims-table} negation_limitation
```
""",
    "book/other.md": """# Other

See {ref}`sign` and [there](papers/negation_limitation.md#sign).
""",
    "book/scorecard.md": "# Scorecard\n\n```{scorecard}\n```\n",
    "book/references.md": "# References\n\n```{bibliography}\n```\n",
}


class TinyBook:
    """A book of five pages with the real configuration and extension, built as ``make book``
    builds the real one."""

    def __init__(self, root: Path):
        self.root = root
        config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
        config["bibtex_bibfiles"] = ["references.bib"]
        config["sphinx"]["local_extensions"] = {"capsbook": str(ROOT / "book" / "_ext")}
        self.write("_config.yml", yaml.safe_dump(config))
        root_page, *pages = [name.removesuffix(".md") for name in PAGES]
        chapters = [{"file": name} for name in pages]
        contents = {"format": "jb-book", "root": root_page, "chapters": chapters}
        self.write("_toc.yml", yaml.safe_dump(contents))
        for name, text in PAGES.items():
            self.write(name, text)
        self.write("capslib/demo.py", DEMO)
        self.write("tests/test_demo.py", "def test_twice():\n    pass\n")
        notebook = "# %% [markdown]\n# # Negation\n\n# %%\n1 + 1\n"
        self.write("notebooks/negation_limitation.py", notebook)
        (root / "results").mkdir()
        for name in ("_static", "_templates"):
            (root / "book" / name).symlink_to(ROOT / "book" / name)
        for name in ("book/references.bib", "CITATION.cff"):
            shutil.copy(ROOT / name, root)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text(encoding="utf-8")
        assert old in text
        self.write(name, text.replace(old, new))

    def build(self) -> tuple[int, str]:
        """Return the exit status and everything that was printed."""
        environment = os.environ | {"NO_COLOR": "1"}
        environment.pop("CAPSLIB_RESULTS", None)
        program = Path(sys.executable).with_name("jupyter-book")
        done = subprocess.run(
            [program, "build", ".", "-n", "-W", "--keep-going"],
            cwd=self.root,
            env=environment,
            capture_output=True,
            encoding="utf-8",
        )
        return done.returncode, done.stdout + done.stderr

    def html(self, page: str) -> str:
        return (self.root / "_build" / "html" / f"{page}.html").read_text(encoding="utf-8")


@pytest.fixture
def tiny_book(tmp_path: Path) -> TinyBook:
    return TinyBook(tmp_path)

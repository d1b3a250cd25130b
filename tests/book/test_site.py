"""The built book, as a reader meets it: offline, from files, on a phone, without a mouse."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup, Tag
from helpers import contrast
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from capslib.lab import claims, plots
from capslib.lab.ledger import ledger
from capslib.lab.words import BASELINES, CAPSULES, EXACT, GROUPS
from capslib.papers import PAPERS

ROOT = Path(__file__).parents[2]


Pages = dict[Path, BeautifulSoup]


@pytest.fixture(scope="module")
def pages(site) -> Pages:
    """Every page of the book."""
    paths = []
    for path in sorted(site.rglob("*.html")):
        if "_static" not in path.relative_to(site).parts:
            paths.append(path)
    assert len(paths) > 8
    return {
        path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in paths
    }


@pytest.fixture(scope="module")
def chapters(pages) -> Pages:
    return {path: page for path, page in pages.items() if path.parent.name == "papers"}


def addresses(element: Tag) -> list[str]:
    """What an element links to or loads. Those of a ``srcset`` have widths behind them."""
    link = element.get("href") or element.get("src")
    candidates = [part.split() for part in element.get("srcset", "").split(",")]
    return [*filter(None, [link]), *(words[0] for words in candidates if words)]


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_others(site, pages):
    anchors = {}
    for path, page in pages.items():
        anchors[path] = {element["id"] for element in page.find_all(id=True)}
    wrong = []
    for path, page in pages.items():
        for element in page.find_all(["a", "img", "script", "link", "source", "iframe"]):
            for address in addresses(element):
                parts = urlsplit(address)
                if parts.scheme or parts.netloc:
                    loaded = element.name != "a" and parts.scheme != "data"
                    if loaded and element.get("rel") != ["canonical"]:
                        wrong.append((path.name, address))
                    continue
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                exists = target.is_file() and target.is_relative_to(site)
                if parts.fragment and target in anchors:
                    exists = exists and unquote(parts.fragment) in anchors[target]
                if not exists:
                    wrong.append((path.name, address))
    assert not wrong


def test_no_page_names_two_places_alike(pages):
    for path, page in pages.items():
        ids = Counter(element["id"] for element in page.find_all(id=True))
        assert not ids or ids.most_common(1)[0][1] == 1, (path, ids.most_common(1))


def test_every_picture_has_a_text(pages):
    for path, page in pages.items():
        for image in page.find_all("img"):
            assert image.get("alt", "").strip(), (path, image)


def test_every_page_has_a_preview_for_sites_that_link_to_it(site, pages):
    pictures = []
    for path, page in pages.items():
        if path.parent.name in ("book", "papers"):
            assert page.find("meta", {"name": "description"})["content"], path
            pictures.append(page.find("meta", {"property": "og:image"})["content"])
    assert len(pictures) == len(set(pictures)) > 10
    for address in pictures:
        published, _, file = address.partition("_images/")
        assert re.fullmatch(r"https://[\w-]+\.github\.io/[\w-]+/", published)
        assert (site / "_images" / file).is_file()


THOUSANDS_WITHOUT_COMMAS = re.compile(
    r"(?<![\d.])\d{1,3}(?:[\u00a0\u2009\u202f]\d{3})+(?!\d)"  # in groups with blanks
    r"|(?<![\w.,:/#\[-])\d{5,}(?![\w./-])"  # not in groups
)


WHOLE_NUMBER_WITHOUT_COMMAS = re.compile(r"[−-]?[1-9]\d{3,}")


def test_the_book_writes_thousands_in_one_way(pages):
    for path, page in pages.items():
        article = copy.copy(page.select_one("article.bd-article"))
        if not article:
            continue
        for element in article.select("script, style, pre, code, .math, .sig"):
            element.decompose()
        wrong = THOUSANDS_WITHOUT_COMMAS.findall(article.get_text(" "))
        assert not wrong, (path, wrong[:5])
        # In prose four digits may be a year; in a cell of their own only in a column of years.
        for table in article.select("table:not(:has(th:-soup-contains('year')))"):
            cells = [cell.get_text(strip=True) for cell in table.select("td")]
            wrong = [cell for cell in cells if WHOLE_NUMBER_WITHOUT_COMMAS.fullmatch(cell)]
            assert not wrong, (path, wrong[:5])


def test_figures_write_thousands_as_the_text_does(site):
    """Matplotlib draws text as paths, and names each in a comment."""
    for path in (site / "_images").glob("*.svg"):
        texts = re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"))
        wrong = [text for text in texts if WHOLE_NUMBER_WITHOUT_COMMAS.fullmatch(text)]
        assert not wrong, (path.name, wrong)


def test_no_chapter_warns_its_readers(chapters):
    for path, page in chapters.items():
        assert not page.select(".output.stderr, .output.traceback"), path


def test_folded_code_is_named_by_what_it_shows(chapters):
    kinds = set()
    for path, page in chapters.items():
        for cell in page.select(".cell:has(summary)"):
            prompts = cell.select("summary .collapsed, summary .expanded")
            names = {prompt.get_text(strip=True) for prompt in prompts}
            assert not any("{" in name for name in names), path
            for kind, output in (
                ("figure", ".cell_output img"),
                ("table", ".cell_output :is(table, details)"),
            ):
                if names == {f"Code of the {kind}"}:
                    assert cell.select_one(output), path
                    kinds.add(kind)
    assert kinds == {"figure", "table"}


def test_a_chapter_leads_from_its_listings_to_the_api_reference(chapters):
    for path, page in chapters.items():
        links = page.select('.live-source-caption a[href^="../api/"]')
        assert links, f"{path.stem} shows no function of the library"


def test_the_reference_shows_docstrings_as_they_stand(site):
    pages = list((site / "book" / "api").glob("*.html"))
    assert pages
    for path in pages:
        page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        assert not page.select("article dl.field-list"), path  # a colon made a type of the text


def test_a_chapter_opens_with_its_citation_its_answer_and_its_headlines(chapters):
    for path, page in chapters.items():
        cited, answer, headlines = page.select(".masthead, .answer, table.headlines")
        addresses = {link["href"] for link in cited.select("a")}
        assert set(filter(None, PAPERS[path.stem].links.values())) <= addresses
        assert 5 < len(answer.text.split()) < 50, path
        rows = headlines.select("tbody tr")
        assert 3 <= len(rows) <= 6
        assert all(row.select("a.vq") for row in rows)
        assert page.select(".masthead-launch a")


def test_the_abstract_of_a_chapter_has_at_most_120_words(chapters):
    for path, page in chapters.items():
        words = []
        for paragraph in page.select_one(".answer").find_next_siblings():
            if paragraph.name != "p":
                break
            words += paragraph.text.split()
        assert 40 < len(words) <= 120, path


def test_front_page_has_a_row_for_each_paper(site, pages):
    stems = []
    for row in pages[site / "book/intro.html"].select(".paper-rows tbody tr"):
        stem = Path(urlsplit(row.a["href"]).path).stem
        stems.append(stem)
        claim, answer, evidence, picture = row.select("td")
        assert PAPERS[stem].claim == claim.text
        assert len(answer.text.split()) > 5
        assert evidence.text
        assert picture.img["alt"]
    assert stems == list(PAPERS)


def test_a_claim_of_an_experiment_leads_from_the_scorecard_to_its_table(site, pages):
    scorecard = pages[site / "book/scorecard.html"]
    link = scorecard.select_one("#claim-NEG-T1-rba-bias .claim-id")
    assert link["href"] == "papers/negation_limitation.html#at-NEG-T1-rba-bias"


def test_the_scorecard_has_a_square_for_every_claim(site, pages):
    matrix = pages[site / "book/scorecard.html"].select_one(".verdict-matrix")
    squares = matrix.select(".matrix-row a.vq")
    tiles = [int(tile.b.text) for tile in matrix.select(".verdict-tile")]
    assert len(squares) + sum(tiles) == len(ledger())
    assert all(square.get("aria-label") and square.get("href") for square in squares)


@pytest.fixture
def page(browser, site):
    """A fresh page that writes down what is wrong: errors, and requests for others' files."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.wrong = []
    allowed = (site.as_uri(), "data:", "blob:")

    def asked(request):
        if not request.url.startswith(allowed):
            page.wrong.append(f"asked for {request.url}")

    def failed(request):
        # On a slow machine going on to the next page aborts; a file that is not there fails.
        if request.failure != "net::ERR_ABORTED":
            page.wrong.append(f"did not get {request.url}: {request.failure}")

    def logged(message):
        if message.type == "error":
            page.wrong.append(message.text)

    page.on("request", asked)
    page.on("requestfailed", failed)
    page.on("console", logged)
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    yield page
    context.close()


def _open(page, site, name, query=""):
    page.goto((site / name).as_uri() + query, wait_until="load")


CONTENTS = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
NAMES = ["book/intro", "search", "genindex"]
for part in CONTENTS["parts"]:
    NAMES += [chapter["file"] for chapter in part["chapters"]]
FORMS = [("light", 1440), ("light", 820), ("light", 390), ("dark", 1440)]
"""Scheme and width. A dark page is laid out as a light one."""
ONLY = {
    ("light", 820): ["scrollable-region-focusable"],
    ("dark", 1440): ["color-contrast", "link-in-text-block"],
}
"""What axe is asked in forms that differ from others in widths or in colours alone."""
SPARE = """() => {
  const alike = "table.claims tr:nth-child(n+30), .claim-why li:nth-child(n+6), "
    + ".cell_output .text_html tr:nth-child(n+12)";
  const seen = new Set(), rows = [...document.querySelectorAll(alike)].map((row) => [row, ""]);
  const first = (kind) => !seen.has(kind) && seen.add(kind);
  const sheet = (token) => getComputedStyle(token.closest("pre")).backgroundColor;
  const kind = (token) => token.className + sheet(token);
  const tokens = [...document.querySelectorAll("pre span[class]")]
    .filter((token) => !first(kind(token))).map((e) => [e, e.textContent]);
  window.spared = [...rows, ...tokens]
    .map(([element, text]) => [element, document.createTextNode(text)]);
  window.spared.forEach(([element, text]) => element.replaceWith(text));
}"""
"""Hundreds of rows and thousands of words of code are alike: axe gets a few of each."""
BACK = "() => window.spared.forEach(([element, text]) => text.replaceWith(element))"
FOCUSABLE = """() => [...document.querySelectorAll(".bd-article .output, .bd-article pre")]
  .every((e) => e.scrollWidth <= e.clientWidth || e.tabIndex >= 0)"""
CUT_OFF = """() => {
  const about = (e) =>
    `${e.tagName} ${e.className} ${(e.currentSrc || e.textContent).slice(0, 60)}`;
  const shown = (selector) =>
    [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility());
  const parts =
    "figure, img, table, pre, .vq, .verdict-strip, .verdict-tile, .claim-ref";
  const boxes = "pre, .claims-wrap, .cell_output, .pst-scrollable-table-container";
  const paper = ".paper-over-ours";  // such a table scrolls in its box
  const wide = shown(parts).filter((e) =>
    !e.closest(paper) && e.getBoundingClientRect().right > innerWidth + 0.5);
  const inside = shown(boxes).filter((e) =>
    !e.querySelector(paper) && e.scrollWidth > e.clientWidth + 1);
  const small = shown(".cell_output figure img[src*='.svg']")
    .filter((i) => i.clientWidth < 0.85 * i.naturalWidth);
  const head = (table) => [...table.tHead.rows]
    .map((row) => row.lastElementChild.textContent.trim()).filter(Boolean).join(", ");
  const label = (row) => row.lastElementChild.dataset.label;
  const unnamed = shown("table.blocks").filter((table) =>
    [...table.tBodies[0].rows].some((row) => label(row) !== head(table)));
  const found = {"cut off": wide, "scrolls": inside, "small letters": small};
  found["no name"] = unnamed;
  return Object.entries(found)
    .flatMap(([what, elements]) => elements.map((e) => `${what}: ${about(e)}`));
}"""
TURN = "(folds, open) => folds.forEach((fold) => (fold.open = open))"


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_sound_in_every_form(page, site, name):
    """No error, nothing asked of others, no sideways scroll, nothing cut off on a phone, folds
    open too, and no serious or critical violation that axe knows of."""
    path = next(site.glob(f"{name}.html"))
    folds, whys = page.locator("details:not(.claim-why)"), page.locator("details.claim-why")
    faults = []
    _open(page, site, path.relative_to(site).as_posix())
    formulas = page.locator(".math").count()
    typeset = f"document.querySelectorAll('.math mjx-container').length >= {formulas}"
    page.wait_for_function(typeset, timeout=60_000)
    assert not page.locator("mjx-merror, [data-mjx-error]").count(), "TeX does not understand"
    for scheme, width in FORMS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        folds.evaluate_all(TURN, True)
        whys.evaluate_all(TURN, True)
        page.wait_for_timeout(400)  # within 0.3 s the theme makes boxes that scroll focusable
        with suppress(
            PlaywrightTimeout
        ):  # or later, on a busy machine; axe says what never was
            page.wait_for_function(FOCUSABLE, timeout=3000)
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            faults.append((scheme, width, f"{wide} px wide"))
        if width == 390:
            faults += [(scheme, width, cut) for cut in page.evaluate(CUT_OFF)]
        whys.evaluate_all(TURN, False)
        faults += [(scheme, width, *broken) for broken in violations(page, scheme, width)]
    assert faults + page.wrong == []


def violations(page, scheme: str, width: int) -> list[tuple]:
    """What axe finds serious or critical, with two places each."""
    options = {"resultTypes": ["violations"], "preload": False}
    only = ONLY.get((scheme, width))
    if only:
        options["runOnly"] = only
    else:
        options["rules"] = {"label-content-name-mismatch": {"enabled": True}}
    page.evaluate(SPARE)
    report = Axe().run(page, options=options).response["violations"]
    page.evaluate(BACK)
    broken = []
    for violation in report:
        if violation["impact"] in ("serious", "critical"):
            places = [node["html"][:120] for node in violation["nodes"][:2]]
            broken.append((violation["id"], places))
    return broken


@pytest.mark.browser
def test_links_open_their_folds_and_paper_has_none_and_is_white(page, chapters, site):
    page.emulate_media(color_scheme="dark")
    for path, soup in chapters.items():
        row = soup.select_one("details.fold:not([open]) tr[id^=claim-]")["id"]
        _open(page, site, f"book/papers/{path.name}", f"#{row}")
        assert page.locator(f"[id='{row}']").is_visible(), "a link into a fold opens it"
        page.emulate_media(media="print")
        page.wait_for_function("document.documentElement.dataset.theme === 'light'")
        assert page.locator("details.fold:not([open])").count() == 0, "paper has no folds"
        figure = page.locator(".cell_output figure img").first
        assert figure.evaluate("image => getComputedStyle(image).filter") == "none"
        page.emulate_media(media="screen")
        page.wait_for_function("document.documentElement.dataset.theme === 'dark'")


@pytest.mark.browser
def test_search_works_from_files_and_finds_a_claim_on_the_scorecard(page, site):
    _open(page, site, "search.html", "?q=EM-X-params-main")
    page.wait_for_selector("#search-results li a[href*=scorecard]", timeout=15_000)
    assert not [wrong for wrong in page.wrong if wrong.startswith("asked for")]


ROWS = "#scorecard-table tbody tr"


def shown_rows(page, *names: str) -> set[tuple[str, ...]]:
    """What the visible rows of the scorecard say of themselves."""
    fields = ", ".join(f"row.dataset.{name}" for name in names)
    rows = page.locator(f"{ROWS}:visible").evaluate_all(f"rows => rows.map(row => [{fields}])")
    return set(map(tuple, rows))


def shown_ids(page) -> list[str]:
    """The claims of the visible rows of the scorecard, in their order."""
    return page.locator(f"{ROWS}:visible .claim-id").all_inner_texts()


@pytest.mark.browser
def test_scorecard_filter(page, site):
    rows, total = page.locator(f"{ROWS}:visible"), len(ledger())
    of_paper = len(ledger("negation_limitation"))
    counter = "document.querySelector('.score-count').textContent"
    _open(page, site, "book/scorecard.html")
    statuses = {status for (status,) in shown_rows(page, "status")}
    assert statuses
    assert not statuses & set(GROUPS["not run"]), "at first it shows whatever was run"
    page.click(".score-filter button")
    page.wait_for_function(f"{counter} === 'all {total} claims'")
    assert rows.count() == total
    for group in (CAPSULES, BASELINES):
        shape = claims.SHAPES[group]
        page.select_option("select[name=status]", f"{shape} reproduced")
        assert shown_rows(page, "group", "status") == {(shape, "reproduced")}
    page.select_option("select[name=status]", "")
    page.select_option("select[name=paper]", "negation_limitation")
    assert rows.count() == of_paper
    assert page.locator(".score-count").inner_text() == f"{of_paper} of {total} claims"
    _open(page, site, "book/how_to_read.html")
    _open(page, site, "book/scorecard.html")
    assert rows.count() == of_paper, "the filter stays while the reader looks at other pages"
    page.fill("input[name=text]", "neg-t1-rba")
    assert rows.count() == 2
    page.click(".score-filter button")
    page.wait_for_function(f"{counter} === 'all {total} claims'")
    _open(page, site, "book/scorecard.html", "?where=em_routing/Table 1")
    assert shown_rows(page, "paper", "where") == {("em_routing", "em_routing/Table 1")}
    _open(page, site, "book/scorecard.html", "?paper=em_routing#claim-NEG-T1-rba-bias")
    assert page.locator("#claim-NEG-T1-rba-bias").is_visible(), "a link wins over the filter"
    assert page.locator(".claim-why[open]").count() == 1
    _open(page, site, "book/scorecard.html", "#main-content")
    assert page.locator(".claim-why[open]").count() == 0, "this leads to no claim"
    assert not page.wrong


@pytest.mark.browser
def test_a_link_to_a_hidden_claim_keeps_its_address_and_the_chosen_filter(page, site):
    row, total = "claim-NEG-T1-rba-bias", len(ledger())
    kept = "sessionStorage.getItem('scorecard-filter')"
    _open(page, site, "book/scorecard.html")
    for from_another_page in (True, False):
        page.select_option("select[name=paper]", "em_routing")
        chosen = page.evaluate(kept)
        assert "paper=em_routing" in chosen
        assert not page.locator(f"[id='{row}']").is_visible()
        if from_another_page:
            _open(page, site, "book/how_to_read.html")
            _open(page, site, "book/scorecard.html", f"#{row}")
        else:
            page.evaluate(f"location.hash = '{row}'")
        page.wait_for_function(f"document.getElementById('{row}').checkVisibility()")
        page.wait_for_timeout(100)  # a filter that is reset would be remembered by now
        assert page.evaluate("location.hash") == f"#{row}"
        assert page.evaluate(kept) == chosen
        assert page.locator(".score-count").inner_text() == f"all {total} claims"
    assert not page.wrong


@pytest.mark.browser
def test_scorecard_sorts(page, site):
    """By the values of the ledger and of the verdicts, thousands too; rows without one last."""
    verdicts = json.loads((site / "_static/claims.json").read_text(encoding="utf-8"))
    theirs = {claim.id: claim.value for claim in ledger("em_routing").values()}
    ours = {verdict["id"]: verdict["our_value"] for verdict in verdicts}
    assert max(filter(None, theirs.values())) > 1_000_000
    _open(page, site, "book/scorecard.html", "?paper=em_routing")
    for column, values in ((2, theirs), (3, ours)):
        head = page.locator(f"#scorecard-table th:nth-child({column})")
        for direction, falling in (("ascending", False), ("descending", True)):
            head.locator("button").click()
            assert head.get_attribute("aria-sort") == direction
            shown = [values[name] for name in shown_ids(page)]
            numbers = [value for value in shown if value is not None]
            assert len(numbers) > 10
            assert None in shown
            assert shown[: len(numbers)] == sorted(numbers, reverse=falling)


@pytest.mark.browser
def test_numbers_inside_ids_count_as_numbers(page, site):
    _open(page, site, "book/scorecard.html", "?paper=negation_limitation")
    page.click("#scorecard-table th:nth-child(1) button")
    ids = shown_ids(page)
    assert ids.index("NEG-W-2") < ids.index("NEG-W-10")


@pytest.mark.browser
def test_scorecard_without_scripts(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    _open(page, site, "book/scorecard.html")
    assert page.locator(f"{ROWS}:visible").count() == len(ledger())
    assert not page.locator(".score-filter").is_visible()
    context.close()


@pytest.mark.browser
def test_five_papers_stand_on_one_screen(page, site):
    page.set_viewport_size({"width": 1440, "height": 900})
    _open(page, site, "book/intro.html")
    row = page.locator(".paper-rows tbody tr").nth(4).bounding_box()
    assert row["y"] + row["height"] <= 900


@pytest.mark.browser
def test_tables_fit_a_laptop_and_words_of_claims_their_cells(page, chapters, site):
    page.set_viewport_size({"width": 1280, "height": 900})
    excess = "(table) => table.offsetWidth - table.parentElement.clientWidth"
    wide = "cells => cells.filter(c => c.scrollWidth > c.clientWidth).map(c => c.innerText)"
    for path in chapters:
        _open(page, site, path.relative_to(site).as_posix())
        tables = page.locator("table.paper-over-ours").all()
        assert tables
        for table in tables:
            assert table.evaluate(excess) <= 0, (path.stem, table.inner_text()[:40])
        assert page.locator("table.claims td:visible").evaluate_all(wide) == [], path.stem


@pytest.mark.browser
def test_a_table_with_one_column_of_results_shows_them_on_a_phone(page, site):
    page.set_viewport_size({"width": 390, "height": 900})
    _open(page, site, "book/papers/em_routing.html")
    table_1 = page.locator("table.paper-over-ours").first
    for result in table_1.locator("span.cell").all():
        box = result.bounding_box()
        assert box["x"] + box["width"] <= 390
    first = table_1.locator("tbody tr").first.locator("th, td").first
    assert first.get_attribute("data-label") == "iterations", "a bare number has no name"


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 820, 1440])
def test_the_bar_above_the_scorecard_is_as_wide_as_its_table(page, site, width):
    page.set_viewport_size({"width": width, "height": 900})
    _open(page, site, "book/scorecard.html")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    table = page.locator("#scorecard-table").bounding_box()
    bar = page.locator(".bd-header-article").bounding_box()
    assert bar["x"] <= table["x"]
    assert table["x"] + table["width"] <= bar["x"] + bar["width"]


@pytest.mark.browser
def test_squares_speak_to_the_keyboard(page, site):
    _open(page, site, "book/scorecard.html")
    page.keyboard.press("Tab")  # from here on the browser shows where the focus is
    square = page.locator(".matrix-row a.vq").first
    square.focus()
    tip = square.evaluate("square => getComputedStyle(square, '::after').content")
    assert square.get_attribute("aria-label") in tip
    page.keyboard.press("ArrowRight")
    assert (
        page.locator(".matrix-row a.vq")
        .nth(1)
        .evaluate("square => square === document.activeElement")
    ), "an arrow leads to the next square"
    assert square.get_attribute("tabindex") == "-1", "and the strip stays one stop"
    strip = square.locator("..")
    assert strip.evaluate("strip => strip.getBoundingClientRect().right <= innerWidth")


SHEET = """picture => {
  for (let element = picture; element; element = element.parentElement) {
    const color = getComputedStyle(element).backgroundColor;
    if (color !== "rgba(0, 0, 0, 0)") return color;
  }
}"""
"""What lies under a picture that is transparent: the nearest colour of a background."""


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_ink_of_a_picture_can_be_read(page, site, scheme):
    page.emulate_media(color_scheme=scheme)
    _open(page, site, "book/papers/em_routing.html")
    pictures = page.locator(".cell_output img[src$='.png']").all()
    assert pictures
    for picture in pictures:
        assert contrast(plots.INK, picture.evaluate(SHEET)) >= 4.5


COLORS = """([squares, full]) => {
  const sheet = getComputedStyle(document.body).backgroundColor;
  const colors = {};
  for (const classes of squares) {
    const square = document.createElement("span");
    square.className = classes;
    document.querySelector(".verdict-note").append(square);
    const style = getComputedStyle(square);
    colors[classes] = [style.color, full.includes(classes) ? style.backgroundColor : sheet];
    square.remove();
  }
  for (const selector of ["main p", "small", ".verdict-note", "main a.matrix-name"])
    colors[selector] = [getComputedStyle(document.querySelector(selector)).color, sheet];
  return colors;
}"""
"""The colours of squares and texts, each with what it stands on."""


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(page, site, scheme):
    page.emulate_media(color_scheme=scheme)
    _open(page, site, "book/scorecard.html")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    squares, full = [], []
    for group, words in GROUPS.items():
        kinds = [f"vq {claims.classes(status, group)}" for status in words]
        squares += kinds
        if group in (CAPSULES, BASELINES, EXACT):
            full += kinds
    colors = page.evaluate(COLORS, [squares, full])
    ratios = {name: contrast(*pair) for name, pair in colors.items()}
    low = {name: ratio for name, ratio in ratios.items() if ratio < 4.5}
    assert not low


def test_the_site_is_light(site, pages):
    """A reader on a slow line: 60 MB in all, 1.5 MB and 20,000 elements a page."""
    megabyte = 2**20
    total = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    assert total < 60 * megabyte
    for path, page in pages.items():
        assert path.stat().st_size < 1.5 * megabyte, path.name
        assert len(page.find_all(True)) < 20_000, path.name

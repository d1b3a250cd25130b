"""The built book, as a reader meets it: offline, from files, on a phone, without a mouse."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from capslib.lab import claims
from capslib.lab.ledger import ledger
from capslib.lab.words import BASELINES, CAPSULES, EXACT, GROUPS
from capslib.papers import PAPERS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, BeautifulSoup]:
    wanted = [
        p
        for p in sorted(site.rglob("*.html"))
        if not {"_static", "records"} & set(p.relative_to(site).parts)
    ]
    wanted += [
        next((site / "records").glob(f"*/{name}/*.html")) for name in ("sign", "test_error")
    ]  # of the many pages of runs
    found = {
        path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in wanted
    }
    assert len(found) > 8
    return found


def test_every_link_leads_somewhere(site, pages):
    anchors = {
        path: {tag["id"] for tag in soup.find_all(id=True)} for path, soup in pages.items()
    }
    lost = []
    for path, soup in pages.items():
        for tag in soup.find_all(["a", "img", "script", "link", "source"]):
            address = tag.get("href") or tag.get("src")
            if not address or urlsplit(address).scheme or address.startswith("//"):
                continue
            parts = urlsplit(address)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            there = target.is_file() and target.is_relative_to(site)
            if there and anchor and target in anchors:
                there = anchor in anchors[target]
            if not there:
                lost.append(f"{path.relative_to(site)}: {address}")
    assert not lost


def test_no_page_names_two_places_alike(pages):
    named = {
        path.name: Counter(tag["id"] for tag in soup.find_all(id=True))
        for path, soup in pages.items()
    }
    assert {
        name: twice
        for name, ids in named.items()
        if (twice := [i for i, n in ids.items() if n > 1])
    } == {}


def test_no_page_names_a_script_font_or_picture_of_others(pages):
    foreign = [
        (path.name, address)
        for path, soup in pages.items()
        for tag in soup.find_all(["script", "img", "link", "iframe", "source"])
        if (address := tag.get("src") or tag.get("href") or "").startswith(
            ("http:", "https:", "//")
        )
        and tag.get("rel") != ["canonical"]
    ]
    assert not foreign


def test_every_picture_has_a_text(pages):
    assert not [
        (p.name, i.get("src"))
        for p, soup in pages.items()
        for i in soup.find_all("img")
        if not i.get("alt", "").strip()
    ]


def test_every_page_has_a_preview_for_sites_that_link_to_it(site, pages):
    told = {}
    for path, soup in pages.items():
        if path.parent.name in ("book", "papers"):
            told[path.stem] = [
                soup.find("meta", name)
                for name in ({"name": "description"}, {"property": "og:image"})
            ]
    assert len(told) > 10
    assert all(described and described["content"] for described, _ in told.values())
    addresses = {picture["content"] for _, picture in told.values()}
    assert len(addresses) == len(told)
    for address in addresses:
        published, _, path = address.partition("_images/")
        assert re.fullmatch(r"https://[\w-]+\.github\.io/[\w-]+/", published)
        assert (site / "_images" / path).is_file()


def test_no_chapter_warns_its_readers(pages):
    assert not [
        (p.name, said.text)
        for p, soup in pages.items()
        for said in soup.select(".output.stderr, .output.traceback")
    ]


def test_folded_code_is_named_by_what_it_shows(pages):
    named = []
    for path, soup in pages.items():
        for cell in soup.select(".cell:has(summary)"):
            told = [
                summary.get_text(strip=True)
                for summary in cell.select("summary .collapsed, summary .expanded")
            ]
            shown = (
                "figure"
                if cell.select_one(".cell_output img")
                else "table"
                if cell.select_one(".cell_output :is(table, details)")
                else ""
            )
            assert not [name for name in told if "{" in name], path
            if any(
                name.startswith(("Code of the figure", "Code of the table")) for name in told
            ):
                assert told == [f"Code of the {shown}"] * 2, path
                named.append(shown)
    assert {"figure", "table"} <= set(named)


def test_a_chapter_opens_with_its_citation_its_box_and_its_verdicts(pages):
    for path, soup in pages.items():
        if path.parent.name == "papers":
            cited, box, verdicts = soup.select(
                ".masthead-cited, .verdict-box, .masthead-verdicts"
            )
            assert set(filter(None, PAPERS[path.stem].links.values())) <= {
                a["href"] for a in cited.select("a")
            }
            assert "verdict-box" in box["class"]
            assert verdicts.select("a.vq"), path
            assert verdicts.find_all(recursive=False)[-1]["class"] == ["masthead-launch"]


def test_front_page_says_what_each_chapter_found(site, pages):
    front = pages[site / "book" / "intro.html"]
    chapters = [path for path in pages if path.parent.name == "papers"]
    papers, told = front.select(".findings > section"), front.select(".finding")
    stems = [Path(urlsplit(one.select_one(".finding-of")["href"]).path).stem for one in papers]
    assert sorted(stems) == sorted(path.stem for path in chapters)
    assert stems == sorted(stems, key=list(PAPERS).index)
    assert all(
        PAPERS[stem].claim in one.select_one(".finding-claim").text
        for stem, one in zip(stems, papers, strict=True)
    )
    assert all(one.select(".finding") for one in papers)
    assert len(told) <= len(chapters) + 1, "one of each chapter, and one more"
    assert all(len(one.text.split()) > 10 and one.img and one.img["alt"] for one in told)
    cards = front.select(".chapter-card")
    assert len(cards) == len(chapters)
    assert all(card.img and card.img["alt"] for card in cards)


def test_a_claim_of_an_experiment_leads_from_the_scorecard_to_its_table(site, pages):
    link = pages[site / "book" / "scorecard.html"].select_one(
        "#claim-NEG-T1-rba-bias .claim-id"
    )
    assert link["href"] == "papers/negation_limitation.html#at-NEG-T1-rba-bias"


def test_front_page_shows_every_claim(site, pages):
    front = pages[site / "book" / "intro.html"]
    matrix = front.select_one(".verdict-matrix")
    squares = matrix.select(".matrix-row a.vq")
    tiles = [int(tile.b.text) for tile in matrix.select(".verdict-tile")]
    assert len(squares) + sum(tiles) == len(ledger())
    assert all(square.get("aria-label") and square.get("href") for square in squares)


@pytest.fixture
def page(browser, site):
    """A fresh page whose requests, errors and console are written down; nothing but the book's own files may be asked for."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.wrong = []
    root = site.as_uri()
    page.on(
        "request",
        lambda r: (
            None
            if r.url.startswith((root, "data:", "blob:"))
            else page.wrong.append(f"asked for {r.url}")
        ),
    )
    aborted = "net::ERR_ABORTED"  # by going on to the next page, on a slow machine; a file that is not there has another error
    page.on(
        "requestfailed",
        lambda r: (
            None
            if r.failure == aborted
            else page.wrong.append(f"did not get {r.url}: {r.failure}")
        ),
    )
    page.on("console", lambda m: page.wrong.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: page.wrong.append(str(e)))
    yield page
    context.close()


def _open(page, site, name, query=""):
    page.goto((site / name).as_uri() + query, wait_until="load")


NAMES = [
    file
    for part in yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    for file in map(dict.popitem, part["chapters"])
]
NAMES = [
    "book/intro",
    *(file for _, file in NAMES),
    "search",
    "genindex",
    "records/*/sign/*",
    "records/*/test_error/*",
]
FORMS = [("light", 1440), ("light", 820), ("light", 390), ("dark", 1440)]
"""Scheme and width. A dark page is laid out as a light one."""
ONLY = {
    ("light", 820): ["scrollable-region-focusable"],
    ("dark", 1440): ["color-contrast", "link-in-text-block"],
}
"""What axe is asked in forms that differ from others in widths or in colours alone."""
SPARE = """() => {
  const alike = "table.claims tr:nth-child(n+30), .cell_output .text_html tr:nth-child(n+12), .claim-why li:nth-child(n+6)";
  const seen = new Set(), rows = [...document.querySelectorAll(alike)].map((row) => [row, ""]);
  const first = (kind) => !seen.has(kind) && seen.add(kind);
  const kind = (token) => token.className + getComputedStyle(token.closest("pre")).backgroundColor;
  const tokens = [...document.querySelectorAll("pre span[class]")].filter((token) => !first(kind(token))).map((e) => [e, e.textContent]);
  window.spared = [...rows, ...tokens].map(([element, text]) => [element, document.createTextNode(text)]);
  window.spared.forEach(([element, text]) => element.replaceWith(text));
}"""
"""Hundreds of rows and runs and thousands of words of code are made alike, and axe takes half a minute for them: it gets a few of each."""
BACK = "() => window.spared.forEach(([element, text]) => text.replaceWith(element))"
FOCUSABLE = """() => [...document.querySelectorAll(".bd-article .output, .bd-article pre")]
  .every((e) => e.scrollWidth <= e.clientWidth || e.tabIndex >= 0)"""
CUT_OFF = """() => {
  const told = (e) => `${e.tagName} ${e.className} ${(e.currentSrc || e.textContent).slice(0, 60)}`;
  const shown = (selector) => [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility());
  const wide = shown("figure, img, table, pre, .vq, .verdict-box, .verdict-strip, .verdict-tile, .claim-ref")
    .filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5);
  const inside = shown("pre, .claims-wrap, .cell_output, .pst-scrollable-table-container").filter((e) => e.scrollWidth > e.clientWidth + 1);
  const small = shown(".cell_output figure img[src*='.svg']").filter((i) => i.clientWidth < 0.85 * i.naturalWidth);
  const unnamed = shown("table.blocks").filter((t) => [...t.tBodies[0].rows].some((row) =>
    row.lastElementChild.dataset.label !== [...t.tHead.rows].map((r) => r.lastElementChild.textContent.trim()).filter(Boolean).join(", ")));
  return [...wide.map((e) => "cut off: " + told(e)), ...inside.map((e) => "scrolls: " + told(e)),
    ...small.map((e) => "small letters: " + told(e)), ...unnamed.map((e) => "no name: " + told(e))];
}"""


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_sound_in_every_form(page, site, name):
    """At three widths, and dark: no error, nothing asked of others, no sideways scroll, folds open too, nothing cut off on a
    phone, no serious or critical violation that axe knows of."""
    path = next(site.glob(f"{name}.html"))
    found, folds, whys = (
        [],
        page.locator("details:not(.claim-why)"),
        page.locator("details.claim-why"),
    )
    turn = "(folds, open) => folds.forEach((fold) => (fold.open = open))"
    _open(page, site, path.relative_to(site).as_posix())
    if formulas := page.locator(".math").count():
        page.wait_for_function(
            f"document.querySelectorAll('.math mjx-container').length >= {formulas}",
            timeout=60_000,
        )
        assert page.locator("mjx-merror, [data-mjx-error]").count() == 0, (
            "a formula that TeX does not understand"
        )
    for scheme, width in FORMS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        folds.evaluate_all(turn, True)
        whys.evaluate_all(turn, True)
        page.wait_for_timeout(
            400
        )  # the theme lays out a new size, and makes boxes that scroll focusable, within 0.3 seconds
        with suppress(
            PlaywrightTimeout
        ):  # or later, on a busy machine; axe then says what never was
            page.wait_for_function(FOCUSABLE, timeout=3000)
        wide = page.evaluate("document.documentElement.scrollWidth")
        found += [f"{scheme}, {width}: {wide} px wide"] if wide > width else []
        found += (
            [f"{scheme}: {said}" for said in page.evaluate(CUT_OFF)] if width == 390 else []
        )
        whys.evaluate_all(turn, False)
        page.evaluate(SPARE)
        asked = {
            "rules": {"label-content-name-mismatch": {"enabled": True}},
            "resultTypes": ["violations"],
            "preload": False,
        }
        if only := ONLY.get((scheme, width)):
            asked |= {"rules": {}, "runOnly": only}
        violations = Axe().run(page, options=asked).response["violations"]
        page.evaluate(BACK)
        for broken in violations:
            if broken["impact"] in ("serious", "critical"):
                found.append(
                    f"{scheme}, {width}: {broken['id']}: {[node['html'][:120] for node in broken['nodes'][:2]]}"
                )
    assert found + page.wrong == []


@pytest.mark.browser
def test_links_open_their_folds_and_paper_has_none_and_is_white(page, pages, site):
    page.emulate_media(color_scheme="dark")
    for path, soup in pages.items():
        if path.parent.name != "papers":
            continue
        row = soup.select_one("details.fold:not([open]) tr[id^=claim-]")["id"]
        _open(page, site, f"book/papers/{path.name}", f"#{row}")
        assert page.locator(f"[id='{row}']").is_visible(), "a link into a fold opens it"
        page.emulate_media(media="print")
        page.wait_for_function("document.documentElement.dataset.theme === 'light'")
        assert page.locator("details.fold:not([open])").count() == 0, "paper has no folds"
        assert (
            page.locator(".cell_output figure img").first.evaluate(
                "i => getComputedStyle(i).filter"
            )
            == "none"
        )
        page.emulate_media(media="screen")
        page.wait_for_function("document.documentElement.dataset.theme === 'dark'")


@pytest.mark.browser
def test_search_works_from_files_and_finds_a_claim_on_the_scorecard(page, site):
    _open(page, site, "search.html", "?q=EM-X-params-main")
    page.wait_for_selector("#search-results li a[href*=scorecard]", timeout=15_000)
    assert not [w for w in page.wrong if w.startswith("asked for")]


@pytest.mark.browser
def test_scorecard_filter(page, site):
    rows, shown = len(ledger()), "#scorecard-table tbody tr:visible"
    ours = len(ledger("negation_limitation"))
    _open(page, site, "book/scorecard.html")
    statuses = set(page.locator(shown).evaluate_all("rows => rows.map(r => r.dataset.status)"))
    assert statuses
    assert not statuses & set(GROUPS["not run"]), "at first it shows whatever was run"
    page.click(".score-filter button")
    page.wait_for_function(
        f"document.querySelector('.score-count').textContent === 'all {rows} claims'"
    )
    assert page.locator(shown).count() == rows
    for group in (CAPSULES, BASELINES):
        page.select_option("select[name=status]", f"{claims.SHAPES[group]} reproduced")
        found = page.locator(shown).evaluate_all(
            "rows => rows.map(r => [r.dataset.group, r.dataset.status])"
        )
        assert found
        assert set(map(tuple, found)) == {(claims.SHAPES[group], "reproduced")}, (
            "baselines are no capsule networks"
        )
    page.select_option("select[name=status]", "")
    page.select_option("select[name=paper]", "negation_limitation")
    assert page.locator(shown).count() == ours
    assert page.locator(".score-count").inner_text() == f"{ours} of {rows} claims"
    _open(page, site, "book/how_to_read.html")
    _open(page, site, "book/scorecard.html")
    assert page.locator(shown).count() == ours, (
        "the filter stays while the reader looks at other pages"
    )
    page.fill("input[name=text]", "neg-t1-rba")
    assert page.locator(shown).count() == 2
    page.click(".score-filter button")
    page.wait_for_function(
        f"document.querySelector('.score-count').textContent === 'all {rows} claims'"
    )
    _open(page, site, "book/scorecard.html", "?paper=em_routing&where=Table 1")
    assert set(
        page.locator(shown).evaluate_all(
            "rows => rows.map(r => r.dataset.paper + r.dataset.where)"
        )
    ) == {"em_routingTable 1"}
    _open(page, site, "book/scorecard.html", "?paper=em_routing#claim-NEG-T1-rba-bias")
    assert page.locator("#claim-NEG-T1-rba-bias").is_visible(), (
        "a link to a claim wins over the filter"
    )
    assert not page.wrong


@pytest.mark.browser
def test_scorecard_sorts(page, site):
    _open(page, site, "book/scorecard.html", "?paper=negation_limitation")
    values = "rows => rows.filter(r => !r.hidden).map(r => parseFloat(r.cells[1].textContent.replace('−', '-'))).filter(x => !isNaN(x))"
    for direction, rising in (("ascending", True), ("descending", False)):
        page.click("#scorecard-table th:nth-child(2) button")
        assert page.get_attribute("#scorecard-table th:nth-child(2)", "aria-sort") == direction
        found = page.locator("#scorecard-table tbody tr").evaluate_all(values)
        assert len(found) > 20
        assert found == sorted(found, reverse=not rising)
    page.click("#scorecard-table th:nth-child(1) button")
    ids = page.locator("#scorecard-table tbody tr:visible .claim-id").all_inner_texts()
    assert ids.index("NEG-W-2") < ids.index("NEG-W-10"), "numbers inside ids count as numbers"


@pytest.mark.browser
def test_scorecard_without_scripts(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "book/scorecard.html").as_uri())
    assert page.locator("#scorecard-table tbody tr:visible").count() == len(ledger())
    assert not page.locator(".score-filter").is_visible()
    context.close()


@pytest.mark.browser
def test_squares_speak_to_the_keyboard(page, site):
    _open(page, site, "book/intro.html")
    page.keyboard.press("Tab")  # from here on the browser shows where the focus is
    square = page.locator(".matrix-row a.vq").first
    square.focus()
    told = square.evaluate("s => getComputedStyle(s, '::after').content")
    assert square.get_attribute("aria-label") in told
    box = square.evaluate("s => [s.parentElement.getBoundingClientRect().right, innerWidth]")
    assert box[0] <= box[1]


CONTRAST = """() => {
  const channel = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = rgb => { const [r, g, b] = rgb.match(/[\\d.]+/g).map(Number); return 0.2126*channel(r)+0.7152*channel(g)+0.0722*channel(b); };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const sheet = getComputedStyle(document.body).backgroundColor;
  const found = {};
  for (const classes of SQUARES) {
    const square = document.createElement("span");
    square.className = classes;
    document.querySelector(".verdict-note").append(square);
    const style = getComputedStyle(square);
    found[classes] = ratio(style.color, FULL.includes(classes) ? style.backgroundColor : sheet);
    square.remove();
  }
  for (const selector of ["main p", "small", ".verdict-note", "main a.matrix-name", ".chapter-card p"])
    found[selector] = ratio(getComputedStyle(document.querySelector(selector)).color, sheet);
  return found;
}"""


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(page, site, scheme):
    page.emulate_media(color_scheme=scheme)
    _open(page, site, "book/intro.html")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    squares = [
        claims.classes(status, group) for group, words in GROUPS.items() for status in words
    ]
    full = [
        claims.classes(status, group)
        for group in (CAPSULES, BASELINES, EXACT)
        for status in GROUPS[group]
    ]
    asked = CONTRAST.replace("SQUARES", repr(squares)).replace("FULL", repr(full))
    low = {name: ratio for name, ratio in page.evaluate(asked).items() if ratio < 4.5}
    assert not low

"""What the pages say about claims: numbers as text, squares, tables, sources."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup
from capsbook import evidence, fixed_options, render, sources, templating

from capslib.lab import claims
from capslib.lab.headlines import headlines
from capslib.lab.ledger import ledger
from capslib.lab.words import CAPSULES, GROUPS, NOT_RUN, REDUCED, STATUSES, Verdict
from capslib.papers import PAPERS

ROOT = Path(__file__).parents[2]
CLAIM = ledger()["NEG-T1-rba-bias"]
NBSP = "\N{NO-BREAK SPACE}"


class Links:
    """The addresses of a book whose chapters are not written."""

    book = SimpleNamespace(chapters={})

    def row(self, claim):
        return f"#claim-{claim.id}"

    def place(self, claim):
        return f"chapter.html#claim-{claim.id}"

    def score(self, suffix=""):
        return f"scorecard.html{suffix}"

    def runs(self, anchor):
        return f"records.html#{anchor}"

    def record(self, run):
        return f"{run.path.stem}.json"

    def chapter(self, stem):
        return None

    def file(self, path):
        return f"/{path}"


@pytest.fixture(scope="module")
def nothing(tmp_path_factory) -> evidence.Evidence:
    """The evidence of an empty folder of records."""
    return evidence.load(tmp_path_factory.mktemp("results"))


@pytest.fixture
def verdict() -> Verdict:
    return Verdict(
        CLAIM,
        "reproduced",
        "It does.",
        ours=99.8123,
        interval=(99.5, 100.0),
        unit="percent",
        n=5,
        scale="paper",
        records=("k1", "k2"),
    )


def draw(template: str, evidence: evidence.Evidence, **values) -> BeautifulSoup:
    html = templating.draw(template, evidence=evidence, links=Links(), **values)
    return BeautifulSoup(html, "html.parser")


def row(verdict: Verdict, evidence: evidence.Evidence, **options) -> BeautifulSoup:
    return draw(
        "claims-table", evidence, verdicts=[verdict], **{"whole": False, **options}
    ).tbody.tr


def test_every_verdict_has_a_sign_and_a_colour():
    assert list(claims.GLYPHS) == list(STATUSES)
    only_round_ones_share = len(STATUSES) - 2  # holds and fails
    assert len(set(claims.GLYPHS.values())) == only_round_ones_share
    style = (ROOT / "book/_static/capsules.css").read_text(encoding="utf-8")
    for status in STATUSES:
        assert f".v-{status.replace(' ', '-')} " in style, status


def test_numbers_as_text(verdict):
    assert claims.ours(verdict) == f"99.81{NBSP}% [99.50, 100]"
    assert claims.theirs(verdict) == f"99.70{NBSP}%"
    assert claims.basis(verdict) == "n = 5, full size"
    assert claims.ours(Verdict(CLAIM, "waiting", "")) == "not run"
    exact = Verdict(CLAIM, "holds", "", n=3, scale="cpu", exact=True)
    assert claims.basis(exact) == "", "a count is no mean"
    undecided = Verdict(CLAIM, "undecided", "", n=3, scale="cpu", derived=("x: y",))
    assert claims.ours(undecided) == "undecided"
    assert claims.basis(undecided) == "n = 3, small networks, derived data"
    by_seed = Verdict(CLAIM, "measured", "", by_seed=(80, 10.5), unit="percent", scale="cpu")
    assert claims.ours(by_seed) == f"80 · 10.50{NBSP}%"
    failed = Verdict(CLAIM, "contradicted", "", scale="paper")
    count = replace(failed, parts=(verdict, failed), reason="Of 2 parts 1 hold.")
    assert claims.ours(count) == "1 of 2 parts holds, 1 fails"
    assert claims.describe(count).endswith("Of 2 parts 1 hold. full size")


def test_a_square_names_its_claim_and_leads_to_it(verdict):
    square = BeautifulSoup(claims.seal(verdict), "html.parser").a
    assert square["href"] == "#claim-NEG-T1-rba-bias"
    assert square["class"] == ["vq", "v-reproduced", "of-own-size"]
    assert f"99.81{NBSP}%" in square["aria-label"]
    assert square.text == "✓"
    html = claims.seal(verdict, "other.html?a&b#c", with_id=True)
    link = BeautifulSoup(html, "html.parser").a
    assert link["href"] == "other.html?a&b#c"
    assert link.code.text == CLAIM.id, "the id is part of the link"
    assert link.select_one(".v-reproduced")


def test_a_row_leads_to_what_stands_behind_the_verdict(nothing):
    claim = CLAIM.model_copy(update={"statement": '<b>"A" & B</b>'})
    part = Verdict(claim, "opposite order", "<i>No</i>.", name="depth 3", scale="cpu")
    verdict = Verdict(
        claim,
        "undecided",
        "",
        records=("k1",),
        parts=(part,),
        scale="cpu",
        shares=("NEG-W-1",),
        derived=("norb: halved", "mnist: a part"),
    )
    nothing.hours[CLAIM.id] = 7.2
    cells = row(verdict, nothing)
    text = " ".join(cells.text.split())
    for words in (
        '<b>"A" & B</b>',
        "depth 3: opposite order. <i>No</i>.",
        "why, 1 part, 1 run",
        "Derived data: norb: halved; mnist: a part.",
        "about 7 hours of one CPU core",
        "shares runs with 1 other claim",
    ):
        assert words in text
    assert cells.a["href"] == "chapter.html#claim-NEG-T1-rba-bias"
    assert row(verdict, nothing, whole=True)["id"] == "claim-NEG-T1-rba-bias"


def test_every_claim_is_on_the_scorecard_and_the_matrix(nothing):
    nothing.verdicts[CLAIM.id] = replace(nothing.verdicts[CLAIM.id], status="holds", exact=True)
    rows = draw("scorecard", nothing).select("tbody > tr")
    assert sorted(row["id"] for row in rows) == sorted(f"claim-{name}" for name in ledger())
    assert rows[0]["id"] == f"claim-{CLAIM.id}", "a decided claim comes first"
    matrix = draw("verdict-matrix", nothing)
    tiles = [int(tile.b.text) for tile in matrix.select(".verdict-tile")]
    assert min(tiles) >= render.TILE
    assert len(matrix.select("a.vq")) + sum(tiles) == len(ledger())
    rows = draw("paper-rows", nothing).text
    for paper in PAPERS.values():
        assert paper.short in matrix.text
        assert paper.claim in rows


def test_totals_keep_the_weights_of_verdicts_apart(verdict):
    reduced = Verdict(CLAIM, "same order", "", scale="cpu")
    waiting = Verdict(CLAIM, "waiting", "")
    groups = render.ranked([waiting, reduced, verdict])
    assert [group[0].group for group in groups] == [CAPSULES, REDUCED, NOT_RUN]
    assert render.counted([reduced, reduced]) == [(REDUCED, "same order", 2)]
    assert set(GROUPS) > {CAPSULES, REDUCED}


def test_a_row_has_the_values_without_their_units(verdict, nothing):
    for ours, text in ((-1234.5, "-1234.5"), (0.0, "0.0"), (None, "")):
        shown = row(replace(verdict, ours=ours), nothing)
        assert shown["data-theirs"] == str(CLAIM.value)
        assert shown["data-ours"] == text


def test_comparisons_count_each_interval_once_and_full_size_apart():
    def verdict(status, *keys, scale="cpu"):
        between = {"ours": 0.5, "interval": (0.4, 0.6), "records": keys, "scale": scale}
        return Verdict(CLAIM, status, "", **between)

    part, second = verdict("same order", "a", "b"), verdict("undecided", "b", "c")
    count = Verdict(CLAIM, "undecided", "", parts=(part, second), scale="cpu")
    open_elsewhere = verdict("undecided", "a", "b")
    verdicts = [part, count, verdict("measured", "d"), Verdict(CLAIM, "waiting", "")]
    small = "in small networks or on other data"
    assert f": 1 of 2 {small}." in render.comparisons([*verdicts, open_elsewhere])
    full = verdict("reproduced", "e", scale="paper")
    assert f": 1 of 1 at full size, 1 of 1 {small}." in render.comparisons([part, full])
    thousand = [verdict("undecided", str(key)) for key in range(1000)]
    assert f": 0 of 1,000 {small}." in render.comparisons(thousand)
    assert render.comparisons([]) == "No run is compared with anything yet."


def test_a_headline_in_words_counts_the_parts_of_all_its_claims(verdict):
    part = Verdict(CLAIM, "undecided", "", scale="cpu")
    rows = {}
    for claim in ("EM-W-2", "EM-W-3"):
        rows[claim] = replace(part, claim=ledger()[claim], parts=(part, part))
    (attacks,) = [headline for headline in headlines() if headline.id == "EM-H-attacks"]
    assert render.all_parts(attacks, rows) == "all 4 parts are undecided"
    shared = replace(part, name="FGSM", records=("a", "b"))
    for claim, own in (("EM-W-2", "c"), ("EM-W-3", "d")):
        other = replace(shared, records=(own,))
        rows[claim] = replace(rows[claim], parts=(shared, other))
    assert render.all_parts(attacks, rows) == "all 3 parts are undecided", "one is shared"
    (sign,) = [headline for headline in headlines() if headline.id == "NEG-H-sign"]
    assert render.all_parts(sign, {CLAIM.id: verdict}) == "", "it has a number"


BENCHMARK = dict(
    kind="layer",
    name="a layer",
    path="fast",
    milliseconds="150.04",
    peak_mib="3.5",
    faster="2.0",
    agrees="",
    times_limit="9.5",
    bound_by="arithmetic",
    gflop="1.5",
    machine="a machine",
    torch="2.13",
    date="2026-11-21",
    copy_gb_per_second="30.0",
    vector_gflop_per_second="60",
    matrix_gflop_per_second="178",
)


def machine(template: str, rows: list[dict[str, str]]) -> BeautifulSoup:
    return BeautifulSoup(templating.draw(template, machines=[rows]), "html.parser")


def cells(page: BeautifulSoup) -> list[list[str]]:
    return [[cell.text for cell in row.select("th, td")] for row in page.select("tr")]


def test_a_table_has_a_group_for_each_case_and_a_limit_for_routings_only():
    layers = machine("benchmarks", [BENCHMARK, BENCHMARK | {"path": "compiled"}])
    assert "30.0 GB/s, computes on vectors at 60 GFLOP/s" in layers.text
    head, case, first, second = cells(layers)
    assert head == ["path", "ms", "speed, first = 1", "peak MiB", "time ÷ limit"]
    assert case == ["a layer: 1.5 GFLOP, limited by arithmetic"]
    assert first == ["fast", "150", "2.0 ×", "3.5", "9.5"]
    assert second == ["compiled", *first[1:]]
    head, case, row = cells(
        machine("benchmarks", [BENCHMARK | {"times_limit": "", "gflop": ""}])
    )
    assert (head, case) == (["path", "ms", "speed, first = 1", "peak MiB"], ["a layer"])
    assert len(row) == 4


def test_memory_that_was_not_measured_is_a_dash():
    *_, row = cells(machine("benchmarks", [BENCHMARK | {"peak_mib": ""}]))
    assert row == ["fast", "150", "2.0 ×", "–", "9.5"]


PUBLIC = BENCHMARK | {"kind": "shared", "path": "owner/name", "times_limit": "", "gflop": ""}


def test_a_public_repository_is_linked_and_says_what_it_has_in_common():
    rows = [PUBLIC | {"path": "fast"}]
    rows += [PUBLIC | {"agrees": agrees} for agrees in ("", "output", "gradient")]
    page = machine("benchmarks", rows)
    links = [link["href"] for link in page.select("td a")]
    assert links == ["https://github.com/owner/name"] * 3
    assert [row[0] for row in cells(page)[2:]] == [
        "fast",
        "owner/name",
        "owner/name the same poses",
        "owner/name the same poses and gradients",
    ]
    bars = machine("bars", [PUBLIC]).select_one(".bars-row")
    assert bars.select_one("span").text == "owner"
    assert bars.select_one(".bar-public")


def test_the_answer_compares_what_gives_the_same_and_has_the_range_of_the_limit():
    measured = [
        ("fast", "60", ""),
        ("compiled", "20", ""),
        ("slow/same", "900", "gradient"),
        ("owner/name", "150", "gradient"),
        ("no/gradient", "100", "output"),
        ("other/rule", "50", ""),
    ]
    rows = []
    for path, time, agrees in measured:
        rows.append(PUBLIC | {"path": path, "milliseconds": time, "agrees": agrees})
    compiled = BENCHMARK | {"path": "compiled"}
    rows += [compiled, compiled | {"times_limit": "3.0"}, BENCHMARK | {"times_limit": "70.0"}]
    texts = [" ".join(item.text.split()) for item in machine("answer", rows).select("li")]
    (shared, limit) = texts
    assert "20.0 ms with capslib, on its compiled path" in shared
    assert "with the same poses and gradients, owner/name, takes 150 ms" in shared
    assert "7.5 times as long" in shared
    assert "3.0 to 9.5 times" in limit
    assert len(machine("answer", [PUBLIC | {"path": "fast"}]).select("li")) == 1


def test_the_bar_of_a_path_is_as_long_as_its_share_of_the_slowest():
    times = {"eager": "3400", "fast": "850", "compiled": "8.5"}
    rows = [BENCHMARK | {"path": path, "milliseconds": time} for path, time in times.items()]
    page = machine("bars", rows)
    assert [bar["style"] for bar in page.select(".bar")] == [
        "width: 100%",
        "width: 25%",
        "width: 0.25%",
    ]
    labels = [row.select("span")[-1].text for row in page.select(".bars-row")]
    assert labels == ["3,400 ms", "850 ms", "8.5 ms"]


MODULE = '''import functools


@functools.cache
def f(x):
    """Doc.

    More.
    """

    return x


class C:
    """Doc."""

    def m(self):
        return 1


LIMIT = 3
'''
TESTS = """class TestC:
    def test_m(self):
        pass


def helper():
    pass


@check
def holds():
    pass
"""


@pytest.fixture
def repository(tmp_path) -> Path:
    for name, text in {
        "pack/__init__.py": "def top():\n    pass\n",
        "pack/mod.py": MODULE,
        "tests/test_mod.py": TESTS,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pack.mod.f", "@functools.cache\ndef f(x):\n    return x\n"),
        ("pack.mod.C.m", "def m(self):\n    return 1\n"),
        ("pack.mod.LIMIT", "LIMIT = 3\n"),
        ("pack.top", "def top():\n    pass\n"),
    ],
)
def test_live_source(repository, name, text):
    source = sources.find_source(repository, name)
    assert source.text == text
    lines = source.path.read_text(encoding="utf-8").splitlines()
    assert lines[source.line - 1].strip() == text.splitlines()[0]


def test_live_source_with_its_docstring(repository):
    assert '"""Doc.' in sources.find_source(repository, "pack.mod.f", docstring=True).text


def test_a_listing_knows_its_place_in_the_api_reference(repository):
    (repository / "pack" / "__init__.py").write_text(
        '__all__ = ["f"]\nfrom pack.mod import f\n\n\ndef top():\n    pass\n', encoding="utf-8"
    )
    assert sources.in_api(repository, "pack.mod.f") is None, "there is no reference yet"
    (repository / sources.API).mkdir(parents=True)
    page = "```{eval-rst}\n.. automodule:: pack\n   :members:\n```\n"
    (repository / sources.API / "pack.md").write_text(page, encoding="utf-8")
    assert sources.in_api(repository, "pack.mod.f") == "pack.f"
    assert sources.in_api(repository, "pack.top") is None, "it is private"
    assert sources.in_api(repository, "pack.mod.C.m") is None


@pytest.mark.parametrize("name", ["pack.mod.g", "pack.mod.C.n", "nowhere.f", "pack.gone.f"])
def test_missing_source(repository, name):
    with pytest.raises(sources.SourceNotFound):
        sources.find_source(repository, name)


def test_tests_are_found(repository):
    file = "tests/test_mod.py"
    assert sources.find_test(repository, f"{file}::TestC::test_m[float64]").line == 2
    check = sources.find_test(repository, f"{file}::holds")
    assert check.line == 11, "a check of a suite that a test runs"
    for name in (f"{file}::TestC::test_n", f"{file}::helper", "tests/gone.py::test_m", file):
        with pytest.raises(sources.SourceNotFound):
            sources.find_test(repository, name)


OPTIONS = """def f(
    x, *, bias: Tensor | None = None, rate: float = 0.0,
    vector: bool = False, kind="plain",
):  # kept
    # Without the bias means are
    # those of the votes.
    μ = g(x[..., 0], bias) - (0 if bias is None else bias)  # σ
    if kind == "other":
        # odd
        μ = -μ

        for _ in range(2):
            μ = μ + 1
    elif x.any():
        μ = 2 * (μ + 1)
    μ = (1 - rate) * (μ + 1) * 2 + rate * x
    if bias is not None:
        return None
    return _finish(μ, bias=bias, vector=vector, kind=kind)  # done
"""
FOLDED = """def f(
    x, *,
    kind="plain",
):  # kept
    μ = g(x[..., 0])  # σ
    if kind == "other":
        # odd
        μ = -μ

        for _ in range(2):
            μ = μ + 1
    elif x.any():
        μ = 2 * (μ + 1)
    μ = (μ + 1) * 2
    return _finish(μ, kind=kind)  # done
"""
LAYER = """class Layer(Module):
    def __init__(self, size, transform="linear", *, deep=False):
        self.size, self.transform = size, transform
        self.deep = deep
        self.weight = start(size)
        if transform == "bounded":
            self.weight = near(size)

    def forward(self, x):
        make = bounded if self.transform == "bounded" else votes
        x = (turned(x) if self.deep else x).mT
        x = turned(x) if self.deep else x
        return make(x, self.transform)
"""
PLAIN = """class Layer(Module):
    def __init__(self, size):
        self.size = size
        self.weight = start(size)

    def forward(self, x):
        make = votes
        x = x.mT
        return make(x)
"""
BRANCHES = """def f({parameters}):
    if {n} == 0:
        a()
    else:
        b()
    return {n} or -{n}
"""


@pytest.mark.parametrize(
    ("text", "options", "listing"),
    [
        (OPTIONS, "bias=None rate=0.0 vector=False", FOLDED),
        (OPTIONS, "", OPTIONS),
        (LAYER, 'transform="linear" deep=False', PLAIN),
        (
            BRANCHES.format(parameters="x, n=0", n="n"),
            "n=0",
            BRANCHES.format(parameters="x", n="0"),
        ),
        (
            "def f(x, n=3):\n    return x.sum(n) + sum(range(n)) + 1 // (n - 3)\n",
            "n=3",
            "def f(x):\n    return x.sum(3) + sum(range(3)) + 1 // (3 - 3)\n",
        ),
    ],
)
def test_a_listing_leaves_out_what_its_page_does_not_use(text, options, listing):
    assert fixed_options.fix(text, fixed_options.parse(options)) == listing


@pytest.mark.parametrize("options", ["beta=1", "bias=unread(", "bias None", "μ=1"])
def test_an_option_that_is_not_there_is_refused(repository, options):
    changed = OPTIONS.replace("bias: Tensor", "μ: int = 0, bias: Tensor")
    (repository / "pack/options.py").write_text(changed, encoding="utf-8")
    with pytest.raises(sources.SourceNotFound, match=r"pack/options.py, f: "):
        sources.find_source(repository, "pack.options.f", options=options)


def test_code_that_a_page_shows_fits_its_column():
    pages = [*ROOT.glob("notebooks/*.py"), *ROOT.glob("book/*.md")]
    option = r"(?:# )?:(?!given)[\w-]+:.*\n"
    listing = re.compile(rf"{{live-source}} (\S+)\n(?:{option})*(?:(?:# )?:given: (.*)\n)?")
    listings = set()
    for page in pages:
        listings.update(listing.findall(page.read_text(encoding="utf-8")))
    assert len(listings) > 20
    for name, options in listings:
        text = sources.find_source(ROOT, name, options=options).text
        assert max(map(len, text.splitlines())) <= 96, name

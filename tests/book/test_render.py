"""What the pages say about claims: numbers as text, squares, tables, sources."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from capsbook import evidence, folding, render, sources

from capslib.lab import claims
from capslib.lab.ledger import ledger
from capslib.lab.words import CAPSULES, GROUPS, NOT_RUN, REDUCED, STATUSES, Verdict
from capslib.papers import PAPERS

CLAIM = ledger()["NEG-T1-rba-bias"]


class Links:
    def row(self, claim):
        return f"#claim-{claim}"

    def place(self, claim):
        return f"chapter.html#claim-{claim}"

    def score(self, query=""):
        return f"scorecard.html?{query}"

    def record(self, key):
        return f"records/{key}.html"

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


def test_every_verdict_has_a_sign_and_a_colour():
    assert list(claims.GLYPHS) == list(STATUSES)
    assert len(set(claims.GLYPHS.values())) == len(STATUSES) - 2, (
        "only holds and fails, which are round, share a sign"
    )
    style = (Path(evidence.__file__).parents[2] / "_static" / "capsules.css").read_text(
        encoding="utf-8"
    )
    for status in STATUSES:
        assert f".v-{status.replace(' ', '-')} " in style, status


def test_numbers_as_text(verdict):
    assert claims.ours(verdict) == "99.81\N{NO-BREAK SPACE}% [99.50, 100]"
    assert claims.theirs(verdict) == "99.70\N{NO-BREAK SPACE}%"
    assert claims.basis(verdict) == "n = 5, paper scale"
    assert claims.ours(Verdict(CLAIM, "waiting", "")) == "not run"
    assert claims.ours(Verdict(CLAIM, "undecided", "", scale="cpu")) == "undecided"
    assert (
        claims.ours(
            Verdict(CLAIM, "measured", "", listed=(80, 10.5), unit="percent", scale="cpu")
        )
        == "80 · 10.50\N{NO-BREAK SPACE}%"
    )
    assert (
        claims.basis(Verdict(CLAIM, "undecided", "", n=3, scale="cpu", derived="x: y"))
        == "n = 3, cpu scale, derived data"
    )
    count = Verdict(
        CLAIM,
        "contradicted",
        "",
        parts=(verdict, Verdict(CLAIM, "contradicted", "", scale="paper")),
        scale="paper",
    )
    assert claims.ours(count) == "1 of 2 parts holds, 1 fails"
    assert claims.describe(replace(count, reason="Of 2 parts 1 hold.")).endswith(
        "Of 2 parts 1 hold. paper scale"
    )


def test_square_names_its_claim(verdict):
    html = claims.seal(verdict)
    assert 'href="#claim-NEG-T1-rba-bias"' in html
    assert 'href="other.html?a&amp;b#c"' in claims.seal(verdict, "other.html?a&b#c")
    assert 'class="vq v-reproduced of-own-size"' in html
    assert "aria-label=" in html
    assert "99.81\N{NO-BREAK SPACE}%" in html
    assert ">✓<" in html
    (named,) = BeautifulSoup(claims.seal(verdict, named=True), "html.parser").select("a")
    assert named.code.text == CLAIM.id, "the id is part of the link"
    assert named.select_one(".v-reproduced")


def test_text_is_escaped(verdict):
    claim = CLAIM.model_copy(update={"statement": '<b>"A" & B</b>'})
    row = render.row(Verdict(claim, "waiting", "<i>"), Links(), None)
    assert "<b>" not in row
    assert "<i>" not in row
    assert "&lt;b&gt;" in row


def test_row_leads_to_records_and_parts(verdict):
    part = Verdict(CLAIM, "opposite order", "No.", name="depth 3", scale="cpu")
    found = Verdict(
        CLAIM,
        "undecided",
        "",
        records=("k1",),
        parts=(part,),
        scale="cpu",
        shares=("NEG-W-1",),
        derived="norb: halved",
    )
    row = render.row(found, Links(), "claim-x", chapter_link=True, hours=7.2)
    assert 'id="claim-x"' in row
    assert 'href="records/k1.html"' in row
    assert "depth 3: opposite order. No." in row
    assert "shares runs with 1 claim" in row
    assert "why, 1 part, 1 run" in row
    assert "Derived data: norb: halved." in row
    assert "about 7 hours of one CPU core" in row
    assert 'href="chapter.html#claim-NEG-T1-rba-bias"' in row


def test_every_claim_is_on_the_scorecard_and_the_matrix(nothing):
    score = render.scorecard(nothing, Links())
    ids = re.findall(r'<tr id="claim-([^"]+)"', score)
    assert sorted(ids) == sorted(ledger())
    matrix = render.matrix(nothing, Links())
    squares = len(re.findall(r'<a [^>]*class="vq', matrix))
    tiles = [int(n) for n in re.findall(r"verdict-tile\".*?<b>(\d+)</b>", matrix)]
    assert squares + sum(tiles) == len(ledger())
    for paper in PAPERS.values():
        assert paper.short in matrix
        assert paper.title in render.cards(nothing, Links(), {})


def test_a_large_paper_has_tiles_for_its_tables_and_squares_for_the_rest(nothing):
    stem, matrix = "inequality_anomaly", render.matrix(nothing, Links())
    tiles = [int(n) for n in re.findall(r"verdict-tile\".*?<b>(\d+)</b>", matrix)]
    assert min(tiles) >= render.TILE
    ids = {v.claim.id for v in nothing.of(stem)}
    squares = [i for i in re.findall(r'class="vq[^>]*aria-label="([^:]+):', matrix) if i in ids]
    assert sum(tiles) + len(squares) == len(ids)


def test_decided_claims_come_first(nothing):
    some = dict(nothing.verdicts)
    for name, status, scale in (
        ("NEG-W-8", "same order", "cpu"),
        ("NEG-W-1", "holds", "cpu"),
        ("NEG-T1-em-bias", "better", "paper"),
    ):
        some[name] = replace(some[name], status=status, scale=scale, exact=status == "holds")
    found = replace(nothing, verdicts=some)
    order = re.findall(r'<tr id="claim-([^"]+)"', render.scorecard(found, Links()))
    assert order[:3] == ["NEG-T1-em-bias", "NEG-W-1", "NEG-W-8"]
    squares = re.findall(
        r'aria-label="([^:]+):',
        render.strip(found.of("negation_limitation"), Links(), "x").partition(">")[2],
    )
    assert squares[:3] == order[:3]


def test_totals_stand_group_by_group_and_are_never_added_up(verdict):
    some = [
        verdict,
        *(Verdict(CLAIM, "same order", "", scale="cpu"),) * 3,
        Verdict(CLAIM, "quoted", ""),
    ]
    lines = re.findall(r'group-name">([^<]+)<.*?<ul>(.*?)</ul>', render.totals(some))
    assert [name for name, _ in lines] == list(GROUPS)
    counts = {
        (group, status): int(n)
        for group, items in lines
        for status, n in re.findall(r"</span> ([a-z ]+) <b>(\d+)</b>", items)
    }
    expected = {(CAPSULES, "reproduced"): 1, (REDUCED, "same order"): 3, (NOT_RUN, "quoted"): 1}
    assert {key: n for key, n in counts.items() if n} == expected
    assert set(counts) == {
        (group, status) for group, words in GROUPS.items() for status in words
    }
    assert "4" not in re.sub(r"<[^>]*>", "", render.totals(some))
    few = render.totals(some, every=False)
    assert "contradicted" not in few
    assert "theorems" not in few
    assert "has been trained at its size" not in few
    assert "no capsule network of this paper has been trained at its size" in render.totals(
        some[1:], every=False
    )


def test_fingerprint_follows_the_records(nothing, tmp_path, add_records):
    assert evidence.load(tmp_path).fingerprint == nothing.fingerprint
    add_records(tmp_path)
    later = evidence.load(tmp_path)
    assert later.fingerprint != nothing.fingerprint
    assert later.verdicts["NEG-T1-rba-bias"].status == "reproduced"
    assert len(later.cited("negation_limitation")) == 3
    assert "3 records" in render.standing(later, "negation_limitation")


BENCHMARK = dict(
    kind="layer",
    name="a layer",
    path="fast",
    milliseconds="150.04",
    peak_mib="3.5",
    faster="2.0",
    memory_share="0.125",
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


def test_a_layers_table_names_what_sets_its_limit_and_a_steps_has_none():
    head, _, columns, _, one, two, _ = render.benchmarks([BENCHMARK, BENCHMARK])
    assert "30.0 GB/s, computes on vectors at 60 GFLOP/s and" in head
    assert columns.endswith("| GFLOP | times the limit | limit set by |")
    assert (
        one
        == "| a layer | fast | 150 | 2.0 | 3.5 | 12\N{NO-BREAK SPACE}% | 1.5 | 9.5 | arithmetic |"
    )
    assert two.startswith("|  | fast |")
    step = render.benchmarks([BENCHMARK | {"times_limit": "", "gflop": ""}])
    assert step[2] == "| case | path | ms | times as fast | peak MiB | of the first |"
    assert render.benchmarks([]) == []


def test_a_table_without_the_vector_rate_bounds_its_limits_by_that_of_matrix_products():
    """178 GFLOP at 178 GFLOP/s and 30 GB at 30 GB/s take a second each."""
    old = {
        k: v for k, v in BENCHMARK.items() if k not in ("vector_gflop_per_second", "bound_by")
    }
    counted = ({"gflop": "356", "gigabytes": "30"}, {"gflop": "178", "gigabytes": "60"})
    head, _, _, _, one, two, _ = render.benchmarks(
        [old | {"milliseconds": "9000"} | more for more in counted]
    )
    assert "did not measure the vector rate" in head
    assert one.endswith("| 356 | ≤\N{NO-BREAK SPACE}4.5 | arithmetic |")
    assert two.endswith("| 178 | ≤\N{NO-BREAK SPACE}4.5 | – |"), (
        "arithmetic may take longer than memory, or not"
    )


def test_the_bar_of_a_path_is_as_long_as_its_share_of_the_slowest():
    paths = {"eager": "3400", "fast": "850", "compiled": "8.5"}
    drawn, _ = render.bars(
        [BENCHMARK | {"path": path, "milliseconds": took} for path, took in paths.items()]
    )
    assert re.findall(r"bar-(\w+)\" style=\"width: ([\d.]+)%", drawn) == [
        ("eager", "100"),
        ("fast", "25"),
        ("compiled", "0.25"),
    ]
    assert re.findall(r"([\d.,\s]+)\Wms<", drawn) == ["3400", "850", "8.5"]
    assert render.bars([]) == []


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


@pytest.fixture
def repository(tmp_path) -> Path:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("def top():\n    pass\n", encoding="utf-8")
    (tmp_path / "pack" / "mod.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_mod.py").write_text(
        "class TestC:\n    def test_m(self):\n        pass\n\n\ndef helper():\n    pass\n\n\n@check\ndef holds():\n    pass\n",
        encoding="utf-8",
    )
    return tmp_path


def test_live_source(repository):
    found = sources.find_source(repository, "pack.mod.f")
    assert (found.text, found.line) == ("@functools.cache\ndef f(x):\n    return x\n", 4)
    assert '"""Doc.' in sources.find_source(repository, "pack.mod.f", docstring=True).text
    assert (
        sources.find_source(repository, "pack.mod.C.m").text == "def m(self):\n    return 1\n"
    )
    assert sources.find_source(repository, "pack.mod.LIMIT").text == "LIMIT = 3\n"
    assert sources.find_source(repository, "pack.top").path.name == "__init__.py"


def test_code_that_a_page_shows_fits_its_column():
    root = Path(__file__).parents[2]
    pages = [*root.glob("notebooks/*.py"), *root.glob("book/*.md")]
    block = re.compile(
        r"{live-source} (\S+)\n(?:(?:# )?:(?!given)[\w-]+:.*\n)*(?:(?:# )?:given: (.*)\n)?"
    )
    names = {
        found for page in pages for found in block.findall(page.read_text(encoding="utf-8"))
    }
    lines = {
        (name, line)
        for name, given in names
        for line in sources.find_source(root, name, given=given).text.splitlines()
    }
    assert len(names) > 20
    assert [found for found in sorted(lines) if len(found[1]) > 96] == []


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


@pytest.mark.parametrize(
    ("text", "given", "shown"),
    [
        (OPTIONS, "bias=None rate=0.0 vector=False", FOLDED),
        (OPTIONS, "", OPTIONS),
        (LAYER, 'transform="linear" deep=False', PLAIN),
    ],
)
def test_a_listing_leaves_out_what_its_page_does_not_use(text, given, shown):
    assert folding.fold(text, folding.options(given)) == shown


@pytest.mark.parametrize(
    "code",
    [
        "if n == 0: a()",
        "if n: a()\n    else: b()",
        "if n: a()\n    elif x: b()",
        "if x: a()\n    elif n: b()",
        "if x and n: a()",
        "x = n or x",
        "if not n: a()",
        "x = -n",
        "if n in (1, 2): a()",
        "x = 1 not in n",
    ],
)
def test_what_a_listing_cannot_leave_out_is_refused(code):
    """A branch that is taken, one beside a dead one, and an operand: rather none of these than a listing that is wrong."""
    with pytest.raises(ValueError, match="cannot leave out"):
        folding.fold(f"def f(x, n=0):\n    {code}\n    return x\n", {"n": "0"})


@pytest.mark.parametrize("given", ["beta=1", "bias=unread(", "bias None", "μ=1"])
def test_an_option_that_is_not_there_is_refused(repository, given):
    (repository / "pack" / "options.py").write_text(
        OPTIONS.replace("bias: Tensor", "μ: int = 0, bias: Tensor"), encoding="utf-8"
    )
    with pytest.raises(sources.SourceNotFound, match=r"pack/options.py, f: "):
        sources.find_source(repository, "pack.options.f", given=given)


@pytest.mark.parametrize("name", ["pack.mod.g", "pack.mod.C.n", "nowhere.f", "pack.gone.f"])
def test_missing_source(repository, name):
    with pytest.raises(sources.SourceNotFound):
        sources.find_source(repository, name)


def test_tests_are_found(repository):
    assert sources.find_test(repository, "tests/test_mod.py::TestC::test_m[float64]").line == 2
    assert "holds" in sources.find_test(repository, "tests/test_mod.py::holds").text, (
        "a check of a suite that a test runs"
    )
    for name in (
        "tests/test_mod.py::TestC::test_n",
        "tests/test_mod.py::helper",
        "tests/gone.py::test_m",
        "tests/test_mod.py",
    ):
        with pytest.raises(sources.SourceNotFound):
            sources.find_test(repository, name)


def test_comparisons_count_each_interval_and_each_run_once():
    def verdict(status, *keys, ours=0.5, **more):
        return Verdict(
            CLAIM, status, "", ours=ours, interval=(0.4, 0.6), records=keys, scale="cpu", **more
        )

    part, other = verdict("same order", "a", "b"), verdict("undecided", "b", "c")
    count = Verdict(CLAIM, "undecided", "", parts=(part, other), scale="cpu")
    found = [part, count, verdict("measured", "d"), Verdict(CLAIM, "waiting", "")]
    assert render.comparisons(found).startswith(
        "We made 2 comparisons from 3 runs and decided 1. About one"
    )
    assert render.comparisons([]) == "No run is compared with anything yet."

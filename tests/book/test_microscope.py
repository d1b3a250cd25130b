"""The routing microscope: its numbers are capslib's, what its page says of them is so, and its controls show them."""

from __future__ import annotations

import json
import re

import pytest
import torch
from bs4 import BeautifulSoup
from capsbook import microscope
from capsbook.microscope import CHILDREN, GROUP, ITERATIONS, PARENTS, PLACES

from capslib.lab.plots import routing_name
from capslib.routing import ROUTINGS, em_routing, make_routing
from capslib.routing.dynamic import DynamicRouting
from capslib.routing.em import inverse_temperatures

ZERO, MEETING = PLACES // 2, 15


@pytest.fixture(scope="module")
def frames():
    return microscope.frames()


def activations(frames, name, iterations=ITERATIONS) -> torch.Tensor:
    """Activations [P, J]."""
    return torch.tensor([frame.activation for frame in frames[name][iterations - 1]])


def test_a_frame_is_what_the_routing_says(frames):
    votes, active = microscope.toy(), torch.ones(CHILDREN, dtype=torch.float64)
    beta_u, beta_a = (
        torch.full((PARENTS,), beta, dtype=torch.float64)
        for beta in microscope.CONSTANTS["em"]["beta"]
    )
    for t, place in ((1, 0), (2, MEETING), (3, PLACES - 1)):
        lamda = inverse_temperatures(t, microscope.CONSTANTS["em"]["inverse_temperature"])
        direct = {
            "dynamic": make_routing("dynamic", PARENTS, 2)(votes[place], iterations=t),
            "em": em_routing(
                votes[place], active, beta_u, beta_a, iterations=t, inverse_temperature=lamda
            ),
        }
        for name, (pose, activation, coupling) in direct.items():
            frame = frames[name][t - 1][place]
            for ours, expected in (
                (frame.pose, pose),
                (frame.activation, activation),
                (frame.coupling, coupling.T),
            ):
                torch.testing.assert_close(
                    torch.tensor(ours, dtype=torch.float64), expected, rtol=0, atol=5.1e-4
                )
            assert frame.share == pytest.approx(
                float(coupling[:GROUP, 0].sum() / coupling[:, 0].sum()), abs=5.1e-4
            )


def test_couplings_sum_to_one_as_each_routing_declares(frames):
    for name, of in frames.items():
        coupling = torch.tensor([[frame.coupling for frame in at] for at in of])  # [T, P, J, I]
        assert coupling.shape == (ITERATIONS, PLACES, PARENTS, CHILDREN)
        total = coupling.sum(
            dim={"parents": 2, "children": 3}[ROUTINGS[name].couplings_sum_over]
        )
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=CHILDREN * 5e-4)


def test_every_routing_is_there_or_depends_on_its_start_and_the_page_says_so(frames):
    missing = [name for name in ROUTINGS if name not in frames]
    (said,) = (
        p.text
        for p in BeautifulSoup(microscope.draw(), "html.parser").select(
            ".microscope-panels ~ p"
        )
    )
    assert {"dynamic", "em", "dynamic_over_children", "similarity"} <= set(frames)
    votes, active = microscope.toy(), torch.ones(PLACES, CHILDREN, dtype=torch.float64)
    for name in missing:
        one, other = (
            microscope.untrained(name, seed)(votes, active).activation for seed in (0, 1)
        )
        assert (one - other).abs().max() > 0.01, name
        assert routing_name(name) in said


def test_a_new_routing_appears_by_itself(monkeypatch):
    class Mine(DynamicRouting):
        """It learns a constant of every parent, which starts from noise."""

        def __init__(self, parents, dim, **options):
            super().__init__(parents, dim, **options)
            self.scale = torch.nn.Parameter(1 + 0.1 * torch.randn(parents))

        def forward(self, votes, activation=None, competition=None, *, iterations=None):
            return super().forward(
                votes * self.scale[:, None], activation, competition, iterations=iterations
            )

    monkeypatch.setitem(ROUTINGS, "mine", Mine)
    assert "mine" in microscope.frames.__wrapped__()


def test_what_the_page_says_of_the_toy():
    votes = microscope.toy()
    group = votes[:, :GROUP, 0]
    assert group[ZERO].mean(dim=0).abs().max() < 1e-6
    spread = (group - group.mean(dim=1, keepdim=True)).norm(dim=-1)
    torch.testing.assert_close(spread, spread[:1].expand_as(spread))
    stay = votes[0, GROUP : GROUP + 3, 0].mean(dim=0)
    assert (group.mean(dim=1) - stay).norm(dim=-1).argmin() == MEETING
    assert (votes[:, GROUP:] == votes[0, GROUP:]).all()
    assert (votes[:, :, 1:] == votes[0, :, 1:]).all()


def test_what_the_page_says_one_sees(frames):
    """Its three things to try, sentence by sentence."""
    rba, em = activations(frames, "dynamic"), activations(frames, "em")
    assert rba[ZERO].argmin() == 0
    assert rba[0].argmax() == rba[-1].argmax() == 0
    assert rba[:, 0].argmin() == ZERO
    assert em[ZERO].argmax() == 0
    assert em[MEETING, 0] == em[:, 0].max() > em[-1, 0]
    assert (rba[MEETING:, 0].diff() > 0).all()

    for name, still in {
        "dynamic": False,
        "em": False,
        "dynamic_over_children": True,
        "similarity": True,
    }.items():
        others = activations(frames, name)[:, 1:]
        assert ((others == others[0]).all(dim=0) == still).all(), name
        coupling = torch.tensor([frame.coupling for frame in frames[name][0]])
        assert (coupling.max() == coupling.min()) == (name != "similarity")


def test_it_is_small_and_says_what_it_shows(frames):
    drawn = microscope.draw()
    soup = BeautifulSoup(drawn, "html.parser")
    data = soup.find("script").text
    assert len(data) < 150_000
    assert set(json.loads(data)["routings"]) == set(frames)
    name, iterations, place = microscope.SHOWN
    frame = frames[name][iterations - 1][place]
    assert [b.text for b in soup.select(".microscope-panels p b")] == [
        f"{a:.2f}" for a in frame.activation
    ]
    assert len(soup.select("svg .vote")) == CHILDREN * PARENTS
    assert len(soup.select("svg .vote.group")) == GROUP * PARENTS


@pytest.mark.browser
def test_a_reader_moves_the_votes(browser, site, frames):
    from axe_playwright_python.sync_playwright import Axe

    address = (site / "book" / "microscope.html").as_uri()
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator(".microscope svg").count() == PARENTS
    assert not page.locator(".microscope form").is_visible()
    told = page.locator(".microscope > p").first.inner_text()
    context.close()

    context = browser.new_context(viewport={"width": 320, "height": 800}, offline=True)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(address)
    assert page.locator(".microscope > p").first.inner_text() == told, (
        "the script says what Python said"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 320

    def shown() -> tuple[list[str], list[float]]:
        dots = page.locator(".microscope svg:first-of-type .vote.group").evaluate_all(
            "dots => dots.map(dot => ['cx', 'cy', 'r'].map(name => +dot.getAttribute(name)))"
        )
        return page.locator(".microscope-panels p b").all_inner_texts(), dots

    def expected(name: str, iterations: int, place: int) -> list[str]:
        return [f"{a:.2f}" for a in frames[name][iterations - 1][place].activation]

    name, iterations, place = microscope.SHOWN
    before = shown()
    assert before[0] == expected(name, iterations, place)
    page.locator("input[name=place]").focus()
    for _ in range(place - ZERO):
        page.keyboard.press("ArrowLeft")
    assert page.locator("input[name=place]").get_attribute("aria-valuetext") == "+0.00"
    assert shown()[0] == expected(name, iterations, ZERO)
    assert shown()[1] != before[1]
    page.select_option("select[name=routing]", "em")
    page.get_by_label("2", exact=True).check()
    assert shown()[0] == expected("em", 2, ZERO)
    assert re.search(
        r"EM, iterations: 2, place of the group: \+0\.00",
        page.locator(".microscope > p").first.inner_text(),
    )
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        found = Axe().run(page, context=".microscope").response["violations"]
        assert [
            broken["id"] for broken in found if broken["impact"] in ("serious", "critical")
        ] == []
    page.emulate_media(media="print")
    assert not page.locator(".microscope form").is_visible()
    assert shown()[0] == expected("em", 2, ZERO), "paper shows what was chosen"
    assert not wrong
    context.close()

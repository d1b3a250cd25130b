"""The routing microscope: its numbers are capslib's, its page says so, and its controls show
them."""

from __future__ import annotations

import json

import pytest
import torch
from bs4 import BeautifulSoup
from capsbook import microscope
from capsbook.microscope import CHILDREN, CONSTANTS, GROUP, ITERATIONS, PARENTS, PLACES, SHOWN

from capslib.lab.plots import routing_name
from capslib.routing import ROUTINGS, em_routing, make_routing
from capslib.routing.dynamic import DynamicRouting
from capslib.routing.em import inverse_temperatures

ZERO, MEETING = PLACES // 2, 15
"""The places where the group passes zero, and where it meets the three votes that stay."""


@pytest.fixture(scope="module")
def frames():
    return microscope.survey().frames()


def assert_near(numbers, expected) -> None:
    torch.testing.assert_close(
        torch.tensor(numbers).to(expected), expected, rtol=0, atol=5.1e-4
    )


@pytest.mark.parametrize(("iterations", "step"), [(1, 0), (2, MEETING), (3, PLACES - 1)])
@pytest.mark.parametrize("name", ["dynamic", "em"])
def test_a_frame_is_what_the_routing_says(frames, name, iterations, step):
    votes = microscope.toy()[step]
    if name == "dynamic":
        result = make_routing(name, PARENTS, 2)(votes, iterations=iterations)
    else:
        constants = CONSTANTS["em"]
        beta_u, beta_a = (votes.new_full((PARENTS,), beta) for beta in constants["beta"])
        schedule = inverse_temperatures(iterations, constants["inverse_temperature"])
        options = {"iterations": iterations, "inverse_temperature": schedule}
        result = em_routing(votes, votes.new_ones(CHILDREN), beta_u, beta_a, **options)
    frame = frames[name][iterations - 1][step]
    assert_near(frame.pose, result.pose)
    assert_near(frame.activation, result.activation)
    assert_near(frame.coupling, result.coupling.T)
    first = result.coupling[:, 0]
    assert_near(frame.share, first[:GROUP].sum() / first.sum())


def test_every_routing_is_there_or_depends_on_its_start_and_the_page_says_so(frames):
    page = BeautifulSoup(microscope.draw(), "html.parser")
    assert {"dynamic", "em", "dynamic_over_children", "similarity"} <= set(frames)
    (note,) = page.select(".microscope-note")
    survey = microscope.survey()
    assert survey.doubles["em_vector"] == "em"
    assert "connectionist" in survey.seed_dependent
    assert set(ROUTINGS) == {*frames, *survey.seed_dependent, *survey.doubles}
    for name in (*survey.seed_dependent, *survey.doubles):
        assert routing_name(name) in note.text


def test_a_new_routing_appears_by_itself(monkeypatch):
    class Mine(DynamicRouting):
        """It learns a constant of every parent, which starts from noise."""

        def __init__(self, parents, dim, **options):
            super().__init__(parents, dim, **options)
            self.scale = torch.nn.Parameter(2 + 0.1 * torch.randn(parents))

        def forward(self, votes, *arguments, **options):
            return super().forward(votes * self.scale[:, None], *arguments, **options)

    monkeypatch.setitem(ROUTINGS, "mine", Mine)
    assert "mine" in microscope.survey().results


def test_the_toy_is_what_the_page_says():
    votes = microscope.toy()
    group, remaining = votes[:, :GROUP, 0], votes[:, GROUP:]
    center = group.mean(dim=1, keepdim=True)
    assert center[ZERO].abs().max() < 1e-6
    spread = group - center
    torch.testing.assert_close(spread, spread[:1].expand_as(spread))
    stay = remaining[0, :3, 0].mean(dim=0)
    assert (center[:, 0] - stay).norm(dim=-1).argmin() == MEETING
    assert (remaining == remaining[0]).all()
    assert (votes[:, :, 1:] == votes[0, :, 1:]).all()


def test_one_sees_the_three_things_to_try(frames):
    activations = {}
    for name, by_iterations in frames.items():
        activations[name] = torch.tensor([frame.activation for frame in by_iterations[-1]])
    rba, em = activations["dynamic"], activations["em"]
    assert rba[ZERO].argmin() == 0
    assert rba[0].argmax() == rba[-1].argmax() == 0
    assert rba[:, 0].argmin() == ZERO
    assert (rba[MEETING:, 0].diff() > 0).all()
    assert em[ZERO].argmax() == 0
    assert em[MEETING, 0] == em[:, 0].max() > em[-1, 0]
    for name in ("dynamic", "em", "dynamic_over_children", "similarity"):
        activation = activations[name][:, 1:]
        still = (activation == activation[0]).all(dim=0)
        assert (
            still.all() if name in ("dynamic_over_children", "similarity") else not still.any()
        )
        coupling = torch.tensor([frame.coupling for frame in frames[name][0]])
        assert (coupling.max() == coupling.min()) == (name != "similarity")


def test_it_is_small_and_says_what_it_shows(frames):
    page = BeautifulSoup(microscope.draw(), "html.parser")
    data = page.find("script").text
    assert len(data) < 150_000
    assert set(json.loads(data)["routings"]) == set(frames)
    for name, side in zip(SHOWN.routings, page.select(".microscope-side"), strict=True):
        frame = frames[name][SHOWN.iterations - 1][SHOWN.position]
        activations = [number.text for number in side.select(".microscope-panels p b")]
        assert activations == [f"{activation:.2f}" for activation in frame.activation]
        assert len(side.select("svg .vote")) == CHILDREN * PARENTS
        assert len(side.select("svg .vote.group")) == GROUP * PARENTS


@pytest.mark.browser
def test_a_reader_moves_the_votes(browser, site, frames):
    address = (site / "book/microscope.html").as_uri()
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator(".microscope svg").count() == 2 * PARENTS
    assert not page.locator(".microscope form").is_visible()
    summary = page.locator(".microscope > p").first.inner_text()
    context.close()

    context = browser.new_context(viewport={"width": 320, "height": 800}, offline=True)
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    live = page.locator(".microscope > p").first
    assert live.inner_text() == summary, "the script says what Python said"
    assert page.evaluate("document.documentElement.scrollWidth") <= 320

    def assert_shown(names: tuple[str, str], iterations: int, step: int) -> None:
        activation = []
        for name in names:
            activation += frames[name][iterations - 1][step].activation
        numbers = page.locator(".microscope-panels p b").all_inner_texts()
        assert numbers == [f"{number:.2f}" for number in activation]

    dot = page.locator(".microscope svg .vote.group").first
    start = dot.get_attribute("cx")
    assert_shown(*SHOWN)
    page.locator("input[name=place]").focus()
    for _ in range(MEETING - SHOWN.position):
        page.keyboard.press("ArrowRight")
    assert page.locator("input[name=place]").get_attribute("aria-valuetext") == "+0.60"
    assert_shown(SHOWN.routings, ITERATIONS, MEETING)
    assert dot.get_attribute("cx") != start
    page.get_by_label("First routing").select_option("similarity")
    page.locator(".microscope").get_by_label("2", exact=True).check()
    assert_shown(("similarity", "em"), 2, MEETING)
    assert "Iterations: 2, place of the group: +0.60. similarity: parent" in live.inner_text()
    page.emulate_media(media="print")
    assert not page.locator(".microscope form").is_visible()
    assert_shown(("similarity", "em"), 2, MEETING)
    assert not errors
    context.close()

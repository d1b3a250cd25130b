"""A digit, routed: its numbers are those of the networks, and its controls show them."""

from __future__ import annotations

import json
from itertools import chain

import pytest
import torch
from bs4 import BeautifulSoup
from capsbook import digits
from capsbook.digits import CHILDREN, CLASSES, ITERATIONS, SHOWN


@pytest.fixture(scope="module")
def networks():
    return {routing: digits.train(routing) for routing in digits.ROUTINGS}


@pytest.fixture(scope="module")
def page(networks):
    return BeautifulSoup(digits.draw(networks), "html.parser")


@pytest.fixture(scope="module")
def test_set():
    return digits.examples("test")


@pytest.mark.parametrize("routing", digits.ROUTINGS)
def test_the_page_shows_what_the_network_computes(networks, page, test_set, routing):
    network = networks[routing]
    data = json.loads(page.find("script").text)
    for number, row in enumerate(digits.chosen(test_set)):
        image = test_set.inputs[row]
        primary, classes, points, steps = data["routings"][routing][2][number]
        assert data["labels"][number] == test_set.labels[row]
        with torch.no_grad():
            pose, child_activation = network.primary_capsules(image[None])
            result = network.classes(pose, child_activation)
            reconstruction = network.decode(result.pose, result.activation.argmax(dim=-1))
            votes = network.classes.votes(pose)[0]
        activation, share, coupling, poses, pixels = steps[-1]
        assert_thousandths(primary, child_activation[0])
        assert_thousandths(activation, result.activation[0])
        assert_thousandths(share, result.coupling[0].mean(dim=0))
        assert_thousandths(coupling, result.coupling[0][:, classes].T)
        assert_thousandths(pixels, reconstruction[0])
        assert classes == result.activation[0].topk(2).indices.tolist()
        for k, j in enumerate(classes):
            # The plane turns and scales votes and pose alike.
            drawn = torch.tensor([*points[k], poses[k]], dtype=torch.float32)
            axes = digits.plane(votes[:, j], result.pose[0, j])
            exact = torch.cat([votes[:, j], result.pose[0, j][None]]) @ axes
            scale = drawn.norm() / exact.norm()
            torch.testing.assert_close(drawn, scale * exact, rtol=0, atol=1.5)


def assert_thousandths(numbers, expected) -> None:
    difference = torch.tensor(numbers) - 1000 * expected
    assert difference.abs().max() < 0.6


@pytest.mark.parametrize("routing", digits.ROUTINGS)
def test_the_plane_holds_the_most_variance(networks, test_set, routing):
    network = networks[routing]
    with torch.no_grad():
        pose, _ = network.primary_capsules(test_set.inputs[:1])
        votes = network.classes.votes(pose)[0, :, 0]
    axes = digits.plane(votes, votes.sum(dim=0))
    torch.testing.assert_close(axes.T @ axes, torch.eye(2), rtol=0, atol=1e-5)
    largest = torch.linalg.eigvalsh(votes.T.cov())[-2:].sum()
    torch.testing.assert_close((votes @ axes).var(dim=0).sum(), largest)


def test_one_sees_what_the_page_says_to_look_for(networks, test_set):
    summaries = {name: digits.summary(net, test_set) for name, net in networks.items()}
    rba, em = summaries["dynamic"], summaries["em"]
    for result in summaries.values():
        assert result.accuracy[0] > 0.5
        assert result.accuracy[-1] > 0.9
        assert result.share[0] == pytest.approx(0.1)
    assert rba.share == sorted(rba.share)
    assert rba.share[-1] < 0.25
    assert em.share[1] > 0.5
    assert em.share[2] < 0.75 * em.share[1]
    activation = [
        result.activation.amax(dim=-1).mean()
        for result in digits.route(networks["dynamic"], test_set.inputs)
    ]
    assert activation == sorted(activation)


@pytest.mark.parametrize(("routing", "low", "high"), [("dynamic", 0, 0.4), ("em", 0.8, 1)])
def test_votes_for_the_strongest_class_are_closest_under_em_only(
    networks, test_set, routing, low, high
):
    network = networks[routing]
    with torch.no_grad():
        pose, _ = network.primary_capsules(test_set.inputs)
        spread = network.classes.votes(pose).var(dim=1).sum(dim=-1)  # [N, J]
    activation = digits.route(network, test_set.inputs)[-1].activation
    first, second = spread.gather(1, activation.topk(2).indices).unbind(dim=1)
    assert low <= (first < second).float().mean() <= high


def test_it_is_small_and_drawn_in_full_without_the_script(page, networks, test_set):
    assert len(page.find("script").text) < 300_000
    assert len(page.select(".digit-images input[type=radio]")) == 20
    assert len(page.select(".digit-image rect")) == 64
    assert len(page.select(".digit-reconstruction rect")) == 64
    assert len(page.select(".digit-types rect")) == CHILDREN
    assert len(page.select(".child")) == 2 * CHILDREN
    row = digits.chosen(test_set)[SHOWN.image]
    image = test_set.inputs[row][None]
    activation = digits.route(networks[SHOWN.routing], image)[-1].activation[0]
    numbers = [number.text for number in page.select(".digit-bars b")]
    assert len(numbers) == CLASSES
    for number, exact in zip(numbers, activation, strict=True):
        assert float(number) == pytest.approx(float(exact), abs=0.006)


@pytest.mark.browser
def test_a_reader_chooses_image_routing_and_iteration(browser, site):
    path = site / "book/microscope.html"
    assert path.stat().st_size < 600_000
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert not page.locator(".digits form").is_visible()
    assert page.locator(".digits .child").count() == 2 * CHILDREN
    summary = page.locator(".digits > p").inner_text()
    context.close()

    context = browser.new_context(viewport={"width": 390, "height": 800}, offline=True)
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    live = page.locator(".digits > p[aria-live]")
    assert live.inner_text() == summary, "the script says what Python said"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    data = json.loads(page.locator(".digits script").text_content())

    def assert_shown(image: int, routing: str, iterations: int) -> None:
        name, _, entries = data["routings"][routing]
        activation, _, coupling, _, pixels = entries[image][3][iterations - 1]
        numbers = page.locator(".digit-bars b").all_inner_texts()
        assert [float(number) for number in numbers] == pytest.approx(
            [value / 1000 for value in activation], abs=0.0051
        )
        reconstruction = page.locator(".digit-reconstruction rect")
        opacity = reconstruction.evaluate_all(
            "r => r.map(x => +x.getAttribute('fill-opacity'))"
        )
        assert opacity == [value / 1000 for value in pixels]
        radii = page.locator(".digits .vote").evaluate_all("d => d.map(x => x.r.baseVal.value)")
        areas = [(radius / 0.14) ** 2 for radius in radii]
        assert areas == pytest.approx([c / 1000 for c in chain(*coupling)], abs=0.001)
        assert (
            f"{name}, iterations: {iterations}. The image shows a {data['labels'][image]}"
            in (live.inner_text())
        )

    assert_shown(*SHOWN)
    page.locator(".digits input[name=image]:checked").focus()
    page.keyboard.press("ArrowRight")
    assert_shown(SHOWN.image + 1, SHOWN.routing, ITERATIONS)
    page.locator(".digits").get_by_label("EM", exact=True).check()
    page.locator(".digits").get_by_label("2", exact=True).check()
    assert_shown(SHOWN.image + 1, "em", 2)
    assert not errors
    context.close()

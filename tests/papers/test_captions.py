"""Captions, alternative texts and sentences that state numbers, against what the cell draws and
what the records say.
"""

from __future__ import annotations

import numpy as np
import pytest
from captions import drawn, figure, numbers, prose, recorded, rounded

from capslib.lab import claims, frames, plots
from capslib.lab.chapter import Chapter


def test_what_a_constant_in_the_e_step_loses():
    told, found = drawn("negation_limitation", "fig-underflow")
    logs, released = (line.get_ydata() for line in found["axes"][0].lines)
    width, clip = found["widths"].numpy(), dict(atol=0.005)
    stated, lost, below, above = numbers(
        r"it is ([\d.]+) at every width\. As released it is ([\d.]+) where clusters are narrower than ([\d.]+), and zero where they are wider than (\d+)",
        told,
    )
    np.testing.assert_allclose(logs, stated, **clip)
    np.testing.assert_allclose(released[width < below], lost, **clip)
    np.testing.assert_allclose(released[width > above], 0, **clip)
    assert released[width < 1][-1] == pytest.approx(stated, abs=0.01), (
        "with a width of one the constant is harmless"
    )
    assert found["high"] < below, "hidden layers lie where the determinant is lost"
    first, low, high = numbers(
        r"it is ([\d.]+) in the first routed layer and ([\d.]+) to ([\d.]+) in all above", told
    )
    assert round(found["moved"][0], 2) == first
    assert [round(edge(found["moved"][1:]), 2) for edge in (min, max)] == [low, high]
    assert float(found["released"].sum(-1).min()) > 0.999, "no child is lost in the last layer"


def test_how_far_an_offset_lets_weights_move():
    told, found = drawn("negation_limitation", "fig-offset", plots=plots)
    offset, none, double = (path[-1] for path in found["walks"].values())
    assert len(offset) == 20
    assert (
        "some are more than ten learning rates away and about half of them less than one"
        in told
    )
    assert (offset > 10).sum() > 2
    assert 8 <= (offset < 1).sum() <= 12
    assert (
        "nearly all stay within one learning rate in single precision, and all within a millionth in double"
        in told
    )
    assert (none < 1).sum() >= 18
    assert double.max() < 1e-6
    assert found["walks"]["offset 10⁻⁸"][0].median() < 0.01, (
        "Adam's first step is small for most weights"
    )


def test_what_the_offset_is_worth_at_the_papers_size():
    told = prose("negation_limitation")
    assert (
        "is right on fewer than nine of ten numbers in each of five runs of the paper's size; with it, on more than 98 %"
        in told
    )
    every = Chapter("negation_limitation").records
    without, with_it = (
        frames.metrics(
            frames.select(
                every, "sign", "paper", routing="em_vector", bias=True, length_offset=offset
            )
        )["train_accuracy"]
        for offset in (0.0, 1e-8)
    )
    assert len(without) == len(with_it) == 5
    assert without.max() < 0.9
    assert with_it.min() > 0.98


def test_how_much_a_child_gives_away_under_the_wrong_softmax():
    told, found = drawn("negation_limitation", "fig-axis")
    stated = numbers(r"totals range from ([\d.]+) to ([\d.]+)\.", told)
    heights = [bar.get_height() for bar in found["axis"].patches]
    assert np.allclose(heights[:12], 1)
    assert [round(float(edge), 2) for edge in (min(heights[12:]), max(heights[12:]))] == stated


def test_what_an_untrained_stack_loses():
    told, found = drawn("negation_limitation", "fig-signal")
    low, high = numbers(r"lengths lie between ([\d.]+) and ([\d.]+) at every depth", told)
    assert low <= min(found["of_em"]) <= max(found["of_em"]) <= high
    (floor,) = numbers(r"near the identity above ([\d.]+)\.", told)
    cosines = found["cosines"]
    assert min(cosines["no bias, W near identity"]) > floor
    assert min(cosines["bias 0.1"]) > 0.99
    for name in ("no bias", "no bias, W 0.3", "no bias, unit length", "bias from 0"):
        assert abs(cosines[name][-1]) < 0.05 < 0.95 < cosines[name][0]
    assert "with a bias of 0.1 and with one iteration it stays at one" in told
    assert min(cosines["bias 0.1"] + cosines[found["ONCE"]]) > 0.99
    lengths = {line.get_label(): line.get_ydata() for line in found["axes"][0].lines}
    assert (
        "near the identity it falls more slowly, and a start at unit length or a bias of 0.1 keeps it up"
        in told
    )
    assert lengths["no bias"][-1] < 1e-40 < lengths["no bias, W near identity"][-1] < 1e-6
    assert min(lengths["no bias, unit length"][-1], lengths["bias 0.1"][-1]) > 0.1
    assert found["varies"][found["ONCE"]] < 0.05 * found["varies"]["no bias"], (
        "its activations hardly depend on the input"
    )


def test_how_well_networks_with_pairs_of_images_end():
    told, of = (
        prose("negation_limitation"),
        recorded("negation_limitation", "negated", data="mnist"),
    )
    odd, relu = (of[of["front"] == front] for front in ("odd", "relu"))
    limited, free = (100 * odd[odd["bias"] == bias]["test_accuracy"] for bias in (False, True))
    assert len(limited) == len(free) == 6
    [stated] = numbers(r"all six runs without a bias end at (\d+) %", told)
    assert rounded(limited) == [stated, stated]
    assert numbers(r"All six with a bias end at (\d+) to (\d+) %", told) == rounded(free)
    assert numbers(r"both kinds reach (\d+) to (\d+) %", told) == rounded(
        100 * relu["test_accuracy"]
    )


def test_when_em_networks_start_to_learn():
    told = prose("negation_limitation")
    of = recorded(
        "negation_limitation", "depth", routing="em_vector", weight_std=0.1, iterations=3
    )
    of["starts"], of["percent"] = (
        of["steps_to_20_percent"] / 3752,
        100 * of["test_accuracy"],
    )  # the length of every run
    with_bias = of[(of["bias_start"] == 0.1) & of["bias"] & (of["data"] == "mnist")].groupby(
        "depth"
    )["starts"]
    assert "five to eight EM layers start within about one per cent of the run on MNIST" in told
    assert with_bias.max()[[5, 6, 7, 8]].max() < 0.0125
    assert numbers(r"Nine take (\d+) to (\d+) %", told) == rounded(100 * with_bias.get_group(9))
    seven = of[(of["bias_start"] == 0.1) & ~of["bias"] & (of["depth"] == 7)]["starts"]
    late = seven[seven < 1]
    assert numbers(
        r"start to learn, after (\d+) to (\d+) % of the run; two never do", told
    ) == rounded(100 * late)
    assert (len(late), len(seven)) == (4, 6)
    rising = of[of["bias"] & (of["bias_start"] == 0) & (of["data"] == "mnist")].groupby(
        "depth"
    )["percent"]
    assert "gets all networks with seven layers to train, and one of three with nine" in told
    nine = sorted(rising.get_group(9))
    assert rising.min()[7] > 50
    assert nine[2] > 50
    assert numbers(r"two of three seeds still stand at (\d+) and (\d+) %", told) == [
        round(v) for v in nine[:2]
    ]
    alone = of[(of["bias_start"] == 0.1) & ~of["bias"] & (of["data"] == "mnist")].groupby(
        "depth"
    )["starts"]
    *_, caption = figure("negation_limitation", "fig-curves")
    assert (
        "EM with six starts after about a thousand steps, and with seven one of three seeds does"
        in caption
    )
    assert 3752 * alone.min()[6] > 900
    assert 3752 * alone.max()[6] < 1600
    assert (alone.get_group(7) < 1).sum() == 1
    assert (alone.min()[[8, 9]] == 1).all()


def test_at_which_depths_reduced_networks_train():
    told, (*_, alt) = prose("negation_limitation"), figure("negation_limitation", "fig-depth")
    of = {
        v.claim.id.removeprefix("NEG-W-5-"): v for v in claims.verdicts("negation_limitation")
    }
    assert "only networks with a bias learn, on both sets." in told
    assert "The claims on RBA are decided on both sets, those on EM in part" in alt
    assert of["rba-mnist"].status == of["rba-fashion"].status == "same order"
    assert of["em-mnist"].status == of["em-fashion"].status == "holds in part"

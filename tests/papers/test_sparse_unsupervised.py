"""The chapter of Rawlinson et al. (2018): its losses, its digits at random places, its classifier, and what a record holds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from capslib.lab.runs import run_trial
from capslib.lab.store import Store
from capslib.networks.sparse_unsupervised import SparseOutput
from capslib.papers.experiment import Metric
from capslib.papers.sparse_unsupervised import EXPERIMENTS, controls, encodings
from capslib.papers.sparse_unsupervised.encodings import (
    CNN,
    DENSE,
    SPARSE,
    SUPCAPS,
    EncodingConfig,
)
from capslib.papers.sparse_unsupervised.recipe import REDUCED, Reconstruction, SparseRecipe
from capslib.recipes import train
from capslib.training import Context, Examples

SMOKE = REDUCED["smoke"]


def recipe(**changes) -> EncodingConfig:
    return EncodingConfig(**{**SMOKE, "svm_fit": 100, "svm_test": 100, **changes})


def digits(n: int = 40) -> torch.Tensor:
    torch.manual_seed(0)
    return (255 * torch.rand(n, 1, 8, 8)).byte().clamp_min(1)


# ------------------------------------------------------------------------------------------------------------ the recipe


def test_defaults_are_the_papers():
    paper = SparseRecipe()
    assert (paper.frame(), paper.input_shape, paper.train_size) == (40, (1, 40, 40), 60_000)
    steps = paper.epochs * -(-60_000 // paper.batch_size)
    assert abs(steps - 30_000) < paper.batch_size
    assert paper.rate(2000 / 30_000) == pytest.approx(0.96e-3)
    assert paper.rate(1.0) == pytest.approx(1e-3 * 0.96**15)
    assert SparseRecipe(learning_rate=1e-6).rate(1.0) == 1e-6, "the floor"


def test_digits_stand_somewhere_in_training_and_in_the_middle_in_a_test():
    whole, config = digits(500), recipe()
    seen = config.prepare(whole, torch.Generator().manual_seed(0))
    assert seen.shape == (500, 1, 12, 12)
    torch.testing.assert_close(
        seen.sum(dim=(1, 2, 3)), whole.float().div(255).sum(dim=(1, 2, 3))
    )  # nothing is cut off
    rows = (seen[:, 0].sum(dim=2) > 0).float().argmax(dim=1)
    columns = (seen[:, 0].sum(dim=1) > 0).float().argmax(dim=1)
    assert set(rows.tolist()) == set(columns.tolist()) == {0, 1, 2, 3, 4}, "shifts of −2 to 2"
    middle = config.prepare(whole)
    torch.testing.assert_close(middle[:, :, 2:10, 2:10], whole.float() / 255)
    assert torch.equal(middle, config.framed(torch.nn.functional.pad(whole, [2] * 4)))
    narrow = recipe(
        border=0
    )  # as the paper's network for MNIST alone: no border, and a shift cuts a digit off
    assert torch.equal(narrow.prepare(whole), whole.float() / 255)
    cut = narrow.prepare(whole, torch.Generator().manual_seed(0))
    assert torch.equal(cut, seen[:, :, 2:10, 2:10]), "the same shifts"
    assert SparseRecipe(border=0, shift=2).input_shape == (1, 28, 28)


def test_few_digits_in_a_batch_as_released():
    for batch, distinct in ((40, 3), (64, 30), (128, 30), (20, 30)):
        seen = recipe(distinct=distinct).prepare(
            digits(batch), torch.Generator().manual_seed(0)
        )
        assert len(seen) == batch
        assert len({round(float(x), 3) for x in seen.sum(dim=(1, 2, 3))}) == min(
            batch, distinct
        )
    with pytest.raises(ValidationError, match="their labels would not follow"):
        recipe(distinct=3, **SUPCAPS)


def test_losses_by_hand():
    """Two images of two pixels. Without labels: Σ over pixels, mean over images. With labels: ½ · margin loss / classes, and a share."""
    batch = Examples(torch.tensor([[[[0.0, 1.0]]], [[[1.0, 1.0]]]]), torch.tensor([0, 1]))
    output = SparseOutput(
        None,
        torch.tensor([[0.9, 0.3], [0.5, 0.7]]),
        None,
        None,
        torch.tensor([[0.5, 1.0], [0.0, 0.8]]),
    )
    error = (0.25 + 1.04) / 2
    seen = []

    def network(images, labels):
        seen.append(labels)
        return output

    assert float(Reconstruction(recipe())(network, batch)["loss"]) == pytest.approx(error)
    assert seen == [None], "labels stay hidden"
    terms = Reconstruction(recipe(**SUPCAPS))(network, batch)
    margin = (0.5 * 0.2**2 + 0.2**2 + 0.5 * 0.4**2) / 2 / 4
    assert float(terms["margin"]) == pytest.approx(margin)
    assert float(terms["loss"]) == pytest.approx(margin + 5e-4 * error)
    assert seen[1] is batch.labels
    assert float(terms["accuracy"]) == 1


def test_training_lowers_the_error_and_counts_its_batches():
    trained = train(recipe(epochs=6), 0, Context(seed=0))
    curve = trained.history.epochs["test_error"]
    assert curve[-1] < 0.8 * curve[0]
    assert int(trained.network.boost.batches) == len(trained.history.terms["loss"])


@pytest.mark.parametrize(
    "change",
    [
        dict(band=(0.3, 0.9)),
        dict(relative_boost=True),
        dict(boost=False),
        dict(gamma=4.0),
        dict(mask="none"),
        dict(mask="longest"),
        dict(grouping="released"),
        dict(routing="em_vector"),
        dict(iterations=1),
        dict(hidden=(5,)),
        dict(decoder=(8,)),
    ],
    ids=str,
)
def test_every_option_changes_what_the_network_draws(change):
    found = []
    for config in (recipe(), recipe(**change)):
        torch.manual_seed(0)
        network, images = (
            config.build((1, 12, 12), 10),
            config.framed(torch.nn.functional.pad(digits(4), [2] * 4)),
        )
        support = network(images).support.detach()
        boost = network.boost or torch.nn.Identity()
        for _ in range(100):  # batches, in which gains change twice
            boost(support)
        output = network.eval()(images)
        found.append(
            torch.cat([boost(output.support), output.mask, output.reconstruction], dim=1)
        )
    assert (found[0] - found[1]).abs().max() > 1e-3


@pytest.mark.parametrize("boost", [True, False])
def test_a_training_tells_what_boosting_came_to(boost):
    trained = train(recipe(boost=boost), 0, Context(seed=0))
    ends = {
        name: curve[-1]
        for name, curve in trained.history.epochs.items()
        if name != "test_error"
    }
    boosting = trained.network.boost
    assert ends == (
        {}
        if boosting is None
        else {
            "largest_share": pytest.approx(float(boosting.frequency.max())),
            "smallest_gain": pytest.approx(float(boosting.gain.min())),
            "largest_gain": pytest.approx(float(boosting.gain.max())),
        }
    )
    assert (boosting is not None) is boost


# -------------------------------------------------------------------------------------------------------- the classifier


def test_the_classifier_is_the_released_one():
    assert {
        k: v
        for k, v in encodings.classifier().get_params().items()
        if k in ("C", "gamma", "kernel", "tol", "random_state")
    } == {
        "C": 100,
        "gamma": 0.1,
        "kernel": "rbf",
        "tol": 1e-3,
        "random_state": 42,
    }


def test_what_each_protocol_fits_and_tests(monkeypatch):
    """Every encoding is its own number, so that the classifier can be asked what it has seen."""
    n, config, fits, tests = 70, recipe(svm_fit=10_000, svm_test=10_000), [], []

    class Machine:
        def fit(self, codes, labels):
            fits.append(codes[:, 0])
            return self

        def score(self, codes, labels):
            tests.append((len(fits) - 1, codes[:, 0]))
            return 0.5

    monkeypatch.setattr(encodings, "classifier", Machine)
    kinds = {
        "train": 1000 + torch.arange(200),
        "test": 2000 + torch.arange(n),
        "affnist": torch.arange(7 * n),
    }
    sets = {name: encodings.Digits(x, x % 10, x % n) for name, x in kinds.items()}
    codes = {name: x[:, None].numpy() for name, x in kinds.items()}
    found = encodings.classified(codes, sets, config, "_raw", Context(seed=0))
    assert set(found) == {"mnist_raw", "affnist_b_raw", "affnist_a_raw", "affnist_by_digit_raw"}
    of_mnist, of_affnist, of_other_digits = fits
    assert of_mnist.tolist() == kinds["train"].tolist()
    seen = {name: rows for name, (_, rows) in zip(found, tests, strict=True)}
    assert seen["mnist_raw"].tolist() == kinds["test"].tolist()
    last = list(range(6 * n, 7 * n))
    assert seen["affnist_b_raw"].tolist() == seen["affnist_a_raw"].tolist() == last, (
        "the seventh variant"
    )
    assert not set(of_affnist) & set(last)
    assert set(of_affnist % n) == set(range(n)), "protocol (a) shares its digits"
    assert not set(of_other_digits % n) & set(seen["affnist_by_digit_raw"] % n), (
        "by digit it shares none"
    )
    assert [which for which, _ in tests] == [0, 0, 1, 2]


def test_a_smaller_classifier_sees_rows_from_everywhere(monkeypatch):
    sizes = []

    class Machine:
        def fit(self, codes, labels):
            sizes.append(len(codes))
            assert codes.max() - codes.min() > 0.8 * 400
            return self

        def score(self, codes, labels):
            sizes.append(len(codes))
            return 0.5

    monkeypatch.setattr(encodings, "classifier", Machine)
    rows = torch.arange(490)
    sets = {
        name: encodings.Digits(rows, rows % 10, rows % 70)
        for name in ("train", "test", "affnist")
    }
    found = encodings.classified(
        {k: rows[:, None].numpy() for k in sets}, sets, recipe(svm_fit=100), "", Context(seed=0)
    )
    assert set(sizes) <= {100, 70}
    assert {m.n for m in found.values()} <= {100, 70}


# ---------------------------------------------------------------------------------------------------------- who is active


def test_activity_by_hand():
    codes = {
        "test": {"support": np.array([[4.0, 2, 2], [2, 8, 0]])},
        "affnist": {"rank": np.array([[0, 1, 2], [0, 2, 1], [1, 0, 2], [0, 1, 2]])},
    }
    metrics, series = encodings.activity(codes, 2)
    assert series["ranked_support"] == pytest.approx([1, 4 / 12, 2 / 12], abs=1e-5)
    assert metrics["support_left"].value == pytest.approx(0.25)
    assert np.reshape(series["rank_shares"], (3, 3)).tolist() == [
        [0.75, 0.25, 0],
        [0.25, 0.5, 0.25],
        [0, 0.25, 0.75],
    ]
    assert (metrics["largest_first_share"].value, metrics["smallest_first_share"].value) == (
        0.75,
        0,
    )
    assert metrics["winners"].value == 2


class Adds:
    """A decoder that adds up what capsules hold."""

    def __init__(self, mask):
        self.mask = torch.tensor([mask])

    def __call__(self, images):
        n = len(images)
        pose, mask = torch.ones(n, 4, 9), self.mask.expand(n, -1)
        return SparseOutput(pose, torch.ones(n, 4), None, mask, self.decode(pose, mask))

    def decode(self, pose, mask):
        return (pose * mask[..., None]).sum(dim=1)


def test_contributions_tell_one_capsule_from_many():
    """One that holds everything, or four that share it."""
    whole = encodings.Digits(torch.zeros(5, 1, 12, 12, dtype=torch.uint8), None, None)
    for mask, contributing, largest in (([1.0, 0, 0, 0], 1, 1.0), ([0.25] * 4, 4, 0.0625)):
        found = encodings.contributions(Adds(mask), recipe(), whole)
        assert found["contributing"].value == contributing
        assert found["largest_change"].value == pytest.approx(largest)


def test_parameters_are_turned_of_the_capsule_that_the_mask_leaves():
    """Each pixel is a parameter of that capsule, and turned down by one it is black."""
    whole = encodings.Digits(torch.zeros(1, 1, 12, 12, dtype=torch.uint8), None, None)
    turned = torch.tensor(
        encodings.pictures(Adds([0.0, 0, 1, 0]), recipe(), whole)["turned"]
    ).view(encodings.SHOWN, 11, 9)
    assert (turned[:, 5] == 255).all()
    assert ((turned[:, 0] == 0).sum(dim=1) == 1).all()


def test_the_ranks_of_an_encoding_are_those_of_its_mask():
    """Where boosting has made others win than support alone would."""
    config = recipe()
    torch.manual_seed(0)
    network = config.build((1, 12, 12), 10).eval()
    network.boost.gain.copy_(torch.linspace(1, 9, config.capsules))
    found = encodings.encode(
        network,
        config,
        encodings.Digits(torch.nn.functional.pad(digits(), [2] * 4), None, None),
    )
    raw, masked = (
        found[kind].reshape(40, config.capsules, config.dim) for kind in ("raw", "masked")
    )
    left = np.exp(-config.gamma * found["rank"] / (config.capsules - 1))
    np.testing.assert_allclose(
        masked, raw * np.where(left < 0.01, 0, left)[..., None], atol=1e-6
    )


@pytest.mark.parametrize(
    "arm", [SPARSE, DENSE, SUPCAPS, CNN, dict(network="autoencoder", mask="none")], ids=str
)
def test_a_record_of_each_kind_of_network(arm, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(
        encodings, "train", lambda *given: trained.append(train(*given)) or trained[0]
    )
    experiment = EXPERIMENTS["beyond" if arm.get("network") == "autoencoder" else "encodings"]
    where = {
        "mask": arm.get("mask", "ranks"),
        "network": arm.get("network", "sparse_capsnet"),
        "boost": True,
    }
    (trial,) = experiment.trials(
        "smoke", where=where | ({"routing": "dynamic"} if "hidden" not in arm else {})
    )
    record = run_trial(experiment, trial, Store(tmp_path), Context(seed=0))
    names = set(record.metrics)
    assert record.exit == "ok"
    assert ("mnist_accuracy" in names) == (arm in (SUPCAPS, CNN))
    assert ("mnist_raw" in names) == ("error_mnist" in names) == (arm != CNN)
    if arm != CNN:
        assert record.metrics["error_affnist"].n == 7 * record.metrics["error_mnist"].n
    assert (
        ("support_left" in names) == ("turned" in record.series) == (arm.get("network") is None)
    )
    assert [seen.name for seen in record.data] == ["digits", "digits"]
    assert "generated" in record.data[1].deviations[-1]
    if "turned" in record.series:
        latent = 10 if arm == SUPCAPS else 16
        dim = min(encodings.SHOWN, SMOKE["dim"])
        assert len(record.series["turned"]) == dim * 11 * 144
        assert (
            len(record.series["picture_of_each"])
            == len(record.series["picture_without_each"])
            == latent * 144
        )
        assert sum(record.series["rank_shares"]) == pytest.approx(latent, abs=1e-2)
    config = EncodingConfig(**record.config)
    sets, _ = encodings.digits(config, Context(seed=0))
    for name, of in (("mnist", sets["test"]), ("affnist", sets["affnist"])):
        seen, last = (
            of.images / 255,
            slice(-len(sets["test"].images), None),
        )  # of affNIST the seventh variant
        with torch.no_grad():
            output = trained[0].network(seen)
        if arm != CNN:
            errors = (output.reconstruction - seen.flatten(1)).square().sum(dim=1)
            assert record.metrics[f"error_{name}"].value == pytest.approx(
                float(errors.mean()), rel=1e-4
            )
        if config.supervised:
            right = getattr(output, "activation", output).argmax(dim=1) == of.labels
            assert record.metrics[f"{name}_accuracy"].value == pytest.approx(
                float(right[last].float().mean())
            )


def test_a_network_that_has_not_learned_decides_nothing():
    from capslib.papers.sparse_unsupervised.asks import sparse, supcaps

    left = {"unexplained": Metric(value=0.6, n=1, unit="share")}
    ran = SimpleNamespace(metrics=left, series={"batch_accuracy": [0.5] * 40})
    assert sparse.unfit(ran) == ["has unexplained = 0.6, and the limit is 0.5"]
    assert "did not learn" in supcaps.unfit(ran)[0]


# --------------------------------------------------------------------------------------------------------------- controls


def test_principal_components_are_as_many_as_the_numbers_of_the_capsules_and_leave_the_least(
    tmp_path,
):
    experiment = EXPERIMENTS["controls"]
    pca, pixels = (
        run_trial(experiment, t, Store(tmp_path), Context(seed=0))
        for t in experiment.trials("smoke")
    )
    assert pca.exit == pixels.exit == "ok"
    for record in (pca, pixels):
        assert {"mnist_raw", "affnist_a_raw", "affnist_b_raw", "affnist_by_digit_raw"} <= set(
            record.metrics
        )
    config = experiment.grid("smoke")[0]
    sets, _ = encodings.digits(config, Context(seed=0))
    mean, basis = controls.components(config, sets["train"].images, 0)
    assert basis.shape == (144, config.capsules * config.dim)
    assert (mean.view(12, 12)[[0, -1]] > 0).any(), "digits are shifted as far as the edge"
    torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]), atol=1e-4, rtol=0)
    inner = sets["train"].images[:, :, 2:10, 2:10]
    seen = config.prepare(inner, torch.Generator().manual_seed(5)).flatten(1) - mean
    left = lambda axes: float((seen - seen @ axes @ axes.T).square().sum())  # noqa: E731
    rest = torch.linalg.qr(
        torch.randn(144, basis.shape[1], generator=torch.Generator().manual_seed(1))
    )[0]
    assert left(basis) < 0.5 * left(rest)


def test_attacks_share_the_trainings_of_table_1_and_lower_the_accuracy(tmp_path, monkeypatch):
    seen, head = [], controls.head

    def watched(*given):
        scores = head(*given)
        return lambda images: seen.append(images.detach().aminmax()) or scores(images)

    monkeypatch.setattr(controls, "head", watched)
    table = {
        t.key
        for c in EXPERIMENTS["encodings"].grid("smoke")
        for t in EXPERIMENTS["encodings"].trainings(c, 0)
    }
    experiment = EXPERIMENTS["attacks"]
    for config, trial in zip(experiment.grid("smoke"), experiment.trials("smoke"), strict=True):
        assert {t.key for t in experiment.trainings(config, 0)} <= table
        record = run_trial(experiment, trial, Store(tmp_path), Context(seed=0))
        assert record.exit == "ok", record.message
        left = record.series["accuracy_left"]
        assert len(left) == len(record.series["epsilons"]) == len(controls.EPSILONS)
        assert left[-1] < left[0]
    assert {(float(low), float(high)) for low, high in seen} == {(0.0, 1.0)}, (
        "attacked digits are still pictures"
    )


def test_the_linear_classifier_reads_the_masked_encodings():
    """It classifies as scikit-learn's own prediction does."""
    from sklearn.linear_model import LogisticRegression

    config = controls.attack_grid("smoke")[0]
    sets, _ = encodings.digits(config, Context(seed=0))
    network = config.build((1, 12, 12), 10).eval()
    scores = controls.head(network, config, sets, "cpu")
    x = config.framed(sets["test"].images)
    rows = torch.linspace(0, len(sets["train"].images) - 1, config.head_fit).long()
    fitted = encodings.encode(network, config, sets["train"][rows])["masked"]
    machine = LogisticRegression(C=100, max_iter=300).fit(
        fitted, sets["train"].labels[rows].numpy()
    )
    told = machine.predict(encodings.encode(network, config, sets["test"])["masked"])
    assert (scores(x).argmax(dim=1).numpy() == told).mean() > 0.99

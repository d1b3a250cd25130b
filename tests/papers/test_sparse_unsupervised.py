"""The chapter of Rawlinson et al. (2018).

Its losses, its digits at random places, its classifier, and what a record holds.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import pad

from capslib.lab.runs import run_trial
from capslib.lab.store import Store
from capslib.networks.sparse_unsupervised import SparseOutput
from capslib.papers.experiment import Metric
from capslib.papers.sparse_unsupervised import EXPERIMENTS, attacks, controls, encodings
from capslib.papers.sparse_unsupervised.checks import SPARSE, SUPCAPS
from capslib.papers.sparse_unsupervised.encodings import ClassifierOptions, Digits
from capslib.papers.sparse_unsupervised.recipe import Reconstruction, SparseRecipe
from capslib.recipes import train
from capslib.training import Context, Examples

ENCODINGS = EXPERIMENTS["encodings"]


def smoke_recipe(name: str = "sparse", **changes) -> SparseRecipe:
    """Return the recipe of a network of Table 1 at smoke scale, with changes."""
    return ENCODINGS.at("smoke")[name].changed(changes).recipe


def random_digits(count: int = 40) -> torch.Tensor:
    """Return images uint8 [count, 1, 8, 8] without a black pixel."""
    torch.manual_seed(0)
    return (255 * torch.rand(count, 1, 8, 8)).byte().clamp_min(1)


def in_frame(images: torch.Tensor) -> Digits:
    """Return digits in the middle of the frame, without labels."""
    return Digits(pad(images, [2] * 4), None, None)


def test_defaults_are_the_papers():
    paper = SparseRecipe()
    assert paper.frame() == 40
    assert paper.input_shape == (1, 40, 40)
    assert paper.train_size == 60_000
    assert abs(paper.steps - 30_000) < paper.batch_size
    assert paper.rate(2000 / 30_000) == pytest.approx(0.96e-3)
    assert paper.rate(1.0) == pytest.approx(1e-3 * 0.96**15)
    assert SparseRecipe(learning_rate=1e-6).rate(1.0) == 1e-6, "the floor"


def test_digits_stand_somewhere_in_training_and_in_the_middle_in_a_test():
    digits = random_digits(500)
    recipe = smoke_recipe()
    shifted = recipe.prepare(digits, torch.Generator().manual_seed(0))
    assert shifted.shape == (500, 1, 12, 12)
    brightness = digits.float().div(255).sum(dim=(1, 2, 3))
    torch.testing.assert_close(shifted.sum(dim=(1, 2, 3)), brightness)  # nothing is cut off
    for dim in (2, 1):
        first = (shifted[:, 0].sum(dim=dim) > 0).float().argmax(dim=1)
        assert set(first.tolist()) == {0, 1, 2, 3, 4}, "shifts of −2 to 2"
    middle = recipe.prepare(digits)
    torch.testing.assert_close(middle[:, :, 2:10, 2:10], digits.float() / 255)
    assert torch.equal(middle, recipe.framed(pad(digits, [2] * 4)))


@pytest.mark.parametrize(("batch", "distinct"), [(40, 3), (64, 30), (128, 30), (20, 30)])
def test_few_digits_in_a_batch_as_released(batch, distinct):
    recipe = smoke_recipe(distinct=distinct)
    shifted = recipe.prepare(random_digits(batch), torch.Generator().manual_seed(0))
    brightness = {round(float(total), 3) for total in shifted.sum(dim=(1, 2, 3))}
    assert len(shifted) == batch
    assert len(brightness) == min(batch, distinct)


def test_repeated_digits_have_no_labels():
    with pytest.raises(ValidationError, match="their labels would not follow"):
        smoke_recipe("supcaps", distinct=3)


def test_losses_by_hand():
    """Two images of two pixels.

    Without labels: Σ over pixels, mean over images. With labels: ½ · margin loss / classes, and
    a share of that.
    """
    images = torch.tensor([[0.0, 1.0], [1.0, 1.0]]).view(2, 1, 1, 2)
    batch = Examples(images, torch.tensor([0, 1]))
    activation = torch.tensor([[0.9, 0.3], [0.5, 0.7]])
    reconstruction = torch.tensor([[0.5, 1.0], [0.0, 0.8]])
    seen_labels = []

    def network(images, labels):
        seen_labels.append(labels)
        return SparseOutput(None, activation, None, None, reconstruction)

    error = (0.25 + 1.04) / 2
    terms = Reconstruction(smoke_recipe())(network, batch)
    assert float(terms["loss"]) == pytest.approx(error)
    assert seen_labels == [None], "labels stay hidden"
    terms = Reconstruction(smoke_recipe("supcaps"))(network, batch)
    margin = (0.5 * 0.2**2 + 0.2**2 + 0.5 * 0.4**2) / 2 / 4
    assert float(terms["margin"]) == pytest.approx(margin)
    assert float(terms["loss"]) == pytest.approx(margin + 5e-4 * error)
    assert seen_labels[1] is batch.labels
    assert float(terms["accuracy"]) == 1


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
    drawings = []
    for recipe in (smoke_recipe(), smoke_recipe(**change)):
        torch.manual_seed(0)
        network = recipe.build((1, 12, 12), 10)
        images = recipe.prepare(random_digits(4))
        support = network(images).support.detach()
        boost = network.boost or torch.nn.Identity()
        for _ in range(100):  # batches, in which gains change twice
            boost(support)
        output = network.eval()(images)
        parts = [boost(output.support), output.mask, output.reconstruction]
        drawings.append(torch.cat(parts, dim=1))
    assert (drawings[0] - drawings[1]).abs().max() > 1e-3


def test_training_lowers_the_error_and_tells_what_boosting_came_to():
    trained = train(smoke_recipe(epochs=6), 0, Context(seed=0))
    curves = dict(trained.history.epochs)
    error = curves.pop("test_error")
    boost = trained.network.boost
    assert error[-1] < 0.8 * error[0]
    assert int(boost.batches) == len(trained.history.terms["loss"])
    assert {name: curve[-1] for name, curve in curves.items()} == {
        "largest_share": pytest.approx(float(boost.frequency.max())),
        "smallest_gain": pytest.approx(float(boost.gain.min())),
        "largest_gain": pytest.approx(float(boost.gain.max())),
    }


def test_a_training_without_boosting_tells_of_the_error_alone():
    trained = train(smoke_recipe("no_boosting", epochs=1), 0, Context(seed=0))
    assert trained.network.boost is None
    assert list(trained.history.epochs) == ["test_error"]


def test_the_classifier_is_the_released_one():
    released = {"C": 100, "gamma": 0.1, "kernel": "rbf", "tol": 1e-3, "random_state": 42}
    assert released.items() <= encodings.classifier().get_params().items()


class Machine:
    """A classifier that remembers which encodings it has seen. Each encoding is a number."""

    def __init__(self):
        self.fits = []
        self.tests = []

    def fit(self, codes, labels):
        self.fits.append(codes[:, 0])
        return self

    def score(self, codes, labels):
        self.tests.append((len(self.fits), codes[:, 0]))
        return 0.5


@pytest.fixture
def machine(monkeypatch):
    """Return the machine that stands for every classifier."""
    machine = Machine()
    monkeypatch.setattr(encodings, "classifier", lambda: machine)
    return machine


def classified(parts: dict[str, torch.Tensor], **options: int) -> dict[str, Metric]:
    """Return what classifiers make of numbers as encodings, of 70 test digits."""
    sets, codes = {}, {}
    for name, numbers in parts.items():
        sets[name] = Digits(numbers, numbers % 10, numbers % 70)
        codes[name] = numbers[:, None].numpy()
    settings = ClassifierOptions(**options)
    return encodings.classified(codes, sets, settings, "_raw", Context(seed=0))


def test_what_each_protocol_fits_and_tests(machine):
    parts = {
        "train": 1000 + torch.arange(200),
        "test": 2000 + torch.arange(70),
        "affnist": torch.arange(7 * 70),
    }
    metrics = classified(parts)
    of_mnist, of_affnist, of_other_digits = machine.fits
    assert [fit for fit, _ in machine.tests] == [1, 1, 2, 3]
    rows = [numbers for _, numbers in machine.tests]
    tested = dict(zip(metrics, rows, strict=True))
    seventh = list(range(6 * 70, 7 * 70))
    assert of_mnist.tolist() == parts["train"].tolist()
    assert tested["mnist_raw"].tolist() == parts["test"].tolist()
    assert tested["affnist_b_raw"].tolist() == seventh
    assert tested["affnist_a_raw"].tolist() == seventh
    assert not set(of_affnist) & set(seventh)
    assert set(of_affnist % 70) == set(range(70)), "protocol (a) shares its digits"
    other_digits = set(tested["affnist_by_digit_raw"] % 70)
    assert not set(of_other_digits % 70) & other_digits, "by digit it shares none"


def test_a_smaller_classifier_sees_rows_from_everywhere(machine):
    parts = dict.fromkeys(("train", "test", "affnist"), torch.arange(490))
    metrics = classified(parts, svm_fit=100)
    for codes in machine.fits:
        assert len(codes) == 100
        assert np.ptp(codes) > 0.8 * 400
    assert [metric.n for metric in metrics.values()] == [len(rows) for _, rows in machine.tests]


def test_activity_by_hand():
    codes = {
        "test": {"support": np.array([[4.0, 2, 2], [2, 8, 0]])},
        "affnist": {"rank": np.array([[0, 1, 2], [0, 2, 1], [1, 0, 2], [0, 1, 2]])},
    }
    metrics, series = encodings.activity(codes)
    assert series["ranked_support"] == pytest.approx([1, 4 / 12, 2 / 12], abs=1e-5)
    assert metrics["support_left"].value == pytest.approx(0.25)
    assert np.reshape(series["rank_shares"], (3, 3)).tolist() == [
        [0.75, 0.25, 0],
        [0.25, 0.5, 0.25],
        [0, 0.25, 0.75],
    ]
    assert metrics["largest_first_share"].value == 0.75
    assert metrics["smallest_first_share"].value == 0
    assert metrics["winners"].value == 2


class Sum:
    """A decoder that adds up what capsules hold."""

    def __init__(self, mask):
        self.mask = torch.tensor([mask])

    def __call__(self, images):
        count = len(images)
        pose = torch.ones(count, 4, 9)
        mask = self.mask.expand(count, -1)
        return SparseOutput(pose, torch.ones(count, 4), None, mask, self.decode(pose, mask))

    def decode(self, pose, mask):
        return (pose * mask[..., None]).sum(dim=1)


@pytest.mark.parametrize(
    ("mask", "contributing", "largest_change"),
    [([1.0, 0, 0, 0], 1, 1.0), ([0.25] * 4, 4, 0.0625)],
)
def test_contributions_tell_one_capsule_that_holds_everything_from_many(
    mask, contributing, largest_change
):
    metrics = encodings.contributions(Sum(mask), smoke_recipe(), in_frame(random_digits(5)))
    assert metrics["contributing"].value == contributing
    assert metrics["largest_change"].value == pytest.approx(largest_change)


def test_parameters_are_turned_of_the_capsule_that_the_mask_leaves():
    """Each pixel is a parameter of that capsule, and turned down by one it is black."""
    network = Sum([0.0, 0, 1, 0])
    pictures = encodings.pictures(network, smoke_recipe(), in_frame(random_digits(1)))
    turned = torch.tensor(pictures["turned"]).view(encodings.TURNED, 11, 9)
    assert (turned[:, 5] == 255).all()
    assert ((turned[:, 0] == 0).sum(dim=1) == 1).all()


def test_the_ranks_of_an_encoding_are_those_of_its_mask():
    """Where boosting has made others win than support alone would."""
    recipe = smoke_recipe()
    torch.manual_seed(0)
    network = recipe.build((1, 12, 12), 10).eval()
    network.boost.gain.copy_(torch.linspace(1, 9, recipe.capsules))
    code = encodings.encode(network, recipe, in_frame(random_digits()))
    raw = code["raw"].reshape(40, recipe.capsules, recipe.dim)
    masked = code["masked"].reshape(40, recipe.capsules, recipe.dim)
    mask = np.exp(-recipe.gamma * code["rank"] / (recipe.capsules - 1))
    mask[mask < 0.01] = 0
    np.testing.assert_allclose(masked, raw * mask[..., None], atol=1e-6)


@pytest.mark.parametrize("name", ["sparse", "dense", "supcaps", "cnn", "autoencoder"])
def test_a_record_of_each_kind_of_network(name, tmp_path, monkeypatch):
    networks = []

    def watched(*arguments):
        trained = train(*arguments)
        networks.append(trained.network)
        return trained

    monkeypatch.setattr(encodings, "train", watched)
    experiment = EXPERIMENTS["beyond" if name == "autoencoder" else "encodings"]
    (trial,) = experiment.trials("smoke", where={"arm": name})
    record = run_trial(experiment, trial, Store(tmp_path), Context(seed=0))
    metrics, series = record.metrics, record.series
    assert record.exit == "ok"
    assert ("mnist_accuracy" in metrics) == (name in ("supcaps", "cnn"))
    assert ("mnist_raw" in metrics) == ("error_mnist" in metrics) == (name != "cnn")
    has_capsules = name not in ("cnn", "autoencoder")
    assert ("support_left" in metrics) == ("turned" in series) == has_capsules
    assert [data.name for data in record.data] == ["digits", "digits"]
    assert "generated" in record.data[1].deviations[-1]
    recipe = experiment.at("smoke")[name].recipe
    if has_capsules:
        assert len(series["turned"]) == encodings.TURNED * 11 * 144
        assert len(series["picture_of_each"]) == recipe.capsules * 144
        assert len(series["picture_without_each"]) == recipe.capsules * 144
        assert sum(series["rank_shares"]) == pytest.approx(recipe.capsules, abs=1e-2)
    sets, _ = encodings.digits(recipe, Context(seed=0))
    test = sets["test"]
    affnist = sets["affnist"]
    assert len(affnist.images) == 7 * len(test.images)
    if name != "cnn":
        assert metrics["error_mnist"].n == len(test.images)
        assert metrics["error_affnist"].n == len(affnist.images)
    for part, digits, last in (("mnist", test, 0), ("affnist", affnist, -len(test.images))):
        images = digits.images / 255
        with torch.no_grad():
            output = networks[0](images)
        if name != "cnn":
            errors = (output.reconstruction - images.flatten(1)).square().sum(dim=1)
            error = metrics[f"error_{part}"].value
            assert error == pytest.approx(float(errors.mean()), rel=1e-4)
        if recipe.supervised:
            right = output.activation.argmax(dim=1) == digits.labels
            share = float(right[last:].float().mean())
            assert metrics[f"{part}_accuracy"].value == pytest.approx(share)


def test_a_network_that_has_not_learned_decides_nothing():
    unexplained = Metric(value=0.6, n=1, unit="share")
    series = {"batch_accuracy": [0.5] * 40}
    record = SimpleNamespace(metrics={"unexplained": unexplained}, series=series)
    assert SPARSE.unfit(record) == ["is above a limit (unexplained 0.6, and the limit is 0.5)"]
    assert "did not learn" in SUPCAPS.unfit(record)[0]


def test_controls_classify_as_the_encodings_are(tmp_path):
    experiment = EXPERIMENTS["controls"]
    for trial in experiment.trials("smoke"):
        record = run_trial(experiment, trial, Store(tmp_path), Context(seed=0))
        assert record.exit == "ok", record.message
        accuracies = {"mnist_raw", "affnist_a_raw", "affnist_b_raw", "affnist_by_digit_raw"}
        assert accuracies <= set(record.metrics)


def test_principal_components_are_as_many_as_the_numbers_of_the_capsules_and_leave_the_least():
    recipe = EXPERIMENTS["controls"].at("smoke")["principal_components"].recipe
    sets, _ = encodings.digits(recipe, Context(seed=0))
    mean, basis = controls.components(recipe, sets["train"].images, 0)
    count = recipe.capsules * recipe.dim
    assert basis.shape == (144, count)
    assert (mean.view(12, 12)[[0, -1]] > 0).any(), "digits are shifted as far as the edge"
    torch.testing.assert_close(basis.T @ basis, torch.eye(count), atol=1e-4, rtol=0)
    digits = sets["train"].images[:, :, 2:10, 2:10]
    shifted = recipe.prepare(digits, torch.Generator().manual_seed(5)).flatten(1) - mean
    random = torch.randn(144, count, generator=torch.Generator().manual_seed(1))
    random_basis, _ = torch.linalg.qr(random)
    residues = []
    for axes in (basis, random_basis):
        residues.append((shifted - shifted @ axes @ axes.T).square().sum())
    assert residues[0] < 0.5 * residues[1]


def test_attacks_share_the_trainings_of_table_1():
    experiment = EXPERIMENTS["attacks"]
    for scale in ("smoke", "cpu", "paper"):
        for name, arm in experiment.at(scale).items():
            of_table_1 = ENCODINGS.trainings(ENCODINGS.at(scale)[name], 0)
            assert experiment.trainings(arm, 0) == of_table_1


def test_attacks_lower_the_accuracy(tmp_path, monkeypatch):
    brightness = []
    head = attacks.head

    def watched(*arguments):
        scores = head(*arguments)

        def watched_scores(images):
            darkest, brightest = images.detach().aminmax()
            brightness.append((float(darkest), float(brightest)))
            return scores(images)

        return watched_scores

    monkeypatch.setattr(attacks, "head", watched)
    experiment = EXPERIMENTS["attacks"]
    for trial in experiment.trials("smoke"):
        record = run_trial(experiment, trial, Store(tmp_path), Context(seed=0))
        assert record.exit == "ok", record.message
        accuracies = record.series["accuracy_left"]
        assert len(accuracies) == len(record.series["epsilons"]) == len(attacks.EPSILONS)
        assert accuracies[-1] < accuracies[0]
    assert set(brightness) == {(0.0, 1.0)}, "attacked digits are still pictures"


def test_the_linear_classifier_reads_the_masked_encodings():
    """It classifies as scikit-learn's own prediction does."""
    from sklearn.linear_model import LogisticRegression

    recipe = smoke_recipe()
    sets, _ = encodings.digits(recipe, Context(seed=0))
    network = recipe.build((1, 12, 12), 10).eval()
    scores = attacks.head(network, recipe, sets["train"], 300)
    rows = torch.linspace(0, len(sets["train"].images) - 1, 300).long()
    fitted = sets["train"].rows(rows)
    codes = encodings.encode(network, recipe, fitted)["masked"]
    model = LogisticRegression(C=100, max_iter=300).fit(codes, fitted.labels.numpy())
    predicted = model.predict(encodings.encode(network, recipe, sets["test"])["masked"])
    answers = scores(recipe.framed(sets["test"].images)).argmax(dim=1).numpy()
    assert (answers == predicted).mean() > 0.99

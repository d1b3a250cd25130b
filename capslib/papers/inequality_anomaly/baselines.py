"""The two baselines of the paper that are no capsule networks: ABC and negative learning.

See §3.4 and the released code.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from capslib.config import Config
from capslib.errors import Interrupted
from capslib.papers.common import in_unit
from capslib.papers.experiment import Arm, Experiment, Outcome, Scale, no_training
from capslib.papers.inequality_anomaly import detection, recipe
from capslib.papers.inequality_anomaly.recipe import AnomalyRecipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from capslib.training import Context, Examples


class BaselineOptions(Config):
    """How long both baselines train, on the examples and with the batches of a recipe."""

    abc_epochs: int = Field(300, ge=1, title="epochs of the autoencoder")
    nl_epochs: int = Field(300, ge=1, title="epochs of the Boltzmann machine")
    hidden: int = Field(500, ge=1, title="hidden units of the Boltzmann machine")


def run(arm: Arm, context: Context) -> Outcome:
    """Train the baselines on flat inputs; measure AUROC and average precision of their scores.

    They are of the whole test set. ``abc`` reconstructs anomalies, as released, and scores by
    exp(−MSE); ``abc_usual`` reconstructs normal examples and scores by the MSE. ``nl`` is
    exp(−MSE) of the trained machine, ``nl_error`` its MSE. ``nl_untrained`` is exp(−MSE) before
    training: the released machine keeps its weights where they are not saved, so that its
    evaluation draws new ones.
    """
    from capslib.papers.inequality_anomaly.scores import areas, quantiles_by_input
    from capslib.training import Examples, seeded

    splits, fingerprints = arm.recipe.splits(context)
    flat = {name: Examples(s.inputs.flatten(1), s.labels) for name, s in splits.items()}
    test, labels = flat["test"].inputs, flat["test"].labels.cpu().numpy()
    errors = {}
    for name, reconstructed in {"abc": 1, "abc_usual": 0}.items():
        errors[name] = error_of(autoencoder(flat, reconstructed, arm, context), test)
    with seeded(context.seed):
        machine = BoltzmannMachine(test.shape[1], arm.options.hidden, test.device)
        errors["nl_untrained"] = error_of(machine.reconstruct, test)
        epochs = machine.learn(flat["train"], arm, context)
        errors["nl"] = errors["nl_error"] = error_of(machine.reconstruct, test)
    scores = {}
    for name, error in errors.items():
        wide = error.double().cpu()  # exp(−MSE) of small errors would be alike in float32
        score = wide if name in ("abc_usual", "nl_error") else (-wide).exp()
        scores[name] = score.numpy()
    metrics = in_unit({"nl_epochs": epochs, **detection.composition(flat)}, 1, "count")
    metrics |= in_unit(areas(scores, labels), len(labels), "fraction")
    series = quantiles_by_input(scores, labels)
    return Outcome(metrics=metrics, series=series, data=fingerprints)


def error_of(reconstruct: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Return the mean squared error [N] of the reconstruction of every input [N, V]."""
    import torch

    errors = []
    with torch.no_grad():
        for part in inputs.split(1000):
            errors.append((reconstruct(part) - part).square().mean(dim=1))
    return torch.cat(errors)


def abc_loss(error: Tensor, reconstructed: Tensor) -> Tensor:
    """Return Σ y·MSE − (1 − y) ln(1 − e^(−MSE)) of errors [N].

    y [N] is 1 for what is to be reconstructed, 0 for what is not.
    """
    import torch

    repelled = -torch.log(-torch.expm1(-error.clamp_min(1e-12)))
    return (reconstructed * error + (1 - reconstructed) * repelled).sum()


def autoencoder(
    splits: Mapping[str, Examples], reconstructed: int, arm: Arm, context: Context
) -> nn.Module:
    """Return an autoencoder that reconstructs examples with one label and no others.

    It is trained with the recipe's clipping and early stopping.
    """
    import torch
    from torch import nn

    from capslib.training import fit, seeded

    def loss(model: nn.Module, batch: Examples) -> dict[str, Tensor]:
        error = (model(batch.inputs) - batch.inputs).square().mean(dim=1)
        return {"loss": abc_loss(error, (batch.labels == reconstructed).float())}

    def evaluate(model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"stop_loss": float(loss(model, splits["stop"])["loss"])}

    examples = splits["train"]
    visible = examples.inputs.shape[1]
    layers: list[nn.Module] = []
    with seeded(context.seed):
        for inputs, outputs in itertools.pairwise((visible, 300, 100, 20, 100, 300, visible)):
            layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    layers[-1] = nn.Sigmoid()
    model = nn.Sequential(*layers).to(examples.inputs.device)
    fit(
        model,
        examples,
        loss=loss,
        optimizer=arm.recipe.optimizer(model),
        epochs=arm.options.abc_epochs,
        evaluate=evaluate,
        batch_size=arm.recipe.batch_size,
        patience=arm.recipe.patience(),
        context=dataclasses.replace(context, checkpoint=None),
    )
    return model.eval()


class BoltzmannMachine:
    """A restricted Boltzmann machine that learns normal examples and unlearns anomalies.

    It learns by contrastive divergence. As released: weights W [V, H] start from N(0, 1),
    biases from zero; the sign is that of the weights only, and the biases learn anomalies as
    they learn normal examples. A reconstruction is made of sampled hidden units.
    """

    RATE, MOMENTUM, DECAY = 0.01, 0.5, 2e-4

    def __init__(self, visible: int, hidden: int, device: torch.device | str):
        import torch

        self.weight = torch.randn(visible, hidden).to(device)
        self.visible = torch.zeros(visible, device=device)
        self.hidden = torch.zeros(hidden, device=device)
        self.momentum = [torch.zeros_like(t) for t in (self.weight, self.visible, self.hidden)]

    def probability(self, x: Tensor) -> Tensor:
        """Return the probability of each hidden unit [N, H], for visible ones [N, V]."""
        return (x @ self.weight + self.hidden).sigmoid()

    def reconstruct(self, x: Tensor) -> Tensor:
        """Return the reconstruction [N, V] of visible units [N, V]."""
        return (self.probability(x).bernoulli() @ self.weight.T + self.visible).sigmoid()

    def update(self, x: Tensor, sign: int) -> float:
        """Take one step of contrastive divergence, k = 1, on visible units [N, V].

        Return the mean squared error of the reconstruction.
        """
        reconstruction = self.reconstruct(x)
        data, model = self.probability(x), self.probability(reconstruction)
        directions = (
            sign * (x.T @ data - reconstruction.T @ model),
            (x - reconstruction).sum(dim=0),
            (data - model).sum(dim=0),
        )
        parameters = self.weight, self.visible, self.hidden
        for parameter, momentum, direction in zip(
            parameters, self.momentum, directions, strict=True
        ):
            momentum.mul_(self.MOMENTUM).add_(direction)
            parameter.add_(momentum, alpha=self.RATE / len(x))
        self.weight.mul_(1 - self.DECAY)
        return float((x - reconstruction).square().mean())

    def learn(self, train: Examples, arm: Arm, context: Context) -> int:
        """Learn, and return for how many epochs.

        It ends where the error of normal examples has not improved for as many epochs as early
        stopping waits.
        """
        best, waited = 1.0, 0
        for epoch in range(arm.options.nl_epochs):
            if context.stop():
                raise Interrupted
            error = self._learn_epoch(train, epoch, arm.recipe.batch_size, context.seed)
            if error < best:
                best, waited = error, 0
            else:
                waited += 1
            if waited == arm.recipe.stop_after or context.max_steps is not None:
                return epoch + 1
        return arm.options.nl_epochs

    def _learn_epoch(self, train: Examples, epoch: int, batch_size: int, seed: int) -> float:
        """Learn from every batch once; return the mean error of normal examples."""
        from capslib.training import permutation

        errors = []
        order = permutation(len(train.inputs), seed, epoch)
        for batch in train.rows(order).batches(batch_size):
            normal, anomalous = batch.inputs[batch.labels == 0], batch.inputs[batch.labels == 1]
            if len(normal):
                errors.append(self.update(normal, 1))
            if len(anomalous):
                self.update(anomalous, -1)
        return sum(errors) / len(errors)


WHICH_EXAMPLES = ("data", "setup", "kind", "percent", "nrg_pam", "sees")
"""The fields of a network's recipe that choose the examples."""
SHARED = ("normals", "stop_examples", "batch_size", "downsample")
"""The fields of a network's recipe in which sets and scales differ for the baselines, too."""
REDUCED_OPTIONS: dict[Scale, dict[str, int]] = {
    "smoke": dict(abc_epochs=2, nl_epochs=2, hidden=20),
    "cpu": dict(abc_epochs=20, nl_epochs=10),
}


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield the baselines of every cell of the tables, with the names of their networks."""
    for network in itertools.chain(
        detection.network_arms(scale),
        detection.lesion_arms(scale),
        detection.off_target_arms(scale),
    ):
        fields = network.recipe.model_dump(include={*WHICH_EXAMPLES, *SHARED})
        yield Arm(network.name, AnomalyRecipe(**fields), BaselineOptions())


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return the fields that a scale makes smaller."""
    fields = recipe.smaller(scale, arm)
    shared = {name: value for name, value in fields.items() if name in SHARED}
    return shared | REDUCED_OPTIONS.get(scale, {})


BASELINES = Experiment(
    name="baselines",
    paper="inequality_anomaly",
    arms=arms,
    smaller=smaller,
    run=run,
    seeds=detection.TEN_SEEDS,
    trainings=no_training,
    replicates=detection.replicates,
    budget_fields=("abc_epochs", "nl_epochs"),
)

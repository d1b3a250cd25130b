"""The two baselines of the paper that are no capsule networks: ABC and negative learning (§3.4;
released code).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field

from capslib.errors import Interrupted
from capslib.papers.common import in_unit
from capslib.papers.experiment import Outcome, Scale
from capslib.papers.inequality_anomaly import detection
from capslib.papers.inequality_anomaly.recipe import AnomalyRecipe

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capslib.training import Context, Examples


class BaselineConfig(AnomalyRecipe):
    """Both baselines on the examples of a recipe; ``epochs`` are those of the networks beside
    them and change nothing here.
    """

    UNUSED: ClassVar[frozenset[str]] = (
        AnomalyRecipe.UNUSED | AnomalyRecipe.OF_NETWORK | {"divisor", "reconstruction_weight"}
    )
    BUDGET: ClassVar[tuple[str, ...]] = ("abc_epochs", "nl_epochs")

    abc_epochs: int = Field(300, ge=1, title="epochs of the autoencoder")
    nl_epochs: int = Field(300, ge=1, title="epochs of the Boltzmann machine")
    hidden: int = Field(500, ge=1, title="hidden units of the Boltzmann machine")

    def setting(self) -> Self:
        """The paper's, without what its capsule networks only have."""
        every = super().setting().model_dump()
        return type(self)(**{name: every[name] for name in {*KEPT, *type(self).ARM}})


def run(config: BaselineConfig, context: Context) -> Outcome:
    """Train the baselines on flat inputs; AUROC and average precision of their scores on the
    whole test set.

    ``abc`` reconstructs anomalies, as released, and scores by exp(−MSE); ``abc_usual``
    reconstructs normal examples and scores by the MSE. ``nl`` is exp(−MSE) of the trained
    machine, ``nl_error`` its MSE. ``nl_untrained`` is exp(−MSE) before training: the released
    machine keeps its weights where they are not saved, so that its evaluation draws new ones.
    """
    from capslib.papers.inequality_anomaly.scores import judged, thinned
    from capslib.training import seeded

    splits, fingerprints = config.splits(context)
    flat = {name: type(of)(of.inputs.flatten(1), of.labels) for name, of in splits.items()}
    test, labels = flat["test"].inputs, flat["test"].labels.cpu().numpy()
    errors = {}
    for name, reconstructed in {"abc": 1, "abc_usual": 0}.items():
        errors[name] = error_of(autoencoder(flat, reconstructed, config, context), test)
    with seeded(context.seed):
        machine = BoltzmannMachine(test.shape[1], config.hidden, test.device)
        errors["nl_untrained"] = error_of(machine.reconstruct, test)
        epochs = machine.learn(flat["train"], config, context)
        errors["nl"] = errors["nl_error"] = error_of(machine.reconstruct, test)
    wide = {
        name: e.double().cpu() for name, e in errors.items()
    }  # exp(−MSE) of small errors would be alike in float32
    found = {
        name: (e if name in ("abc_usual", "nl_error") else (-e).exp()).numpy()
        for name, e in wide.items()
    }
    metrics = in_unit({"nl_epochs": epochs, **detection.composition(flat)}, 1, "count")
    metrics |= in_unit(judged(found, labels), len(labels), "fraction")
    return Outcome(metrics=metrics, series=thinned(found, labels), data=fingerprints)


def error_of(reconstruct: Any, inputs: Tensor) -> Tensor:
    """The mean squared error [N] of every reconstruction."""
    import torch

    with torch.no_grad():
        return torch.cat(
            [(reconstruct(x) - x).square().mean(dim=1) for x in inputs.split(1000)]
        )


def abc_loss(error: Tensor, reconstructed: Tensor) -> Tensor:
    """Σ y·MSE − (1 − y) ln(1 − e^(−MSE)) of errors [N]; y [N] is 1 for what is to be
    reconstructed, 0 for what is not.
    """
    import torch

    repelled = -torch.log(-torch.expm1(-error.clamp_min(1e-12)))
    return (reconstructed * error + (1 - reconstructed) * repelled).sum()


def autoencoder(
    splits: Mapping[str, Examples], reconstructed: int, config: BaselineConfig, context: Context
) -> nn.Module:
    """An autoencoder that reconstructs examples with one label and no others, with the recipe's
    clipping and early stopping.
    """
    import itertools

    import torch
    from torch import nn

    from capslib.training import fit, seeded

    def loss(model: nn.Module, batch: Examples) -> dict[str, Tensor]:
        error = (model(batch.inputs) - batch.inputs).square().mean(dim=1)
        return {"loss": abc_loss(error, (batch.labels == reconstructed).float())}

    def evaluate(model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"stop_loss": float(loss(model, splits["stop"])["loss"])}

    widths = (
        splits["train"].inputs.shape[1],
        300,
        100,
        20,
        100,
        300,
        splits["train"].inputs.shape[1],
    )
    with seeded(context.seed):
        layers = [
            m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.Tanh())
        ]
        model = nn.Sequential(*layers[:-1], nn.Sigmoid()).to(splits["train"].inputs.device)
    fit(
        model,
        splits["train"],
        loss=loss,
        optimizer=config.optimizer(model),
        epochs=config.abc_epochs,
        evaluate=evaluate,
        batch_size=config.batch_size,
        patience=config.patience(),
        context=dataclasses.replace(context, checkpoint=None),
    )
    return model.eval()


class BoltzmannMachine:
    """A restricted Boltzmann machine that learns normal examples by contrastive divergence, and
    unlearns anomalies.

    As released: weights W [V, H] start from N(0, 1), biases from zero; the sign is that of the
    weights only, and the biases learn anomalies as they learn normal examples. A reconstruction
    is made of sampled hidden units.
    """

    RATE, MOMENTUM, DECAY = 0.01, 0.5, 2e-4

    def __init__(self, visible: int, hidden: int, device: Any):
        import torch

        self.weight = torch.randn(visible, hidden).to(device)
        self.visible, self.hidden = (
            torch.zeros(visible, device=device),
            torch.zeros(hidden, device=device),
        )
        self.momentum = [torch.zeros_like(t) for t in (self.weight, self.visible, self.hidden)]

    def probability(self, x: Tensor) -> Tensor:
        """Of each hidden unit [N, H], for visible ones [N, V]."""
        return (x @ self.weight + self.hidden).sigmoid()

    def reconstruct(self, x: Tensor) -> Tensor:
        return (self.probability(x).bernoulli() @ self.weight.T + self.visible).sigmoid()

    def update(self, x: Tensor, sign: int) -> float:
        """One step of contrastive divergence, k = 1; the mean squared error of the
        reconstruction.
        """
        again = self.reconstruct(x)
        before, after = self.probability(x), self.probability(again)
        directions = (
            sign * (x.T @ before - again.T @ after),
            (x - again).sum(dim=0),
            (before - after).sum(dim=0),
        )
        parameters = self.weight, self.visible, self.hidden
        for parameter, momentum, direction in zip(
            parameters, self.momentum, directions, strict=True
        ):
            momentum.mul_(self.MOMENTUM).add_(direction)
            parameter.add_(momentum, alpha=self.RATE / len(x))
        self.weight.mul_(1 - self.DECAY)
        return float((x - again).square().mean())

    def learn(self, train: Examples, config: BaselineConfig, context: Context) -> int:
        """Epochs until the error of normal examples has not improved for as many as early
        stopping waits; their number.
        """
        from capslib.training import permutation

        best, waited = 1.0, 0
        for epoch in range(config.nl_epochs):
            if context.stop():
                raise Interrupted
            errors = []
            for batch in train[permutation(len(train.inputs), context.seed, epoch)].batches(
                config.batch_size
            ):
                normal, anomalous = (batch.inputs[batch.labels == label] for label in (0, 1))
                if len(normal):
                    errors.append(self.update(normal, 1))
                if len(anomalous):
                    self.update(anomalous, -1)
            mean = sum(errors) / len(errors)
            best, waited = (mean, 0) if mean < best else (best, waited + 1)
            if waited == config.stop_after or context.max_steps is not None:
                return epoch + 1
        return config.nl_epochs


KEPT = ("normals", "stop_examples", "batch_size", "downsample")
"""What differs between sets and scales for the baselines too."""
EPOCHS: dict[Scale, dict[str, int]] = {
    "smoke": dict(abc_epochs=2, nl_epochs=2, hidden=20),
    "cpu": dict(abc_epochs=20, nl_epochs=10),
    "paper": {},
}


def grid(scale: Scale) -> list[BaselineConfig]:
    """Beside every cell of the tables, in their order."""
    every = [
        *detection.cells(scale),
        *detection.lesion_grid(scale),
        *detection.off_target_grid(scale),
    ]
    own = (
        {
            name: value
            for name, value in c.differences().items()
            if name in {*KEPT, *AnomalyRecipe.ARM}
        }
        for c in every
    )
    return [BaselineConfig(**{**fields, **EPOCHS[scale]}) for fields in own]

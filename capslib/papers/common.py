"""What the experiments of all chapters share: turning a training into metrics and curves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from capslib.papers.experiment import Metric, Outcome
from capslib.recipes import Objective

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from capslib.attacks import Loss
    from capslib.recipes import Recipe, Trained
    from capslib.training import Examples, History


class SpreadLoss(Objective):
    """The spread loss, whose margin grows while the network trains: ``margin_at(progress)``."""

    def __init__(
        self, recipe: Recipe, device: torch.device, margin_at: Callable[[float], float]
    ):
        import torch

        super().__init__(recipe)
        self.margin, self.margin_at = torch.zeros((), device=device), margin_at

    def at(self, progress: float) -> None:
        self.margin.fill_(self.margin_at(progress))

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        from capslib.losses import spread_loss

        return spread_loss(scores, labels, self.margin)


def bias_name(bias: bool) -> str:
    """Return how the name of an arm says whether there is a bias."""
    return "bias" if bias else "no_bias"


def abscissa(n: int) -> list[float]:
    """Return 1, 2, … n as a series: epochs or steps."""
    return [float(number) for number in range(1, n + 1)]


def number_of_parameters(module: nn.Module) -> int:
    """Return how many parameters a module has."""
    return sum(parameter.numel() for parameter in module.parameters())


def bytes_kept(network: nn.Module, forward: Callable[[], Any]) -> int:
    """Return the bytes that a forward pass keeps for the gradient, besides parameters.

    Storage that tensors share counts once.
    """
    from torch.autograd.graph import saved_tensors_hooks

    parameters = {p.untyped_storage().data_ptr() for p in network.parameters()}
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        output = forward()  # holds the storages until all are counted
    total = sum(sizes.values())
    del output
    return total


def rounded(values: Tensor | np.ndarray) -> list[float]:
    """Return values [N] as a record keeps them, to five decimal places."""
    return [round(value, 5) for value in values.tolist()]


def squared_error(output: Any, images: Tensor) -> Tensor:
    """Return Σ (x̂ − x)² over the pixels of each image, [N]."""
    return (output.reconstruction - images.flatten(1)).square().sum(dim=1)


def start_at_half(recipe: Recipe, network: nn.Module, train: Examples, seed: int) -> None:
    """Set β and λ of EM routing so that capsules are about half active on 16 images."""
    from capslib.training import permutation

    rows = permutation(len(train.inputs), seed, 0)[: min(16, recipe.batch_size)]
    network.start_at_half(recipe.seen(train.inputs[rows.to(train.inputs.device)]))


def cross_entropy(scores: Callable[[Tensor], Tensor]) -> Loss:
    """Return the cross entropy of class scores [N, C], image by image. An attack raises it."""
    from torch.nn import functional as F

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(scores(images), labels, reduction="none")

    return loss


def in_unit(values: Mapping[str, float], n: int, unit: str) -> dict[str, Metric]:
    """Return metrics that were all measured on ``n`` examples, in one unit."""
    return {name: Metric(value=value, n=n, unit=unit) for name, value in values.items()}


def outcome(
    trained: Trained,
    metrics: Mapping[str, Metric],
    series: Mapping[str, Sequence[float]] = {},
    curves: Collection[str] = (),
    rival: Trained | None = None,
) -> Outcome:
    """Return the outcome of a training, from metrics and series of its experiment.

    Loss, training accuracy, data, parameters and the path of the routing are added. ``curves``
    names the metrics to keep for every epoch. ``rival`` is another network, whose training
    accuracy is kept, too.
    """
    from capslib.routing import Routing

    history = trained.history
    all_series = {name: history.epochs[name] for name in curves}
    if curves:
        all_series["epochs"] = abscissa(max(map(len, all_series.values())))
    all_series |= {name: list(curve) for name, curve in series.items()}
    all_series |= thinned(history)
    if rival is not None:
        all_series["batch_accuracy_beside"] = thinned(rival.history)["batch_accuracy"]
    routed = any(isinstance(module, Routing) for module in trained.network.modules())
    return Outcome(
        metrics=dict(metrics),
        series=all_series,
        data=list(trained.data),
        parameters=number_of_parameters(trained.network),
        routing_path=history.routing_path if routed else "none",
    )


def thinned(history: History, points: int = 300) -> dict[str, list[float]]:
    """Return loss and training accuracy as means over at most ``points`` stretches of steps.

    The stretches are equally long, and the last may overlap the one before; ``steps`` has the
    last step of each.
    """
    steps = len(history.terms["loss"])
    width = max(1, -(-steps // points))
    ends = [min(start + width, steps) for start in range(0, steps, width)]
    curves = {"steps": list(map(float, ends))}
    for name, term in (("loss", "loss"), ("batch_accuracy", "accuracy")):
        curve = history.terms.get(term)
        if curve:
            stretches = [curve[max(0, end - width) : end] for end in ends]
            curves[name] = [round(sum(part) / len(part), 5) for part in stretches]
    return curves

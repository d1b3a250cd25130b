"""A digit, routed: test images in two small CapsNets, trained while the book is built.

``capslib`` computes every number; the script of the page looks them up.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsbook import templating
from capslib.data import load
from capslib.lab.plots import routing_color, routing_name
from capslib.layers import DenseCapsules, PrimaryCapsules, dense_decoder
from capslib.losses import margin_loss, spread_loss
from capslib.routing import RoutingResult
from capslib.training import Context, Examples, fit, seeded

CLASSES = 10
SIDE = 8
"""Rows and columns of an image."""
TYPES = 4
GRID = 3
"""Rows and columns of the primary capsules of a type."""
CHILDREN = TYPES * GRID * GRID
ITERATIONS = 3
STRONGEST = 2
"""How many classes are drawn with their votes: the most active after the last iteration."""

EPOCHS = 20
BATCH_SIZE = 32
RATE = 0.005
WARM_UP = 200
"""Steps in which the learning rate rises; it falls to zero. With 50, some seeds of EM fail."""
RECONSTRUCTION_WEIGHT = 20

ROUTINGS = {"dynamic": {}, "em": {"variance_offset": 0.1}}
LOSSES = {"dynamic": margin_loss, "em": functools.partial(spread_loss, margin=0.9)}
"""The loss of each routing's own paper."""


class Shown(NamedTuple):
    """What the page shows when it opens."""

    image: int
    routing: str
    iterations: int


SHOWN = Shown(image=8, routing="dynamic", iterations=3)


class DigitCapsNet(nn.Module):
    """A CapsNet for images [N, 1, 8, 8] with labels [N].

    It returns what the class capsules make of them, and reconstructions [N, 64] from the poses
    of the labelled classes.
    """

    def __init__(self, routing: str, **options: object):
        super().__init__()
        self.conv = nn.Conv2d(1, 32, 3)  # 8 × 8 pixels become 6 × 6 features,
        self.primary = PrimaryCapsules(32, TYPES, 8, kernel=4, stride=1)  # and 3 × 3 capsules
        self.classes = DenseCapsules(
            CHILDREN, CLASSES, 8, 8, routing=routing, weight_std=0.3, **options
        )
        self.decoder = dense_decoder(CLASSES * 8, (128,), (SIDE, SIDE))

    def primary_capsules(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.primary(F.relu(self.conv(images)))

    def decode(self, pose: Tensor, labels: Tensor) -> Tensor:
        mask = F.one_hot(labels, CLASSES)[..., None]  # [N, J, 1]
        return self.decoder((pose * mask).flatten(1))

    def forward(self, images: Tensor, labels: Tensor) -> tuple[RoutingResult, Tensor]:
        result = self.classes(*self.primary_capsules(images))
        return result, self.decode(result.pose, labels)


def examples(split: str) -> Examples:
    """Return scikit-learn's digits, in 0…1."""
    digits = load("digits", split)
    return Examples(torch.tensor(digits.images) / 255, torch.tensor(digits.labels))


def train(routing: str, seed: int = 0) -> DigitCapsNet:
    """Return a network that has learned to classify and to reconstruct the training images."""
    digits = examples("train")
    with seeded(seed):
        network = DigitCapsNet(routing, **ROUTINGS[routing])
    if routing == "em":
        pose, activation = network.primary_capsules(digits.inputs[:256])
        network.classes.routing.start_at_half(network.classes.votes(pose), activation)
    optimizer = torch.optim.Adam(network.parameters())
    steps = EPOCHS * math.ceil(len(digits.inputs) / BATCH_SIZE)

    def loss(network: nn.Module, batch: Examples) -> dict[str, Tensor]:
        images, labels = batch
        result, reconstruction = network(images, labels)
        classification = LOSSES[routing](result.activation, labels)
        error = F.mse_loss(reconstruction, images.flatten(1))
        return {"loss": classification + RECONSTRUCTION_WEIGHT * error}

    def set_rate(step: int) -> None:
        rate = RATE * min(1, (step + 1) / WARM_UP) * (1 - step / steps)
        optimizer.param_groups[0]["lr"] = rate

    fit(
        network,
        digits,
        loss=loss,
        optimizer=optimizer,
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        context=Context(seed=seed),
        before_step=set_rate,
    )
    return network.eval()


class Step(NamedTuple):
    """What a network makes of an image after some iterations, in thousandths."""

    activation: list[int]  # [J]
    share: list[int]  # [J], of the coupling of all children
    coupling: list[list[int]]  # [2, I], to the two strongest classes
    pose: list[list[int]]  # [2, 2], in their planes
    reconstruction: list[int]  # [64]


class Routed(NamedTuple):
    """An image in a network, in thousandths. Planes are scaled to −1…1."""

    primary: list[int]  # [I], activations
    classes: list[int]  # [2], the strongest
    votes: list[list[list[int]]]  # [2, I, 2], in their planes
    steps: list[Step]


@torch.no_grad()
def route(network: DigitCapsNet, images: Tensor) -> list[RoutingResult]:
    """Return what the class capsules make of images after one iteration, two …"""
    pose, activation = network.primary_capsules(images)
    votes = network.classes.votes(pose)
    return [
        network.classes.routing(votes, activation, iterations=t)
        for t in range(1, ITERATIONS + 1)
    ]


class Summary(NamedTuple):
    """A network on all test images, by iterations, in 0…1."""

    accuracy: list[float]
    share: list[float]  # of all coupling: that of the strongest class


def summary(network: DigitCapsNet, digits: Examples) -> Summary:
    """Return how often a network is right, and how much coupling its answer has."""
    accuracy, share = [], []
    for result in route(network, digits.inputs):
        answer = result.activation.argmax(dim=-1)
        accuracy.append(float((answer == digits.labels).float().mean()))
        coupling = result.coupling.mean(dim=1)  # [N, J]
        share.append(float(coupling.gather(1, answer[:, None]).mean()))
    return Summary(accuracy, share)


def chosen(digits: Examples) -> list[int]:
    """Return the rows of the first two images of each class."""
    rows = [(digits.labels == label).nonzero()[:2, 0] for label in range(CLASSES)]
    return torch.cat(rows).tolist()


def plane(votes: Tensor, pose: Tensor) -> Tensor:
    """Return axes [D, 2] of the plane in which votes [I, D] vary most.

    The ``pose`` points to the right and up.
    """
    _, _, axes = torch.linalg.svd(votes - votes.mean(dim=0), full_matrices=False)
    axes = axes[:2].T
    return axes * torch.where(pose @ axes < 0, -1, 1)


@torch.no_grad()
def routed(network: DigitCapsNet, image: Tensor) -> Routed:
    """Return what the page shows of an image [1, 8, 8] in a network."""
    pose, activation = network.primary_capsules(image[None])
    votes = network.classes.votes(pose)[0]  # [I, J, D]
    results = route(network, image[None])
    final = results[-1]
    strongest = final.activation[0].topk(STRONGEST).indices.tolist()
    axes = {j: plane(votes[:, j], final.pose[0, j]) for j in strongest}
    points = torch.stack([votes[:, j] @ axes[j] for j in strongest])  # [2, I, 2]
    poses = []
    for result in results:
        poses.append(torch.stack([result.pose[0, j] @ axes[j] for j in strongest]))
    edge = max(float(x.abs().max()) for x in (points, *poses))
    steps = []
    for result, projected in zip(results, poses, strict=True):
        reconstruction = network.decode(result.pose, result.activation.argmax(dim=-1))
        step = Step(
            activation=thousandths(result.activation[0]),
            share=thousandths(result.coupling[0].mean(dim=0)),
            coupling=thousandths(result.coupling[0][:, strongest].T),
            pose=thousandths(projected / edge),
            reconstruction=thousandths(reconstruction[0]),
        )
        steps.append(step)
    return Routed(thousandths(activation[0]), strongest, thousandths(points / edge), steps)


def thousandths(x: Tensor) -> list:
    """Return numbers as whole thousandths."""
    return x.mul(1000).round().int().tolist()


def draw(networks: Mapping[str, DigitCapsNet]) -> str:
    """Return the digits as HTML: drawn as ``SHOWN`` says, with all other numbers in it."""
    digits = examples("test")
    rows = chosen(digits)
    images = digits.inputs[rows]
    entries, summaries = {}, {}
    for routing, network in networks.items():
        entries[routing] = [routed(network, image) for image in images]
        summaries[routing] = summary(network, digits)
    names = {routing: routing_name(routing) for routing in networks}
    labels = digits.labels[rows].tolist()
    pictures = thousandths(images.flatten(1))
    table = {}
    for routing, entry in entries.items():
        table[routing] = [names[routing], routing_color(routing), entry]
    data = {"labels": labels, "images": pictures, "routings": table}
    entry = entries[SHOWN.routing][SHOWN.image]
    step = entry.steps[SHOWN.iterations - 1]
    first, second = sorted(range(CLASSES), key=lambda j: -step.activation[j])[:2]
    return templating.draw(
        "digits",
        shown=SHOWN,
        names=names,
        color=routing_color(SHOWN.routing),
        iterations=ITERATIONS,
        labels=labels,
        images=pictures,
        entry=entry,
        step=step,
        first=first,
        second=second,
        side=SIDE,
        types=TYPES,
        grid=GRID,
        summaries=summaries,
        count=len(digits.labels),
        data=data,
    )

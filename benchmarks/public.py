"""Capsule layers of public repositories, imported from clones that a reader made.

Their code is no part of this project. ``python -m benchmarks --public FOLDER`` measures each
repository that has a clone in FOLDER, under its own name, beside capslib: the same shapes,
input and, in a layer, the same matrices. Only repositories are here whose code runs unchanged.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.cases import SHARED, LayerCase, StepCase
from capslib.errors import UserError
from capslib.networks.em_routing import CNNResult

TOLERANCE = 1e-3
"""The largest relative difference between layers that compute the same, in float32."""

Layer = Callable[[Tensor, Tensor], Tensor]
"""A function of poses [N, I, …] and activations [N, I] that gives the poses of parents."""
Adapter = Callable[[ModuleType, LayerCase | StepCase, str], Layer | nn.Module]
"""A function of a repository's module, a case and a device: a layer, or a step's network."""


@dataclass(frozen=True)
class Implementation:
    """What a public repository has of a case.

    ``agrees`` names what it has in common with capslib: "gradient" (then also the output),
    "output", or "" for an algorithm of its own, or for initial weights of its own.
    """

    repository: str  # owner/name on GitHub
    commit: str  # at which it was tried
    file: str  # which is imported
    case: str
    adapter: Adapter
    agrees: str = ""

    @property
    def url(self) -> str:
        """The page of the repository at the commit."""
        return f"https://github.com/{self.repository}/tree/{self.commit}"

    def clone(self, folder: Path) -> Path:
        """Return where the clone lies in a folder."""
        return folder / self.repository.split("/")[1]

    def path(self, folder: Path) -> Path:
        """Return the path of the file in a clone; UserError if it is not there."""
        path = self.clone(folder) / self.file
        if not path.is_file():
            raise UserError(
                f"{self.clone(folder)} has no {self.file}, which {self.repository} has at "
                f"commit {self.commit}. Clone {self.url} there, at that commit."
            )
        return path

    def module(self, folder: Path) -> ModuleType:
        """Import the file from a clone."""
        path = self.path(folder)
        spec = importlib.util.spec_from_file_location(f"public_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def clones(folder: Path) -> list[Implementation]:
    """Return the implementations with a clone in a folder.

    Raises UserError if there is no clone, or if a clone has not the file that is imported.
    """
    if not folder.is_dir():
        raise UserError(f"--public {folder} is no folder. Name one that holds clones.")
    cloned = [code for code in IMPLEMENTATIONS if code.clone(folder).is_dir()]
    if not cloned:
        names = ", ".join(sorted({code.repository for code in IMPLEMENTATIONS}))
        raise UserError(f"{folder} holds a clone of none of {names}.")
    for implementation in cloned:
        implementation.path(folder)
    return cloned


def _implementation(repository: str, case: LayerCase | StepCase) -> Implementation:
    """Return what a repository has of a case."""
    for implementation in IMPLEMENTATIONS:
        if (implementation.repository, implementation.case) == (repository, case.name):
            return implementation
    raise KeyError(f"{repository} has no {case.name!r}")


def prepare(
    repository: str, case: LayerCase | StepCase, folder: Path, device: str
) -> Callable[[], object]:
    """Return a function that runs a repository's form of a case, forward and backward."""
    implementation = _implementation(repository, case)
    adapted = implementation.adapter(implementation.module(folder), case, device)
    if isinstance(case, StepCase):
        return case.training_step(adapted, device)
    return case.both_ways(adapted, device)


class Agreement(NamedTuple):
    """What a repository has in common with capslib, and how far it is from it there."""

    agrees: str
    """As in :class:`Implementation`."""
    difference: float | None
    """The largest one, relative to the largest entry; None where nothing is in common."""


def agreement(
    repository: str, case: LayerCase | StepCase, folder: Path, device: str
) -> Agreement:
    """Return how well a repository agrees with capslib where it should.

    Compared are the poses of parents, and the gradient of children. Raises UserError for a
    difference above ``TOLERANCE``.
    """
    implementation = _implementation(repository, case)
    if not implementation.agrees:
        return Agreement("", None)
    ours = case.prepare("eager", device)()
    theirs = prepare(repository, case, folder, device)()
    count = 2 if implementation.agrees == "gradient" else 1
    errors = []
    for expected, result in zip(ours[:count], theirs[:count], strict=True):
        error = (result.reshape(expected.shape) - expected).abs().max() / expected.abs().max()
        errors.append(error)
    worst = torch.stack(errors).max().item()  # NaN if one of them is
    if not worst < TOLERANCE:
        raise UserError(
            f"{repository} is {worst:.1g} from capslib, and more than {TOLERANCE} is not "
            f"rounding. Check out {implementation.commit}, at which it agreed."
        )
    return Agreement(implementation.agrees, float(f"{worst:.1e}"))


# ---------------------------------------------------------------------------------- adapters


def adambielski_layer(module: ModuleType, case: LayerCase, device: str) -> Layer:
    """Return a layer with dynamic routing, whose first logits are parameters at zero."""
    (I, J, D, k), (_, _, weight) = case.weight, case.start(device)
    routing = module.AgreementRouting(I, J, 2)  # it counts iterations after the first
    layer = module.CapsLayer(I, k, J, D, routing).to(device)
    layer.weights.data.copy_(weight.permute(0, 3, 1, 2).reshape(I, k, J * D))
    return lambda pose, activation: layer(pose)


def danielhavir_layer(module: ModuleType, case: LayerCase, device: str) -> Layer:
    """Return a layer with dynamic routing; gradients take the couplings for constants."""
    (I, J, D, k), (_, _, weight) = case.weight, case.start(device)
    layer = module.RoutingCapsules(k, I, J, D, 3, torch.device(device)).to(device)
    layer.W.data.copy_(weight.transpose(0, 1)[None])
    return lambda pose, activation: layer(pose)


def jindongwang_layer(module: ModuleType, case: LayerCase, device: str) -> Layer:
    """Return a layer whose couplings are shared by the batch and sum to one over children."""
    (I, J, D, k), (_, _, weight) = case.weight, case.start(device)
    module.USE_CUDA = device.startswith("cuda")  # its own switch
    layer = module.DigitCaps(J, I, k, D).to(device)
    layer.W.data.copy_(weight[None])
    return lambda pose, activation: layer(pose)


def apple_layer(module: ModuleType, case: LayerCase, device: str) -> Layer:
    """Return a layer with inverted dot-product attention, which has no squash."""
    (I, J, D, k), (_, _, weight) = case.weight, case.start(device)
    layer = module.CapsuleFC(I, k, J, D, matrix_pose=False, dp=0.0).to(device)
    layer.w.data.copy_(weight.permute(0, 3, 1, 2))

    def parents(pose: Tensor, activation: Tensor) -> Tensor:
        result = None
        for iteration in range(3):
            result = layer(pose, iteration, result)
        return result

    return parents


def glassroom_layer(module: ModuleType, case: LayerCase, device: str) -> Layer:
    """Return a layer with EM routing, whose parents have net benefits, zero at the start."""
    (I, J, *_), (_, _, weight) = case.weight, case.start(device)
    layer = module.GenerativeMatrixRouting(I, J, d_cov=4, d_inp=4, d_out=4).to(device)
    layer.W.data.copy_(weight)
    return lambda pose, activation: layer(activation.logit(), pose)[1]


class LengthsAsActivations(nn.Module):
    """The second result of a network, the lengths of its class capsules, as activations."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> CNNResult:
        return CNNResult(self.network(images)[1])


def adambielski_network(module: ModuleType, case: StepCase, device: str) -> nn.Module:
    """Return the network of the repository, which has no decoder."""
    return LengthsAsActivations(module.CapsNet(2))


CLASS_CASE, EM_CASE, STEP_CASE = (case.name for case in SHARED)
BIELSKI = dict(
    repository="adambielski/CapsNet-pytorch",
    commit="bee0cbee5bb8b30399e75c751d3085c2f261dea3",
    file="net.py",
)
IMPLEMENTATIONS = (
    Implementation(**BIELSKI, case=CLASS_CASE, adapter=adambielski_layer, agrees="gradient"),
    Implementation(
        repository="danielhavir/capsule-network",
        commit="1c37c2f10d3485672fd609748502a45d40e54bd7",
        file="capsules.py",
        case=CLASS_CASE,
        adapter=danielhavir_layer,
        agrees="output",
    ),
    Implementation(
        repository="jindongwang/Pytorch-CapsuleNet",
        commit="c5031b719dcd2e67bbc6ed4d1557af4362c1d9d0",
        file="capsnet.py",
        case=CLASS_CASE,
        adapter=jindongwang_layer,
    ),
    Implementation(
        repository="apple/ml-capsules-inverted-attention-routing",
        commit="53899ae5b75b576a693a1bd79a2173ac3f1cdf1d",
        file="src/layers.py",
        case=CLASS_CASE,
        adapter=apple_layer,
    ),
    Implementation(
        repository="glassroom/heinsen_routing",
        commit="ac07d8878c1404156c780f3abc3ec65c820d6650",
        file="heinsen_routing/heinsen_routing.py",
        case=EM_CASE,
        adapter=glassroom_layer,
        agrees="gradient",
    ),
    Implementation(**BIELSKI, case=STEP_CASE, adapter=adambielski_network),
)

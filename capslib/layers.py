"""Capsule layers: a layer makes votes, and a routing of your choice makes parents of them.

Between dense layers, a capsule is a pose [N, I, D] and an activation [N, I], the length of a
vector pose. Between convolutional layers, capsules form a grid: poses [N, H, W, types, 4, 4] of
matrix capsules, or [N, H, W, types, 16] of vector capsules, and activations [N, H, W, types].
The vote of a vector capsule is W u. That of a matrix capsule is M W, or W M/‖W‖ if "bounded".
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from einops import rearrange
from torch import Tensor, nn

from capslib.errors import check_name
from capslib.registry import Registry
from capslib.routing import (
    Competition,
    LazyVotes,
    Normalise,
    Routing,
    RoutingResult,
    convolutional,
    make_routing,
    squash,
)
from capslib.shapes import check_positive, check_shapes

__all__ = [
    "POSE_SHAPES",
    "WEIGHT_SHAPES",
    "BFloat16Conv2d",
    "ClassCapsules",
    "ConvCapsules",
    "DenseCapsules",
    "MatrixPrimaryCapsules",
    "Pose",
    "PrimaryCapsules",
    "Transform",
    "as_capsules",
    "bounded",
    "bounded_votes",
    "convolve_in_bfloat16",
    "dense_decoder",
    "field_centres",
    "grid_size",
    "mask_of_one",
    "near_identity",
    "with_coordinates",
    "with_transposed_poses",
]

Pose = Literal["matrix", "vector"]
POSE_SHAPES = Registry("pose", {"matrix": (4, 4), "vector": (16,)})
"""The shape of a pose, of 16 numbers."""
WEIGHT_SHAPES = Registry("pose", {"matrix": (4, 4), "vector": (16, 16)})
"""The shape of a transformation of poses."""
Transform = Literal["linear", "bounded"]
"""The votes that W makes. "linear" is M W or W u, "bounded" is W M/‖W‖ (Faria 2019, eq. 1)."""


def grid_size(
    size: Sequence[int], windows: Sequence[tuple[int, int]], inputs: str = "images"
) -> tuple[int, int]:
    """Return the grid (H', W') that windows, one after the other, leave of a ``size`` (H, W).

    ``windows`` are (kernel, stride); each leaves H' = ⌊(H − kernel)/stride⌋ + 1. Raises
    ValueError, with the least size, if a window does not fit, and if ``size`` is not a height
    and a width. ``inputs`` is the word for them in its message.

    >>> grid_size((28, 28), [(9, 1), (9, 2)])
    (6, 6)
    """
    if len(size) != 2:
        raise ValueError(
            f"{inputs} have a height and a width, not {len(size)} sides: {[*size]}"
        )
    minimum = 1
    for kernel, stride in reversed(windows):
        check_positive(kernel=kernel, stride=stride)
        minimum = (minimum - 1) * stride + kernel
    if min(size) < minimum:
        fault = f"{inputs} of {size[0]} × {size[1]} are too small for the layers"
        raise ValueError(f"{fault}: {minimum} × {minimum} is the least")
    for kernel, stride in windows:
        size = [(side - kernel) // stride + 1 for side in size]
    return tuple(size)


def bounded(weight: Tensor) -> Tensor:
    """Return W/‖W‖ of matrices [..., 4, 4], by Frobenius norms: no vote outgrows its pose.

    >>> torch.linalg.matrix_norm(bounded(5 * torch.eye(4)))
    tensor(1.0000)
    """
    norm = (weight.square().sum(dim=(-2, -1), keepdim=True) + 1e-5).sqrt()
    return weight / (norm + 1e-6)


def bounded_votes(weight: Tensor, pose: Tensor) -> LazyVotes:
    """Return votes W M/‖W‖ of ``weight`` [I, J, 4, 4] and ``pose`` [N, I, 4, 4], transposed.

    A transposed vote Mᵀ Wᵀ/‖W‖ is a product in the order of lazy votes;
    :func:`with_transposed_poses` transposes the parents back.

    >>> bounded_votes(torch.randn(5, 3, 4, 4), torch.randn(7, 5, 4, 4)).form().shape
    torch.Size([7, 5, 3, 16])
    """
    return LazyVotes(bounded(weight).mT, pose.mT)


def with_transposed_poses(result: RoutingResult) -> RoutingResult:
    """Return the result with its poses [..., J, 16], matrices by rows, transposed.

    >>> result = RoutingResult(torch.arange(16.0)[None], torch.ones(1), torch.ones(5, 1))
    >>> with_transposed_poses(result).pose[0, :4]
    tensor([ 0.,  4.,  8., 12.])
    """
    return result._replace(pose=result.pose.unflatten(-1, (4, 4)).mT.flatten(-2))


def near_identity(*shape: int) -> Tensor:
    """Return initial weights [*shape, 4, 4] of bounded votes: near the identity.

    >>> bool((near_identity(5, 3) - torch.eye(4)).abs().max() <= 0.1)
    True
    """
    return torch.eye(4) + torch.empty(*shape, 4, 4).uniform_(-0.1, 0.1)


def with_coordinates(pose: Tensor) -> Tensor:
    """Return poses [N, H, W, I, 4, 4] with coordinates in 0…1 added to the first row.

    Its first three entries get row, column and number of the capsule, as in Faria's released
    code, where coordinates are added before the transformation.

    >>> with_coordinates(torch.zeros(1, 2, 2, 4, 4, 4))[0, 1, 0, 3, 0]
    tensor([0.7500, 0.2500, 0.8750, 0.0000])
    """
    check_shapes(pose=(pose, "N H W I 4 4"))
    for entry, axis in enumerate((1, 2, 3)):
        size = pose.shape[axis]
        coordinate = (torch.arange(size, device=pose.device, dtype=pose.dtype) + 0.5) / size
        offset = coordinate.new_zeros(size, 4, 4)
        offset[:, 0, entry] = coordinate
        shape = [1, 1, 1, 4, 4]
        shape[axis - 1] = size
        pose = pose + offset.view(shape)
    return pose


def as_capsules(pose: Tensor) -> tuple[Tensor, Tensor]:
    """Return vector capsules [N, I, D] as poses and activations [N, I], their lengths.

    >>> as_capsules(torch.tensor([[[3.0, 4.0]]]))[1]
    tensor([[5.]])
    """
    return pose, torch.linalg.vector_norm(pose, dim=-1)


class BFloat16Conv2d(nn.Conv2d):
    """A convolution that computes in bfloat16; parameters, input and output do not change.

    See :func:`convolve_in_bfloat16`.
    """

    def forward(self, images: Tensor) -> Tensor:
        device = images.device.type
        autocast_device = "cpu" if device == "meta" else device  # meta has no autocast
        with torch.autocast(autocast_device, dtype=torch.bfloat16):
            return super().forward(images).to(images.dtype)


def convolve_in_bfloat16(network: nn.Module) -> None:
    """Let the convolutions of a network compute in bfloat16, in training and afterwards.

    All else, routings among it, stays in float32. The parameters keep their names and values.

    >>> network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    >>> convolve_in_bfloat16(network)
    >>> network[0]
    BFloat16Conv2d(1, 4, kernel_size=(3, 3), stride=(1, 1))
    """
    for module in network.modules():
        if type(module) is nn.Conv2d:
            module.__class__ = BFloat16Conv2d  # as the same object: its owner may hold it twice


class PrimaryCapsules(nn.Module):
    """Vector capsules of feature maps, by a convolution and squash (Sabour et al. 2017, §4).

    Features [N, channels, H, W] become poses [N, types·H'·W', dim] and activations
    [N, types·H'·W'], with H' = ⌊(H − kernel)/stride⌋ + 1.

    >>> PrimaryCapsules(256, 32, 8)(torch.randn(2, 256, 20, 20))[0].shape
    torch.Size([2, 1152, 8])
    """

    def __init__(
        self,
        channels: int,
        types: int,
        dim: int,
        *,
        kernel: int = 9,
        stride: int = 2,
        bias: bool = True,
    ):
        super().__init__()
        check_positive(channels=channels, types=types, dim=dim, kernel=kernel, stride=stride)
        self.dim = dim
        self.windows = [(kernel, stride)]
        self.conv = nn.Conv2d(channels, types * dim, kernel, stride, bias=bias)

    def check(self, features: Tensor) -> None:
        """Raise ValueError unless features are [N, channels, H, W] and large enough."""
        check_shapes(features=(features, ("N", self.conv.in_channels, "H", "W")))
        grid_size(features.shape[2:], self.windows, "features")

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        self.check(features)
        pose = rearrange(self.conv(features), "n (t d) h w -> n (t h w) d", d=self.dim)
        return as_capsules(squash(pose))


class DenseCapsules(nn.Module):
    """A layer where every child votes for every parent, û_{j|i} = W_{ij} u_i.

    Poses [N, I, d] and activations [N, I] become a :class:`capslib.routing.RoutingResult`. The
    initial standard deviation of W [I, J, D, d] is ``weight_std``; "dynamic_over_children"
    learns faster from 1. ``options`` are keywords of the ``routing``. To train with EM or
    similarity routing, call :func:`capslib.routing.start_on_first_batch` on the network first.

    >>> layer = DenseCapsules(children=1152, parents=10, child_dim=8, parent_dim=16)
    >>> layer(torch.randn(2, 1152, 8), torch.rand(2, 1152)).pose.shape
    torch.Size([2, 10, 16])
    """

    def __init__(
        self,
        children: int,
        parents: int,
        child_dim: int,
        parent_dim: int,
        *,
        routing: str = "dynamic",
        weight_std: float = 0.1,
        **options: object,
    ):
        super().__init__()
        check_positive(
            children=children, child_dim=child_dim, parents=parents, parent_dim=parent_dim
        )
        weight = torch.randn(children, parents, parent_dim, child_dim)
        self.weight = nn.Parameter(weight * weight_std)
        self.routing = make_routing(routing, parents, parent_dim, **options)

    def votes(self, pose: Tensor) -> Tensor:
        """Return the votes [N, I, J, D] of poses [N, I, d]."""
        return LazyVotes(self.weight, pose).form()

    def forward(self, pose: Tensor, activation: Tensor) -> RoutingResult:
        children, _, _, child_dim = self.weight.shape
        capsules = ("N", children)
        check_shapes(pose=(pose, (*capsules, child_dim)), activation=(activation, capsules))
        return self.routing(LazyVotes(self.weight, pose), activation)


class MatrixPrimaryCapsules(nn.Module):
    """Capsules of feature maps [N, channels, H, W], by two 1×1 convolutions without bias.

    One convolution gives the poses, the other logits; activations are the logistic function of
    logits − 1 (Hinton et al. 2018, §4). Returns poses [N, H, W, types, 4, 4], or
    [N, H, W, types, 16] of vectors, and activations [N, H, W, types].

    The standard deviations of the weights and the shift of −1 are those that the released code
    names. There a reshape gives the larger deviation to two types only; here every type has
    both.

    >>> MatrixPrimaryCapsules(64, 8)(torch.randn(2, 64, 14, 14))[0].shape
    torch.Size([2, 14, 14, 8, 4, 4])
    """

    def __init__(self, channels: int, types: int, *, pose: Pose = "matrix"):
        super().__init__()
        check_positive(channels=channels, types=types)
        self.pose = POSE_SHAPES[pose]
        self.poses = nn.Conv2d(channels, types * 16, 1, bias=False)
        self.logits = nn.Conv2d(channels, types, 1, bias=False)
        _initialise(self.poses.weight, 0.5)
        _initialise(self.logits.weight, 3.0)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        check_shapes(features=(features, ("N", self.poses.in_channels, "H", "W")))
        pose = rearrange(self.poses(features), "n (b d) h w -> n h w b d", d=16)
        logit = rearrange(self.logits(features) - 1, "n b h w -> n h w b")
        return pose.unflatten(-1, self.pose), logit.sigmoid()


class ConvCapsules(nn.Module):
    """A layer where the capsules in a window of ``kernel`` × ``kernel`` vote for its parents.

    Poses [N, H, W, types, 4, 4] and activations [N, H, W, types] become those of a grid
    [N, H', W', parents], H' = ⌊(H − kernel)/stride⌋ + 1. With the ``pose`` "vector" poses are
    [N, H, W, types, 16]. All positions share W and the routing's parameters (Hinton et al.
    2018, §4). ``weight_std`` is the initial standard deviation of a linear W. Couplings are
    [N, H', W', kernel, kernel, types, parents]. To train with EM or similarity routing, call
    :func:`capslib.routing.start_on_first_batch` on the network first.

    ``normalise`` says which parents compete for a child. By default, "types+positions", all do
    whose window contains the child. With "positions-per-type" those of one type compete, with
    "types-per-position" those at one position, and with "released" they compete as in the
    authors' code. A routing whose couplings sum to one over the children, or whose ``forward``
    takes no ``competition``, routes every window on its own, "types-per-position". Raises
    ValueError for such a routing with another normaliser, and for a window larger than the
    grid.

    With the ``transform`` "bounded", W starts near the identity. With ``coordinates``,
    :func:`with_coordinates` adds to each child its place in the grid of windows. Both are for
    matrix capsules only, and raise ValueError for vectors.

    >>> layer = ConvCapsules(8, 16, kernel=3, stride=2, routing="em")
    >>> layer(torch.randn(2, 14, 14, 8, 4, 4), torch.rand(2, 14, 14, 8)).pose.shape
    torch.Size([2, 6, 6, 16, 4, 4])
    """

    def __init__(
        self,
        types: int,
        parents: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        pose: Pose = "matrix",
        routing: str = "em",
        normalise: Normalise | None = None,
        weight_std: float = 0.3,
        transform: Transform = "linear",
        coordinates: bool = False,
        **options: object,
    ):
        super().__init__()
        check_positive(types=types, parents=parents, kernel=kernel, stride=stride)
        if coordinates and pose == "vector":
            raise ValueError("coordinates are added to matrix capsules only: leave them out")
        self.kernel = kernel
        self.stride = stride
        self.pose = POSE_SHAPES[pose]
        self.transform = transform
        self.coordinates = coordinates
        shape = (kernel, kernel, types, parents)
        self.weight = nn.Parameter(_initial_weight(transform, pose, shape, weight_std))
        self.routing = make_routing(routing, parents, 16, **options)
        self.normalise = _normaliser(self.routing, routing, normalise)

    def fields(
        self, pose: Tensor, activation: Tensor
    ) -> tuple[LazyVotes, Tensor, Competition | None]:
        """Return votes, activations and competition for the routing of all windows.

        Votes [N·H'·W', I, J, 16] and activations [N·H'·W', I] are those of I = kernel²·types
        children, ordered by row, column and type.
        """
        types = self.weight.shape[2]
        capsules = ("N", "H", "W", types)
        check_shapes(pose=(pose, (*capsules, *self.pose)), activation=(activation, capsules))
        size = tuple(pose.shape[1:3])
        grid_size(size, [(self.kernel, self.stride)], "grids")
        pose = self._windows(pose.flatten(4)).unflatten(-1, self.pose)
        if self.coordinates:
            pose = with_coordinates(pose)
        pose = pose.flatten(0, 2)  # [N·H'·W', I, *self.pose]
        activation = self._windows(activation[..., None]).flatten(0, 2).squeeze(-1)
        competition = convolutional(
            size, self.kernel, self.stride, types, self.normalise, pose.device
        )
        make_votes = bounded_votes if self.transform == "bounded" else LazyVotes
        return make_votes(self.weight.flatten(0, 2), pose), activation, competition

    def _windows(self, x: Tensor) -> Tensor:
        """Return the windows [N, H', W', I, D] of a grid [N, H, W, types, D]."""
        x = x.unfold(1, self.kernel, self.stride).unfold(2, self.kernel, self.stride)
        return rearrange(x, "n h w b d k l -> n h w (k l b) d")

    def forward(self, pose: Tensor, activation: Tensor) -> RoutingResult:
        votes, children, competition = self.fields(pose, activation)
        if competition is None:
            result = self.routing(votes, children)
        else:
            result = self.routing(votes, children, competition=competition)
        if self.transform == "bounded":
            result = with_transposed_poses(result)
        grid = grid_size(pose.shape[1:3], [(self.kernel, self.stride)])
        mu, a, coupling = (t.unflatten(0, (pose.shape[0], *grid)) for t in result)
        coupling = coupling.unflatten(3, self.weight.shape[:3])
        return RoutingResult(mu.unflatten(-1, self.pose), a, coupling)


def _normaliser(routing: Routing, name: str, normalise: Normalise | None) -> Normalise:
    """Return the normaliser of a convolutional layer, the default if ``normalise`` is None.

    Raises ValueError if the routing ``name`` cannot normalise so, and UserError for an unknown
    normaliser.
    """
    if normalise is not None:
        check_name("normaliser", normalise, get_args(Normalise))
    over_parents = routing.couplings_sum_over == "parents"
    if over_parents and "competition" in inspect.signature(routing.forward).parameters:
        return normalise or "types+positions"
    if normalise not in (None, "types-per-position"):
        reason = "takes no competition" if over_parents else "normalises over the children"
        raise ValueError(
            f"the routing {name!r} {reason}, so parents at other positions cannot compete: "
            f"leave normalise={normalise!r} out"
        )
    return "types-per-position"


class ClassCapsules(nn.Module):
    """A layer where all capsules of a grid vote for every class, and all positions share W.

    ``coordinates`` [H, W, 2] (see :func:`field_centres`) are added to the first two entries of
    the right-hand column of a vote (coordinate addition; Hinton et al. 2018, §4). Takes poses
    [N, H, W, types, 4, 4], or [N, H, W, types, 16] of vectors, and activations [N, H, W,
    types]. Returns poses [N, classes, 16], activations [N, classes] and couplings [N,
    H·W·types, classes]. ``pose`` is "matrix" or "vector"; ``weight_std`` is the initial
    standard deviation of W. To train with EM or similarity routing, call
    :func:`capslib.routing.start_on_first_batch` on the network first.

    >>> layer = ClassCapsules(16, 5, routing="em")
    >>> layer(torch.randn(2, 4, 4, 16, 4, 4), torch.rand(2, 4, 4, 16)).activation.shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        types: int,
        classes: int,
        *,
        coordinates: Tensor | None = None,
        pose: Pose = "matrix",
        routing: str = "em",
        weight_std: float = 0.01,
        **options: object,
    ):
        super().__init__()
        check_positive(types=types, classes=classes)
        check_shapes(coordinates=(coordinates, "H W 2"))
        self.pose = POSE_SHAPES[pose]
        self.weight = nn.Parameter(torch.empty(types, classes, *WEIGHT_SHAPES[pose]))
        _initialise(self.weight, weight_std)
        self.register_buffer("coordinates", coordinates, persistent=False)
        self.routing = make_routing(routing, classes, 16, **options)

    def votes(self, pose: Tensor) -> Tensor:
        """Return the votes [N, H·W·types, classes, 16] of a grid of poses."""
        votes = LazyVotes(self.weight, pose.flatten(0, 2)).form().unflatten(0, pose.shape[:3])
        if self.coordinates is not None:
            rows, columns = self.coordinates[..., None, None, :].unbind(-1)  # [H, W, 1, 1]
            offset = votes.new_zeros(*rows.shape, 16)
            offset[..., 3] = rows
            offset[..., 7] = columns
            votes = votes + offset
        return rearrange(votes, "n h w b c d -> n (h w b) c d")

    def forward(self, pose: Tensor, activation: Tensor) -> RoutingResult:
        grid = ("H", "W") if self.coordinates is None else self.coordinates.shape[:2]
        capsules = ("N", *grid, self.weight.shape[0])
        check_shapes(pose=(pose, (*capsules, *self.pose)), activation=(activation, capsules))
        return self.routing(self.votes(pose), activation.flatten(1))


def dense_decoder(numbers: int, hidden: Sequence[int], shape: tuple[int, ...]) -> nn.Sequential:
    """Return dense layers with ReLU from [N, ``numbers``] to flat pixels [N, C·H·W] in 0…1.

    ``hidden`` are the widths between them, ``shape`` is that of an image.

    >>> dense_decoder(10 * 16, (64, 128), (1, 8, 8))(torch.randn(5, 160)).shape
    torch.Size([5, 64])
    """
    widths = [numbers, *hidden]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += nn.Linear(inputs, outputs), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(widths[-1], math.prod(shape)), nn.Sigmoid())


def mask_of_one(activation: Tensor, capsule: Tensor) -> Tensor:
    """Return the mask [N, J] that shows one capsule of each example to a decoder.

    It has the dtype of the ``activation`` [N, J]; ``capsule`` [N] are the numbers, from 0.

    >>> mask_of_one(torch.rand(2, 3), torch.tensor([2, 0]))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    return torch.zeros_like(activation).scatter(1, capsule.long()[:, None], 1)


def field_centres(size: tuple[int, int], windows: Sequence[tuple[int, int]]) -> Tensor:
    """Return the centres [H', W', 2], row and column, of the fields of view in an image (H, W).

    ``windows`` are (kernel, stride) of all layers up to the grid. Pixels are numbered from
    −H/2, so the middle of the image is −0.5; the result is times 0.01, as in the released code
    for even sides.

    >>> field_centres((4, 4), [(2, 2)])[0, 1]  # the upper right quarter
    tensor([-0.0150,  0.0050])
    """
    grid_size(size, windows)
    axes = []
    for side in size:
        centres = torch.arange(side, dtype=torch.float32) - side / 2
        for kernel, stride in windows:
            centres = centres.unfold(0, kernel, stride).mean(dim=-1)
        axes.append(centres * 0.01)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)


def _initialise(weight: Tensor, std: float) -> Tensor:
    """Draw the weight from N(0, ``std``²), cut off at two deviations, and return it."""
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def _initial_weight(
    transform: Transform, pose: Pose, shape: tuple[int, ...], std: float
) -> Tensor:
    """Return the initial W [*shape, …] of a convolutional layer."""
    if transform == "linear":
        return _initialise(torch.empty(*shape, *WEIGHT_SHAPES[pose]), std)
    check_name("transform", transform, get_args(Transform))
    if pose != "matrix":
        raise ValueError('the transform "bounded" is for matrix capsules')
    return near_identity(*shape)

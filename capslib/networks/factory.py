"""Networks by name, for images of any shape."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any, Literal, get_args

from torch import nn

from capslib.errors import UserError, check_name, unknown
from capslib.registry import NETWORKS
from capslib.routing import routing_options, start_on_first_batch
from capslib.shapes import check_positive

__all__ = ["SMALL", "Size", "create_network"]

Size = Literal["small", "paper"]
"""Sizes of a network: a small one for a laptop, or the one of its paper."""


def _dense(kernel: int) -> dict[str, Any]:
    """Return the options that networks of dense capsules share."""
    return {"filters": 32, "kernel": kernel, "primary_types": 8, "decoder": (128, 256)}


def _grid(_: int) -> dict[str, Any]:
    """Return the options of a network of convolutional capsules."""
    return {"sizes": (16, 4, 8, 8)}


SMALL: dict[str, Callable[[int], dict[str, Any]]] = {
    "capsnet": _dense,
    "matrix_capsnet": _grid,
    "consensus_capsnet": _grid,
    "cnn": lambda _: {"sizes": (16, 32, 128)},
    "deep_capsnet": lambda kernel: {
        "primary_kernel": kernel,
        "hidden": (16, 8),
        **_dense(kernel),
    },
    "sparse_capsnet": lambda kernel: {"primary_kernel": kernel, **_dense(kernel)},
    "anomaly_capsnet": lambda kernel: {"primary_dim": 8, **_dense(kernel)},
    "autoencoder": lambda _: {"decoder": (128, 256)},
}
"""Options of small networks, by name, for a kernel that suits the image.

``create_network`` adds a depth.
"""
_DEPTH: dict[str, dict[str, Any]] = {"deep_capsnet": {"depth": 3}}
"""Options without a default in the papers' networks; three layers are our choice."""
_CLASSES = {"sparse_capsnet": "capsules", "autoencoder": "capsules"}
"""What a network calls its number of classes, where it learns without labels."""


def create_network(
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    size: Size = "small",
    **options: Any,
) -> nn.Module:
    """Return the network ``name`` of ``NETWORKS`` for images of a ``shape`` (C, H, W).

    ``size`` is "small", for a laptop, or "paper", the size of its paper.
    ``options`` are keywords of the network's class, and take precedence: ``routing`` names a
    routing of ``ROUTINGS``, and keywords of that routing are options, too.

    EM and similarity routing set their parameters from the first batch that they train on
    (:func:`capslib.routing.start_on_first_batch`). If you give EM routing ``beta``,
    ``beta_scale``, ``inverse_temperature`` or another ``preset`` than "calibrated", it keeps
    its constants.

    ``network(images)`` returns a named tuple, which has activations [N, classes] as
    ``activation``; those of ``cnn`` are logits. ``sparse_capsnet`` and ``autoencoder`` learn
    without labels: ``classes`` are their latent capsules. ``anomaly_capsnet`` has two classes,
    normal and anomalous.

    Raises UserError for an unknown name or option, with the nearest valid one, for a network
    that takes no images or not so many classes, for a shape or a number of classes that is not
    of whole numbers of at least 1, and for a shape that is too small, with the smallest that
    works.

    >>> import torch
    >>> network = create_network("capsnet", (3, 40, 28), classes=4, routing="em")
    >>> network(torch.rand(2, 3, 40, 28)).activation.shape
    torch.Size([2, 4])
    >>> create_network("matrix_capsnet", (1, 8, 8), classes=10)
    Traceback (most recent call last):
        ...
    capslib.errors.UserError: matrix_capsnet: images of 8 × 8 are too small for the layers: \
17 × 17 is the least
    """
    make = NETWORKS[name]
    check_name("size", size, get_args(Size))
    sides = tuple(shape) if isinstance(shape, Iterable) else ()
    if len(sides) != 3 or not all(isinstance(side, Integral) and side >= 1 for side in sides):
        raise UserError(f"{name} takes images of a shape (C, H, W), not {shape}")
    parameters = inspect.signature(make).parameters
    if "shape" not in parameters:
        raise UserError(f"{name} takes no images: build {make.__module__}.{make.__name__}")
    _check_options(name, options)
    arguments = dict(_DEPTH.get(name, {}))
    if size == "small" and name in SMALL:
        kernel = min(9, max(3, min(sides[1:]) // 3))
        arguments |= SMALL[name](kernel)
    count = _CLASSES.get(name, "classes")
    if count in parameters:
        arguments[count] = classes
    elif classes != 2:
        raise UserError(f"{name} has two classes, normal and anomalous, not {classes}")
    try:
        check_positive(classes=classes)
        network = make(sides, **arguments | options)
    except ValueError as error:
        channels_last = sides[2] <= 4 < sides[0]
        hint = "; a shape is (C, H, W)" if channels_last else ""
        raise UserError(f"{name}: {error}{hint}") from None
    return start_on_first_batch(network)


def _check_options(name: str, options: dict[str, Any]) -> None:
    """Raise UserError for an option that neither the network nor its routing takes."""
    parameters = inspect.signature(NETWORKS[name]).parameters
    passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    valid = [
        key
        for key, parameter in parameters.items()
        if key not in ("shape", "classes") and parameter.kind is not parameter.VAR_KEYWORD
    ]
    if "routing" in options and "routing" not in valid and not passes_on:
        raise UserError(f"{name} has no routing")
    if passes_on:
        default = getattr(parameters.get("routing"), "default", "dynamic")
        names = ["routing", *valid, *routing_options(options.get("routing", default))]
        valid = list(dict.fromkeys(names))
    for option in options:
        if option not in valid:
            raise unknown(f"option of {name}", option, valid)

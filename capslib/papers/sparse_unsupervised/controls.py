"""A control that the paper lacks: encodings without any network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from capslib.papers.common import in_unit
from capslib.papers.experiment import Arm, Experiment, Outcome, Scale, no_training
from capslib.papers.sparse_unsupervised.encodings import ClassifierOptions, classified, digits
from capslib.papers.sparse_unsupervised.recipe import SMALLER, SparseRecipe, full_recipe

if TYPE_CHECKING:
    from torch import Tensor

    from capslib.training import Context


class CodeOptions(ClassifierOptions):
    """What the classifier sees instead of capsules.

    It is as many principal components as they have numbers, or the pixels.
    """

    code: Literal["pca", "pixels"]


def run(arm: Arm, context: Context) -> Outcome:
    """Fit the classifiers to principal components of shifted digits, or to pixels."""
    import torch

    recipe: SparseRecipe = arm.recipe
    sets, fingerprint = digits(recipe, context)
    pixels = {}
    for name, split in sets.items():
        batches = [recipe.framed(batch).flatten(1) for batch in split.images.split(5000)]
        pixels[name] = torch.cat(batches)
    codes = pixels
    metrics = {}
    if arm.options.code == "pca":
        mean, basis = components(recipe, sets["train"].images, context.seed)
        codes = {name: (seen - mean) @ basis for name, seen in pixels.items()}
        errors = {}
        for name, part in (("mnist", "test"), ("affnist", "affnist")):
            drawn = codes[part] @ basis.T + mean
            errors[f"error_{name}"] = float(((drawn - pixels[part]) ** 2).sum(dim=1).mean())
        metrics = in_unit(errors, len(pixels["test"]), "squared error")
    encodings = {name: code.cpu().numpy() for name, code in codes.items()}
    metrics |= classified(encodings, sets, arm.options, "_raw", context)
    return Outcome(metrics=metrics, data=[fingerprint])


def components(recipe: SparseRecipe, images: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return the mean [pixels] and the principal components [pixels, capsules·dim] of digits.

    The digits stand in the middle of their frame. Each is shifted once, as in training.
    """
    import torch

    from capslib.training import augmentation

    unframed = torch.nn.functional.pad(images, [-recipe.shift] * 4)
    generator = augmentation(seed, 0, images.device)
    batches = [recipe.prepare(batch, generator).flatten(1) for batch in unframed.split(5000)]
    pixels = torch.cat(batches).double()
    mean = pixels.mean(dim=0)
    _, vectors = torch.linalg.eigh((pixels - mean).T @ (pixels - mean))
    largest_first = vectors.flip(1)
    return mean.float(), largest_first[:, : recipe.capsules * recipe.dim].float()


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield both codes."""
    yield Arm("principal_components", full_recipe(scale), CodeOptions(code="pca"))
    yield Arm("pixels", full_recipe(scale), CodeOptions(code="pixels"))


def smaller(scale: Scale, arm: Arm) -> dict[str, Any]:
    """Return the fields that a scale makes smaller.

    Nothing trains here. ``dim`` sets the number of components; ``batch_size`` has no effect,
    but the keys of records have it.
    """
    names = ("shift", "downsample", "dim", "batch_size", "svm_fit", "svm_test")
    return {name: value for name, value in SMALLER[scale].items() if name in names}


CONTROLS = Experiment(
    name="controls",
    paper="sparse_unsupervised",
    arms=arms,
    smaller=smaller,
    run=run,
    trainings=no_training,
    budget_fields=(),
)

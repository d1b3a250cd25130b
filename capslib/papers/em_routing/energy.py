"""Whether the steps of Procedure 1 lower a free energy (appendix A)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from capslib.config import Config
from capslib.papers.common import abscissa, in_unit
from capslib.papers.experiment import Outcome, Scale

if TYPE_CHECKING:
    from capslib.training import Context


class FreeEnergyConfig(Config):
    """Random votes, and whether Procedure 1 lowers a free energy on them."""

    ARM: ClassVar[frozenset[str]] = frozenset(
        ["form", "e_step", "children", "parents", "dim", "spread", "draws", "iterations"]
    )

    form: Literal["printed", "weighted", "mixture"] = Field(
        "printed", title="form of the free energy"
    )
    e_step: Literal["paper", "matched"] = Field("paper", title="E-step")
    children: int = Field(32, ge=2, title="children")
    parents: int = Field(4, ge=1, title="parents")
    dim: int = Field(2, ge=1, title="dimension of a vote")
    spread: float = Field(1.0, gt=0, title="standard deviation of the votes")
    draws: int = Field(200, ge=1, title="draws")
    iterations: int = Field(10, ge=1, title="iterations")


def run(config: FreeEnergyConfig, context: Context) -> Outcome:
    """Follow the free energy through every step of many draws, in float64 with λ = 1 and no floor."""
    import torch

    from capslib.routing.free_energy import em_trajectory, free_energy

    generator = torch.Generator().manual_seed(context.seed)
    shape, double = (
        (config.draws, config.children, config.parents, config.dim),
        dict(generator=generator, dtype=torch.float64),
    )
    votes, activation = (
        config.spread * torch.randn(shape, **double),
        torch.rand(shape[:2], **double),
    )
    betas = torch.tensor([0.1, 0.0], dtype=torch.float64)
    states = list(
        itertools.islice(
            em_trajectory(votes, activation, *betas, e_step=config.e_step),
            3 * config.iterations,
        )
    )
    energy = torch.stack(
        [free_energy(s, votes, activation, *betas, form=config.form) for s in states]
    )  # [steps, draws]
    rise = energy.diff(dim=0)
    finite = energy.isfinite()
    rise = rise.where(
        finite[1:] & finite[:-1], 0.0
    )  # a parent that has collapsed onto one child has no finite energy
    shares = {"share_that_rises": (rise > 1e-9).any(dim=0), "not_finite": (~finite).any(dim=0)}
    metrics = in_unit(
        {name: float(of.double().mean()) for name, of in shares.items()},
        config.draws,
        "fraction",
    )
    rises = {"largest_rise": float(rise.max())}
    for step in ("M-step", "logistic", "E-step"):
        rises[f"largest_rise_{step}"] = float(
            rise[torch.tensor([s.step == step for s in states[1:]])].max()
        )
    metrics |= in_unit(rises, config.draws, "nats")
    sound = energy[:, finite.all(dim=0)]
    mean = sound.mean(dim=1).tolist() if sound.shape[1] else []
    return Outcome(
        metrics=metrics,
        series={"half_steps": abscissa(len(mean)), "mean_energy": mean},
        routing_path="none",
    )


def grid(scale: Scale) -> list[FreeEnergyConfig]:
    budget = {"draws": 40} if scale == "smoke" else {}
    shapes = [dict(children=8, parents=2, dim=1), {}, dict(children=64, parents=5, dim=16)]
    kinds = [
        ("printed", "paper"),
        ("weighted", "paper"),
        ("mixture", "paper"),
        ("weighted", "matched"),
    ]
    arms = itertools.product(shapes, (0.3, 1.0), kinds)
    return [
        FreeEnergyConfig(**shape, **budget, spread=s, form=form, e_step=e_step)
        for shape, s, (form, e_step) in arms
    ]

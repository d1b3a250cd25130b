"""Whether the steps of Procedure 1 lower a free energy (appendix A)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from capslib.costs import Work, capsules
from capslib.papers.common import abscissa
from capslib.trials import Config, Context, Metric, Outcome, Scale


class FreeEnergyConfig(Config):
    """Random votes, and whether Procedure 1 lowers a free energy on them."""

    form: Literal["printed", "weighted", "mixture"] = Field("printed", title="form of the free energy")
    e_step: Literal["paper", "matched"] = Field("paper", title="E-step")
    children: int = Field(32, ge=2, title="children")
    parents: int = Field(4, ge=1, title="parents")
    dim: int = Field(2, ge=1, title="dimension of a vote")
    spread: float = Field(1.0, gt=0, title="standard deviation of the votes")
    draws: int = Field(200, ge=1, title="draws")
    iterations: int = Field(10, ge=1, title="iterations")


def run(config: FreeEnergyConfig, context: Context) -> Outcome:
    """Follow the free energy through every step of many draws, in float64 with λ = 1 and no floor."""
    import itertools

    import torch

    from capslib.routing.free_energy import em_trajectory, free_energy

    generator = torch.Generator().manual_seed(context.seed)
    votes = config.spread * torch.randn(
        config.draws, config.children, config.parents, config.dim, generator=generator, dtype=torch.float64
    )
    activation = torch.rand(config.draws, config.children, generator=generator, dtype=torch.float64)
    betas = torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    states = list(itertools.islice(em_trajectory(votes, activation, *betas, e_step=config.e_step), 3 * config.iterations))
    energy = torch.stack([free_energy(s, votes, activation, *betas, form=config.form) for s in states])  # [steps, draws]
    rise = energy.diff(dim=0)
    finite = energy.isfinite()
    rise = rise.where(finite[1:] & finite[:-1], 0.0)  # a parent that has collapsed onto one child has no finite energy
    steps_named = [s.step for s in states[1:]]
    metrics = {
        "largest_rise": Metric(value=float(rise.max()), n=config.draws, unit="nats"),
        "share_that_rises": Metric(value=float((rise > 1e-9).any(dim=0).double().mean()), n=config.draws, unit="fraction"),
        "not_finite": Metric(value=float((~finite).any(dim=0).double().mean()), n=config.draws, unit="fraction"),
    }
    for name in ("M-step", "logistic", "E-step"):
        rows = torch.tensor([s == name for s in steps_named])
        metrics[f"largest_rise_{name}"] = Metric(value=float(rise[rows].max()), n=config.draws, unit="nats")
    sound = energy[:, finite.all(dim=0)]
    mean = sound.mean(dim=1).tolist() if sound.shape[1] else []
    return Outcome(metrics=metrics, series={"half_steps": abscissa(len(mean)), "mean_energy": mean}, routing_path="none")


def grid(scale: Scale) -> list[FreeEnergyConfig]:
    budget = {"draws": 40} if scale == "smoke" else {}
    shapes = [dict(children=8, parents=2, dim=1), {}, dict(children=64, parents=5, dim=16)]
    kinds = [("printed", "paper"), ("weighted", "paper"), ("mixture", "paper"), ("weighted", "matched")]
    return [
        FreeEnergyConfig(**{**shape, **budget, "spread": spread, "form": form, "e_step": e_step})
        for shape in shapes
        for spread in (0.3, 1.0)
        for form, e_step in kinds
    ]


def work(config: FreeEnergyConfig) -> Work:
    """At most: as if the votes were trained."""
    return Work(1, capsules("em", config.draws, config.children, config.parents, config.dim, 1, iterations=config.iterations))

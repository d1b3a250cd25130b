"""Whether the steps of Procedure 1 lower a free energy (appendix A)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from capslib.config import Config
from capslib.papers.common import abscissa, in_unit
from capslib.papers.experiment import Arm, Experiment, Outcome, Scale

if TYPE_CHECKING:
    from capslib.training import Context

ROUNDING = 1e-9
"""Count a rise as real above this many nats."""


ITERATIONS = 10


class EnergyOptions(Config):
    """Random votes, and the free energy that is followed on them."""

    form: Literal["printed", "weighted", "mixture"] = Field(
        "printed", title="form of the free energy"
    )
    e_step: Literal["paper", "matched"] = Field("paper", title="E-step")
    children: int = Field(32, ge=2, title="children")
    parents: int = Field(4, ge=1, title="parents")
    dim: int = Field(2, ge=1, title="dimension of a vote")
    spread: float = Field(1.0, gt=0, title="standard deviation of the votes")
    draws: int = Field(200, ge=1, title="draws")


def run(arm: Arm, context: Context) -> Outcome:
    """Follow the free energy through every step of many draws.

    In float64, with λ = 1 and no floor of the variance.
    """
    import torch

    from capslib.routing.free_energy import em_trajectory, free_energy

    options: EnergyOptions = arm.options
    double = dict(generator=torch.Generator().manual_seed(context.seed), dtype=torch.float64)
    shape = (options.draws, options.children, options.parents, options.dim)
    votes = options.spread * torch.randn(shape, **double)
    activation = torch.rand(shape[:2], **double)
    betas = torch.tensor([0.1, 0.0], dtype=torch.float64)
    trajectory = em_trajectory(votes, activation, *betas, e_step=options.e_step)
    states = list(itertools.islice(trajectory, 3 * ITERATIONS))
    energies = [
        free_energy(state, votes, activation, *betas, form=options.form) for state in states
    ]
    energy = torch.stack(energies)  # [steps, draws]
    finite = energy.isfinite()
    rise = energy.diff(dim=0)
    # a parent that has collapsed onto one child has no finite energy
    rise = rise.where(finite[1:] & finite[:-1], 0.0)

    shares = {
        "share_that_rises": float((rise > ROUNDING).any(dim=0).double().mean()),
        "not_finite": float((~finite).any(dim=0).double().mean()),
    }
    rises = {"largest_rise": float(rise.max())}
    for step in ("M-step", "logistic", "E-step"):
        is_step = torch.tensor([state.step == step for state in states[1:]])
        rises[f"largest_rise_{step}"] = float(rise[is_step].max())
    sound = energy[:, finite.all(dim=0)]
    mean = sound.mean(dim=1).tolist() if sound.shape[1] else []
    return Outcome(
        metrics={
            **in_unit(shares, options.draws, "fraction"),
            **in_unit(rises, options.draws, "nats"),
        },
        series={"half_steps": abscissa(len(mean)), "mean_energy": mean},
    )


SHAPES = ((8, 2, 1), (32, 4, 2), (64, 5, 16))
"""Children, parents and the dimension of a vote."""
SPREADS = (0.3, 1.0)
FORMS = {
    "printed": ("printed", "paper"),
    "weighted": ("weighted", "paper"),
    "mixture": ("mixture", "paper"),
    "weighted_matched": ("weighted", "matched"),
}
"""A form of the free energy, and the E-step."""


def arm_name(children: int, spread: float, form: str) -> str:
    """Return the name of an arm: ``32_children/spread_1/printed``."""
    return f"{children}_children/spread_{spread:g}/{form}"


def arms(scale: Scale) -> Iterator[Arm]:
    """Yield every form of the free energy on votes of several shapes and spreads."""
    draws = 40 if scale == "smoke" else 200
    for (children, parents, dim), spread in itertools.product(SHAPES, SPREADS):
        for name, (form, e_step) in FORMS.items():
            options = EnergyOptions(
                form=form,
                e_step=e_step,
                children=children,
                parents=parents,
                dim=dim,
                spread=spread,
                draws=draws,
            )
            yield Arm(arm_name(children, spread, name), options=options)


FREE_ENERGY = Experiment(
    name="free_energy",
    paper="em_routing",
    arms=arms,
    run=run,
)

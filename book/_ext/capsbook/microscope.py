"""The routing microscope: a toy small enough to see all of it, under every routing that needs no training.

``capslib`` computes every number while the book is built; the script of the page looks them up.
"""

from __future__ import annotations

import functools
import json
from html import escape
from typing import NamedTuple

import torch
from torch import Tensor

from capslib.lab.plots import routing_color, routing_name
from capslib.routing import ROUTINGS, Routing, make_routing

CHILDREN, PARENTS, GROUP = 12, 3, 5  # the group moves
PLACES, REACH, ITERATIONS = 21, 1.2, 3
SHOWN = (
    "dynamic",
    3,
    15,
)  # routing, iterations and place at first: the group meets three votes that stay

CONSTANTS = {
    "em": {"beta": (0.5, 0.0), "beta_std": 0.0, "inverse_temperature": 1.5},
    "em_vector": {"beta": (1.0, 0.0), "beta_std": 0.0, "inverse_temperature": 0.75},
    "similarity": {"start": "steep"},
}


class Frame(NamedTuple):
    """What a routing makes of the toy at one place after some iterations, to three digits."""

    pose: list[list[float]]  # [J, D]
    activation: list[float]  # [J]
    coupling: list[list[float]]  # [J, I]
    share: float  # of the coupling of parent 1: what the group holds


def toy() -> Tensor:
    """Votes [P, I, J, D] at P places of the group. Nobody agrees about parent 3."""
    generator = torch.Generator().manual_seed(23)
    votes = 0.75 * torch.randn(CHILDREN, PARENTS, 2, generator=generator, dtype=torch.float64)
    near = 0.08 * torch.randn(CHILDREN, 2, generator=generator, dtype=torch.float64)
    near[:GROUP] -= near[:GROUP].mean(dim=0)
    line = torch.tensor([0.8, 0.6])
    votes[GROUP:8, 0] = (
        REACH / 2 * line + near[GROUP:8]
    )  # three agree with the group where it meets them
    votes[8:, 1] = torch.tensor([-0.9, 0.7]) + near[8:]  # four agree about parent 2
    votes = votes.repeat(PLACES, 1, 1, 1)
    votes[:, :GROUP, 0] = (
        torch.linspace(-REACH, REACH, PLACES)[:, None, None] * line + near[:GROUP]
    )
    return votes


def untrained(name: str, seed: int, draws: int = 1000) -> Routing:
    """A routing whose parents all have the same constants: the mean over ``draws`` of the random start of a parent."""
    options = CONSTANTS.get(name, {})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        routing, many = (
            make_routing(name, parents, 2, **options).double() for parents in (PARENTS, draws)
        )
        for ours, drawn in zip(routing.parameters(), many.parameters(), strict=True):
            ours.copy_(drawn.mean(dim=0) if drawn.shape[:1] == (draws,) else drawn)
    return routing


@functools.cache
def frames() -> dict[str, list[list[Frame]]]:
    """The frames of every routing, by iterations and place.

    A routing that depends on the seed of its start is not there: it routes as it has learned to,
    and here it has learned nothing.
    """
    found, votes = {}, toy()
    active = votes.new_ones(PLACES, CHILDREN)
    for name in ROUTINGS:
        steps, routings = range(1, ITERATIONS + 1), [untrained(name, seed) for seed in (0, 1)]
        with torch.no_grad():
            one, other = ([r(votes, active, iterations=t) for t in steps] for r in routings)
        pairs = zip(sum(one, ()), sum(other, ()), strict=True)  # poses, activations, couplings
        if all(torch.allclose(a, b, atol=0.01) for a, b in pairs):
            found[name] = [[_frame(*at) for at in zip(*result, strict=True)] for result in one]
    return found


def _frame(pose: Tensor, activation: Tensor, coupling: Tensor) -> Frame:
    share = coupling[:GROUP, 0].sum() / coupling[:, 0].sum()
    return Frame(*(_short(x) for x in (pose, activation, coupling.T, share)))


def _short(x: Tensor) -> list:
    return x.mul(1000).round().div(1000).tolist()


PAGE = """<div class="microscope" style="--routing: {color}">
<form hidden autocomplete="off"><label>Routing <select name="routing">{options}</select></label>
<fieldset><legend>Iterations</legend>{radios}</fieldset>
<label>Place of the group <output>{place}</output> <input type="range" name="place" max="{last}" value="{at}" aria-label="place of the group"></label></form>
<p aria-live="polite" aria-atomic="true"><b data-put="name">{name}</b>, iterations: <b data-put="iterations">{iterations}</b>, place of the group: <b data-put="place">{place}</b>.
Parent <b data-put="winner">{winner}</b> has the largest activation, <b data-put="largest">{largest:.2f}</b>.
The group holds <b data-put="share">{share:.0f}</b>&nbsp;% of the coupling of parent&nbsp;1.</p>
<div class="microscope-panels">{panels}</div>{left_out}
<script type="application/json">{data}</script></div>"""
PANEL = """<div><p>Parent {parent}: activation <b>{activation:.2f}</b></p>
<svg viewBox="-{edge} -{edge} {side} {side}" role="img" aria-label="The votes for parent {parent} and its pose, drawn in the plane."><g transform="scale(1 -1)">
<path class="zero" d="M-{edge} 0H{edge}M0-{edge}V{edge}"/>{line}{dots}
<g class="pose" style="--activation: {activation}" transform="translate({pose[0]} {pose[1]})"><circle r=".2"/><path d="M-.36 0H-.1M.36 0H.1M0-.36V-.1M0 .36V.1"/></g></g></svg></div>"""


def draw() -> str:
    """The microscope as HTML: drawn as ``SHOWN`` says, with the numbers of everything else in it."""
    routed, votes, (shown, t, at) = frames(), toy(), SHOWN
    equal = {
        name: {"parents": PARENTS, "children": CHILDREN}[ROUTINGS[name].couplings_sum_over]
        for name in routed
    }
    size = {
        name: round(0.085 * n**0.5, 3) for name, n in equal.items()
    }  # equal couplings look alike under every routing
    frame, edge = routed[shown][t - 1][at], round(float(votes.abs().max()) + 0.15, 2)
    places = [
        f"{2 * REACH * p / (PLACES - 1) - REACH:+.2f}".replace("-", "−") for p in range(PLACES)
    ]

    def dot(i: int, j: int) -> str:
        (x, y), kind = _short(votes[at, i, j]), "vote group" if i < GROUP else "vote"
        return f'<circle class="{kind}" data-child="{i}" cx="{x}" cy="{y}" r="{size[shown] * frame.coupling[j][i] ** 0.5:.4f}"/>'

    line = '<path class="line" d="M{} {}L{} {}"/>'.format(
        *_short(votes[[0, -1], :GROUP, 0].mean(dim=1).flatten())
    )
    panels = (
        PANEL.format(
            parent=j + 1,
            activation=frame.activation[j],
            pose=frame.pose[j],
            edge=edge,
            side=round(2 * edge, 2),
            line=line if j == 0 else "",
            dots="".join(dot(i, j) for i in reversed(range(CHILDREN))),
        )
        for j in range(PARENTS)
    )
    data = {"places": places, "moved": _short(votes[:, :GROUP, 0])}
    data["routings"] = {
        n: [routing_name(n), routing_color(n), size[n], of] for n, of in routed.items()
    }
    untaught = ", ".join(escape(routing_name(name)) for name in ROUTINGS if name not in routed)
    return PAGE.format(
        left_out=f"<p>Left out, because what it does depends on how it was trained: {untaught}.</p>"
        if untaught
        else "",
        color=routing_color(shown),
        name=routing_name(shown),
        iterations=t,
        place=places[at],
        at=at,
        last=PLACES - 1,
        options="".join(
            f'<option value="{escape(n)}"{" selected" * (n == shown)}>{escape(routing_name(n))}</option>'
            for n in routed
        ),
        radios="".join(
            f'<label><input type="radio" name="iterations" value="{k}"{" checked" * (k == t)}> {k}</label>'
            for k in range(1, ITERATIONS + 1)
        ),
        winner=frame.activation.index(max(frame.activation)) + 1,
        largest=max(frame.activation),
        share=100 * frame.share,
        panels="".join(panels),
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    )

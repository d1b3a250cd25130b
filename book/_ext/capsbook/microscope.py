"""The routing microscope: a toy small enough to see all of it, under every routing that needs
no training.

``capslib`` computes every number while the book is built; the script of the page looks them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from capsbook import templating
from capslib.lab.plots import routing_color, routing_name
from capslib.routing import ROUTINGS, Routing, RoutingResult, make_routing

CHILDREN = 12
PARENTS = 3
GROUP = 5
"""The first children are a group, which moves."""
PLACES = 21
"""How many places the group visits, from −REACH to REACH."""
REACH = 1.2
ITERATIONS = 3


class Shown(NamedTuple):
    """What the page shows."""

    routings: tuple[str, str]
    iterations: int
    position: int


SHOWN = Shown(("dynamic", "em"), iterations=3, position=PLACES // 2)
"""At first: the group passes zero, where RBA finds parent 1 weakest and EM strongest."""


CONSTANTS = {
    "em": {"beta": (0.5, 0.0), "beta_std": 0.0, "inverse_temperature": 1.5},
    "em_vector": {"beta": (1.0, 0.0), "beta_std": 0.0, "inverse_temperature": 0.75},
    "similarity": {"start": "steep"},
}


class Frame(NamedTuple):
    """What a routing makes of the toy at one place after some iterations, to thousandths."""

    pose: list[list[float]]  # [J, D]
    activation: list[float]  # [J]
    coupling: list[list[float]]  # [J, I]
    share: float  # of the coupling of parent 1: what the group holds


def toy() -> Tensor:
    """Return votes [P, I, J, D] at P places of the group. Nobody agrees about parent 3."""
    generator = torch.Generator().manual_seed(23)
    shape = CHILDREN, PARENTS, 2
    votes = 0.75 * torch.randn(shape, generator=generator, dtype=torch.float64)
    near = 0.08 * torch.randn(CHILDREN, 2, generator=generator, dtype=torch.float64)
    near[:GROUP] -= near[:GROUP].mean(dim=0)
    line = torch.tensor([0.8, 0.6])
    # Three agree with the group where it meets them, four agree about parent 2.
    votes[GROUP:8, 0] = REACH / 2 * line + near[GROUP:8]
    votes[8:, 1] = torch.tensor([-0.9, 0.7]) + near[8:]
    votes = votes.repeat(PLACES, 1, 1, 1)
    places = torch.linspace(-REACH, REACH, PLACES)
    votes[:, :GROUP, 0] = places[:, None, None] * line + near[:GROUP]
    return votes


def untrained(name: str, seed: int, draws: int = 1000) -> Routing:
    """Return a routing in which every parent has the mean of the constants that ``draws``
    parents start from."""
    options = CONSTANTS.get(name, {})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        routing = make_routing(name, PARENTS, 2, **options).double()
        crowd = make_routing(name, draws, 2, **options).double()
        for constant, drawn in zip(routing.parameters(), crowd.parameters(), strict=True):
            per_parent = drawn.shape[:1] == (draws,)
            constant.copy_(drawn.mean(dim=0) if per_parent else drawn)
    return routing


class Survey(NamedTuple):
    """Which routings are shown, and which are not."""

    # By routing, the result after each number of iterations.
    results: dict[str, list[RoutingResult]]
    # Routings whose results depend on the seed of the start: they route as they have learned
    # to, and here they have learned nothing.
    seed_dependent: list[str]
    # Routings with the activations and couplings of another, and the other's name.
    doubles: dict[str, str]

    def frames(self) -> dict[str, list[list[Frame]]]:
        """Return the frames of every routing that is shown, by iterations and place."""
        frames = {}
        for name, results in self.results.items():
            frames[name] = [frames_of(result) for result in results]
        return frames


def survey() -> Survey:
    """Route the toy with every routing."""
    results, seed_dependent, doubles = {}, [], {}
    for name in ROUTINGS:
        first, second = route(untrained(name, seed=0)), route(untrained(name, seed=1))
        if not agree(first, second):
            seed_dependent.append(name)
            continue
        twins = [twin for twin, result in results.items() if agree(first, result, poses=False)]
        if twins:
            doubles[name] = twins[0]
        else:
            results[name] = first
    return Survey(results, seed_dependent, doubles)


def route(routing: Routing) -> list[RoutingResult]:
    """Return what a routing makes of the toy after one iteration, two …"""
    votes = toy()
    activation = votes.new_ones(PLACES, CHILDREN)
    with torch.no_grad():
        return [routing(votes, activation, iterations=t) for t in range(1, ITERATIONS + 1)]


def agree(
    first: list[RoutingResult], second: list[RoutingResult], *, poses: bool = True
) -> bool:
    """Say whether two routings differ nowhere by more than a hundredth.

    Without ``poses`` only activations and couplings count.
    """
    for result_1, result_2 in zip(first, second, strict=True):
        for field in RoutingResult._fields if poses else ("activation", "coupling"):
            a, b = getattr(result_1, field), getattr(result_2, field)
            if not torch.allclose(a, b, atol=0.01):
                return False
    return True


def frames_of(result: RoutingResult) -> list[Frame]:
    """Return the frames of all places."""
    return [frame(*step) for step in zip(*result, strict=True)]


def frame(pose: Tensor, activation: Tensor, coupling: Tensor) -> Frame:
    """Return a frame from what a routing gives at one place; its coupling is [I, J]."""
    share = coupling[:GROUP, 0].sum() / coupling[:, 0].sum()
    return Frame(*map(to_thousandths, (pose, activation, coupling.T, share)))


def to_thousandths(x: Tensor) -> list:
    """Return numbers rounded to thousandths."""
    return x.mul(1000).round().div(1000).tolist()


def draw() -> str:
    """Return the microscope as HTML: drawn as ``SHOWN`` says, with all other numbers in it."""
    votes, routings = toy(), survey()
    routed = routings.frames()
    names = {name: routing_name(name) for name in routed}
    edge = round(float(votes.abs().max()) + 0.15, 2)
    distance = 2 * REACH / (PLACES - 1)
    places = [f"{step * distance - REACH:+.2f}".replace("-", "−") for step in range(PLACES)]
    data = {"places": places, "moved": to_thousandths(votes[:, :GROUP, 0]), "routings": {}}
    for name, by_iterations in routed.items():
        entry = [names[name], routing_color(name), dot_size(name), by_iterations]
        data["routings"][name] = entry
    doubles = {routing_name(name): names[twin] for name, twin in routings.doubles.items()}
    return templating.draw(
        "microscope",
        shown=SHOWN,
        sides=[side(name, routed[name], votes[SHOWN.position]) for name in SHOWN.routings],
        names=names,
        iterations=ITERATIONS,
        place=places[SHOWN.position],
        last=PLACES - 1,
        group=GROUP,
        edge=edge,
        width=round(2 * edge, 2),
        line=to_thousandths(votes[[0, -1], :GROUP, 0].mean(dim=1).flatten()),
        seed_dependent=[routing_name(name) for name in routings.seed_dependent],
        doubles=doubles,
        data=data,
    )


class Side(NamedTuple):
    """A routing as the page shows it when it opens."""

    routing: str
    name: str
    color: str
    frame: Frame
    winner: int  # the number of a parent, from 1
    panels: list[list[dict[str, float]]]  # the dots of each parent


def side(routing: str, frames: Sequence[Sequence[Frame]], votes: Tensor) -> Side:
    """Return what is drawn of a routing's frames and votes [I, J, D] as ``SHOWN`` says."""
    frame = frames[SHOWN.iterations - 1][SHOWN.position]
    panels = []
    for parent, coupling in enumerate(frame.coupling):
        dots = []
        for child, (x, y) in enumerate(to_thousandths(votes[:, parent])):
            radius = dot_size(routing) * coupling[child] ** 0.5
            dots.append({"child": child, "x": x, "y": y, "r": radius})
        panels.append(dots)
    winner = frame.activation.index(max(frame.activation)) + 1
    name, color = routing_name(routing), routing_color(routing)
    return Side(routing, name, color, frame, winner, panels)


def dot_size(routing: str) -> float:
    """Return the factor at which equal couplings look alike under every routing."""
    count = {"parents": PARENTS, "children": CHILDREN}[ROUTINGS[routing].couplings_sum_over]
    return round(0.085 * count**0.5, 3)

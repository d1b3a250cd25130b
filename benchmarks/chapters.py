"""The cost of every paper at its own scale, on one large card: ``python -m benchmarks.chapters`` prints the table.

A chapter of the book counts its own trials. Those that are not built yet are *planned*: their networks, steps, batch sizes and numbers
of runs stand below as the papers and their released code have them. Nothing here is measured.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from capslib import papers
from capslib.costs import DEVICES, FLOAT, ROUTED, Device, Layer, Work, after, capsules, convolution, dense, si, steps
from capslib.papers.em_routing.trained import SMALL, capsule_layers
from capslib.trials import Config

SEEDS = 3
CARD = DEVICES["cuda"]


@dataclass(frozen=True)
class Run:
    """``trials`` runs that each cost ``work``."""

    stem: str
    name: str
    trials: int
    work: Work
    planned: bool = True

    @property
    def minutes(self) -> float:
        """On the card, one trial after another."""
        return self.trials * self.work.seconds(CARD) / 60


TELLING = ("data", "model", "network", "iterations", "pose", "children")
"""Fields by which a line is told where they are not those of the first configuration."""


def built(stem: str) -> Iterator[Run]:
    """The experiments of a chapter of the book; configurations that cost the same are one line."""
    for name, experiment in papers.experiments(stem).items():
        grid = experiment.grid("paper")
        alike: dict[Work, list[Config]] = {}
        for config in grid:
            alike.setdefault(experiment.work(config), []).append(config)
        for work, configs in alike.items():
            first = dict(configs[0])
            arm = [f"{field} {first[field]}" for field in ("routing", "depth") if field in first]
            arm += [f"{field} {first[field]}" for field in TELLING if field in first and first[field] != getattr(grid[0], field)]
            line = f"{name}: {', '.join(arm)}" if arm else name
            yield Run(stem, line, len(configs) * len(experiment.seeds["paper"]), work, planned=False)


def mlp(batch: int, *widths: int) -> list[Layer]:
    return [dense(batch, a, b) for a, b in itertools.pairwise(widths)]


# ------------------------------------------------------------------------------------------------ learned routing, on the small network of EM


def learned_network(batch: int, size: int, classes: int, iterations: int = 3) -> tuple[Layer, ...]:
    """Faria 2019, Table 1: A=64, B=8, C=D=16, one channel, class matrices of their own at every position.

    Similarity learning reads the votes for a mean and a distance, so no oftener than EM, which stands here for it.
    """
    return capsule_layers(batch, 1, (size, size), classes, SMALL, iterations, shared=False)


def connectionist(batch: int, size: int, classes: int) -> tuple[Layer, ...]:
    """Algorithm 2: an LSTM of 16 units and a network g for every child of every parent, three times; a network f for every parent.

    One iteration of EM stands for the votes and what reads them in other ways.
    """
    grid = after(after((size, size), 5, 2), 3, 2)
    first, second = grid[0] ** 2, after(grid, 3)[0] ** 2
    layers = [*learned_network(batch, size, classes, iterations=1)]
    for parents, children, g, f in (
        (batch * first * 16, 9 * 8, [], []),
        (batch * second * 16, 9 * 16, [32, 32], [64, 64]),
        (batch * classes, second * 16, [64, 64], [124, 124]),
    ):
        rows = 3 * parents * children
        layers += [dense(rows, 34 + 16, 4 * 16), *mlp(rows, 16, *g, 1), *mlp(parents, 16, *f, 1)]
    return tuple(layers)


def learned_routing() -> Iterator[Run]:
    """Table 3: 100 epochs of single images, batch 64; EM on the same network beside the two learned routings."""
    for name, size, classes, train in (("smallNORB", 32, 5, 48_600), ("MNIST", 28, 10, 60_000)):
        count = steps(100, 64, train)
        yield Run("learned_routing", f"{name}, similarity and EM", 2 * SEEDS, Work(count, learned_network(64, size, classes)))
        yield Run("learned_routing", f"{name}, connectionist", SEEDS, Work(count, connectionist(64, size, classes)))


# --------------------------------------------------------------------------------------------------------------- sparse capsules


def encoder(size: int, latent: int, batch: int = 128) -> tuple[Layer, ...]:
    """Rawlinson et al. 2018, §2: the encoder of Sabour et al. with ``latent`` capsules of 16, and the decoder."""
    features = after((size, size), 9)
    grid = after(features, 9, 2)
    return (
        convolution(batch, 1, 256, 9, features, first=True),
        convolution(batch, 256, 256, 9, grid, 2),
        *capsules("dynamic", batch, 32 * grid[0] * grid[1], latent, 16, 8),
        *mlp(batch, 16 * latent, 512, 1024, size * size),
    )


def sparse_unsupervised() -> Iterator[Run]:
    """30,000 steps of batch 128 without labels; 300,000 with, as released for MNIST: an upper bound, affNIST stops earlier."""
    batch = 128
    cnn = (
        convolution(batch, 1, 512, 5, (36, 36), first=True),
        convolution(batch, 512, 256, 5, (14, 14)),
        *mlp(batch, 7 * 7 * 256, 1024, 10),
    )
    for size, arms in ((40, 3), (28, 2)):
        name = f"{size}×{size}, " + ("dense, sparse, sparse without boosting" if arms == 3 else "dense and sparse")
        yield Run("sparse_unsupervised", name, arms * SEEDS, Work(30_000, encoder(size, 16)))
        yield Run("sparse_unsupervised", f"{size}×{size}, SUPCAPS", SEEDS, Work(300_000, encoder(size, 10)))
    yield Run("sparse_unsupervised", "40×40, CNN", SEEDS, Work(300_000, cnn))


# ------------------------------------------------------------------------------------------------------------------- inequality


def anomaly_network(
    batch: int, channels: int, size: tuple[int, int], kernel: int = 9, types: int = 32, dim: int = 32
) -> tuple[Layer, ...]:
    """Kirillov & Panov 2022: ``dim`` parallel convolutions of ``types`` channels make primary capsules of ``dim``; two classes."""
    features = after(size, kernel)
    grid = after(features, kernel, 2)
    return (
        convolution(batch, channels, 256, kernel, features, first=True),
        convolution(batch, 256, types * dim, kernel, grid, 2),
        *capsules("dynamic", batch, types * grid[0] * grid[1], 2, 16, dim),
        *mlp(batch, 2 * 16, 512, 1024, channels * size[0] * size[1]),
    )


def inequality_anomaly() -> Iterator[Run]:
    """Every class is the normal one, and the anomaly, of every set, at three shares of anomalies; the largest, 10 %, stands for all.

    Networks train for at most 10 epochs (CRISPR 50), the baselines for at most 300. The replicates are the paper's own.
    """
    tasks = [
        (f"{name}, {arm}", sets * 3 * 10, round(normal / 0.9), 10_000, (channels, (side, side)), {}, batch, 10)
        for name, sets, images, channels, side, batch in (
            ("MNIST, Fashion-MNIST, KMNIST", 3, 60_000, 1, 28, 256),
            ("CIFAR-10", 1, 50_000, 3, 32, 64),
        )
        for arm, normal in (("diverse outliers", images // 10), ("diverse inliers", images * 9 // 10))
    ]
    melanoma, malignant, nevus = 1113, 1113 + 514 + 327, 6705
    benign = nevus + 142 + 1099 + 115
    for task, n in {"A": malignant + benign, "B": melanoma + benign, "C": malignant + nevus, "D": melanoma + nevus}.items():
        tasks.append((f"HAM10000 {task}", 10, n * 3 // 4, n // 4, (3, (75, 100)), {"dim": 8}, 64, 10))
    n = 615 + 26_038
    tasks.append(("CRISPR", 10, n * 3 // 4, n // 4, (2, (4, 23)), {"kernel": 2}, 256, 50))
    for name, trials, train, test, (channels, size), options, batch, epochs in tasks:
        pixels = channels * size[0] * size[1]
        count = steps(300, 256, train)
        for what, work in (
            (name, Work(steps(epochs, batch, train, test), anomaly_network(batch, channels, size, **options))),
            (f"{name}: ABC", Work(count, tuple(mlp(256, pixels, 300, 100, 20, 100, 300, pixels)))),
            (f"{name}: NL", Work(count, tuple(mlp(256, pixels, 500, pixels)))),
        ):
            yield Run("inequality_anomaly", what, trials, work)


PLANNED = {f.__name__: f for f in (sparse_unsupervised, learned_routing, inequality_anomaly)}


def runs() -> list[Run]:
    """All runs of all papers: what the chapters count themselves, else what is planned."""
    return [run for stem in papers.STEMS for run in (built(stem) if papers.experiments(stem) else PLANNED[stem]())]


COLUMNS = (
    "paper",
    "runs",
    "trials",
    "steps",
    "FLOP a step",
    "bytes a step",
    "memory",
    "FLOP a trial",
    "minutes a trial",
    "minutes in all",
)


def rows(found: list[Run]) -> Iterator[tuple[str, ...]]:
    """The table, by ``COLUMNS``: a line for each run, one for each paper, and one for all."""
    for stem, of_paper in itertools.groupby(found, key=lambda run: run.stem):
        listed = list(of_paper)
        title = papers.PAPERS[stem].short + (" (planned)" if listed[0].planned else "")
        for number, run in enumerate(listed):
            work = run.work
            yield (
                "" if number else title, run.name, str(run.trials), f"{work.steps:.0f}", si(work.flops, "FLOP"), si(work.bytes, "B"),
                si(work.memory(CARD), "B"), si(work.flops * work.steps, "FLOP"), f"{work.seconds(CARD) / 60:.1f}", f"{run.minutes:.0f}"
            )  # fmt: skip
        yield _sum(title, listed)
    yield _sum("All papers", found)


def _sum(title: str, found: list[Run]) -> tuple[str, ...]:
    flops = sum(run.trials * run.work.flops * run.work.steps for run in found)
    most = si(max(run.work.memory(CARD) for run in found), "B")
    return (
        title,
        "together",
        str(sum(r.trials for r in found)),
        "",
        "",
        "",
        most,
        si(flops, "FLOP"),
        "",
        f"{sum(r.minutes for r in found):.0f}",
    )


CLAIM_COLUMNS = ("claim", "trials", "minutes on the card")


def claims() -> Iterator[tuple[str, ...]]:
    """Every claim of the chapters that are built: the trials that it is judged by at paper scale, and their minutes. Claims share trials."""
    for stem in papers.STEMS:
        for claim, trials in papers.needs(stem, "paper").items():
            yield claim, str(len(trials)), f"{sum(papers.work(t).seconds(CARD) for t in trials) / 60:.1f}"


# -------------------------------------------------------------------------------------------------------- what would shorten it


def _votes(change: float) -> Callable[[Run], Run]:
    """Another number of bytes for what reads and writes votes."""

    def changed(run: Run) -> Run:
        layers = (replace(of, bytes=int(of.bytes * change)) if of.name in ("votes", *ROUTED) else of for of in run.work.layers)
        return replace(run, work=replace(run.work, layers=tuple(layers)))

    return changed


ON_CHIP = (10 / 33e12) / (FLOAT / CARD.bandwidth)
"""Time of a pass over votes that are formed anew where they are needed, as a share of that of reading them: some ten operations a
vote, at half of the 67 TFLOP/s that the data sheet gives for plain float32."""
SETTINGS: dict[str, tuple[Device, Callable[[Run], Run]]] = {
    "as it is": (CARD, lambda run: run),
    "votes in bfloat16": (CARD, _votes(0.5)),
    "votes that never reach memory": (CARD, _votes(ON_CHIP)),
    "steps captured in a graph": (replace(CARD, call=0.0), lambda run: run),
    "no start-up: many trials in one process": (replace(CARD, start=0.0), lambda run: run),
    "the last three together": (replace(CARD, call=0.0, start=0.0), _votes(ON_CHIP)),
}


HOURS_COLUMNS = ("hours on the card", *(p.short for p in papers.PAPERS.values()), "all")


def hours(found: list[Run]) -> Iterator[tuple[str, ...]]:
    """Under each of ``SETTINGS``: hours on the card for each paper and for all."""
    for name, (device, change) in SETTINGS.items():
        spent = Counter()
        for run in found:
            spent[run.stem] += run.trials * change(run).work.seconds(device) / 3600
        yield name, *(f"{spent[stem]:.1f}" for stem in papers.STEMS), f"{spent.total():.1f}"


def main() -> None:
    found = runs()
    console = Console(width=190)
    table = Table(
        *COLUMNS, box=None, header_style="bold", title=f"Every paper at its own scale on {CARD.name}, by the cost model"
    )
    for row in rows(found):
        table.add_row(*row, style="bold" if row[1] == "together" else None)
    console.print(table)
    table = Table(*HOURS_COLUMNS, box=None, header_style="bold")
    for row in hours(found):
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()

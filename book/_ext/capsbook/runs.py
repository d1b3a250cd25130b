"""The runs behind the claims: a table of each paper, and all of them and all claims as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from capsbook.book import runs_anchor
from capslib import papers
from capslib.lab import claims
from capslib.lab.ledger import number, plural
from capslib.papers.check import leaves
from capslib.papers.names import in_words

if TYPE_CHECKING:
    from capsbook.evidence import Evidence, Run
    from capslib.lab.words import Verdict

NAMED = 3
"""The most arms that a line of runs names; of more it names the first and the last."""


class ArmOfRuns(NamedTuple):
    """The runs of an arm, and the metric that stands for them in a table."""

    arm: str
    metric: str
    runs: list[Run]

    @property
    def values(self) -> list[str]:
        """The metric of each run; how it ended, where it has none."""
        values = []
        for run in self.runs:
            if self.metric in run.metrics:
                values.append(number(run.metrics[self.metric]))
            else:
                values.append(run.exit)
        return values

    @property
    def devices(self) -> str:
        """What it ran on."""
        return ", ".join(dict.fromkeys(run.device for run in self.runs))

    @property
    def revisions(self) -> list[str]:
        """The revisions of the code that ran."""
        return list(dict.fromkeys(run.revision or "unknown" for run in self.runs))


class GroupOfRuns(NamedTuple):
    """The runs of an experiment at a scale."""

    experiment: str
    scale: str
    anchor: str
    arms: list[ArmOfRuns]

    @property
    def runs(self) -> list[Run]:
        """All of its runs."""
        return [run for arm in self.arms for run in arm.runs]


def table_of_runs(stem: str, evidence: Evidence) -> list[GroupOfRuns]:
    """Return the runs of a paper by experiment and scale, and by arm.

    Of each arm the table shows the metric that most checks of the experiment ask for, or else
    the first one of its records.
    """
    counts = _checks_by_metric(stem)
    tables = []
    for (experiment, scale), runs in sorted(_by_experiment(evidence.runs_of(stem)).items()):
        arms: dict[str, list[Run]] = {}
        for run in sorted(runs, key=lambda run: (run.arm, run.trial.seed)):
            arms.setdefault(run.arm, []).append(run)
        rows = []
        for arm, members in arms.items():
            metrics = members[0].metrics
            ranking = [name for name, _ in counts[experiment].most_common() if name in metrics]
            metric = next(iter([*ranking, *metrics]), "")
            rows.append(ArmOfRuns(arm, metric, members))
        anchor = runs_anchor(stem, experiment, scale)
        tables.append(GroupOfRuns(experiment, scale, anchor, rows))
    return tables


def _by_experiment(runs: Iterable[Run]) -> dict[tuple[str, str], list[Run]]:
    """Return runs by experiment and scale."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.trial.experiment, run.trial.scale), []).append(run)
    return groups


def _checks_by_metric(stem: str) -> dict[str, Counter[str]]:
    """Return how many checks of a paper ask for each metric, by experiment."""
    counts = {name: Counter[str]() for name in papers.experiments(stem)}
    for check in papers.checks_of(stem).values():
        for leaf in leaves(check):
            for experiment in {select.experiment for select in leaf.selects}:
                counts[experiment][str(leaf.metric)] += 1
    return counts


def cited_runs(verdict: Verdict, evidence: Evidence) -> list[tuple[str, str]]:
    """Return the runs behind a verdict in words: the anchor of their table, and a line."""
    cited = [evidence.runs[key] for key in verdict.records if key in evidence.runs]
    lines = []
    for (experiment, scale), runs in _by_experiment(cited).items():
        anchor = runs_anchor(verdict.claim.paper, experiment, scale)
        count = f"{plural(len(runs), 'run')} of {in_words(experiment)} at {scale} scale"
        arms = _arms_in_words(list(dict.fromkeys(run.arm for run in runs)))
        seeds = _seeds_in_words(sorted({run.trial.seed for run in runs}))
        lines.append((anchor, f"{count}: {arms}; {seeds}"))
    return lines


def _arms_in_words(arms: Sequence[str]) -> str:
    if len(arms) <= NAMED:
        return ", ".join(arms)
    return f"{len(arms)} arms, {arms[0]} to {arms[-1]}"


def _seeds_in_words(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"


def runs_csv(runs: Iterable[Run]) -> str:
    """Return every run of a paper as a line of CSV, with all its metrics."""
    runs = list(runs)
    metrics = dict.fromkeys(name for run in runs for name in run.metrics)
    head = ["experiment", "scale", "arm", "seed", "exit", "finished", "wall_seconds"]
    head += ["device", "revision", "key", *metrics]
    lines = []
    for run in runs:
        trial = run.trial
        values = [run.metrics.get(name, "") for name in metrics]
        setting = [trial.experiment, trial.scale, run.arm, trial.seed]
        circumstances = [run.exit, run.finished.isoformat(), run.wall_seconds, run.device]
        lines.append([*setting, *circumstances, run.revision or "", run.path.stem, *values])
    return _csv(head, lines)


def claims_csv(verdicts: Iterable[Verdict]) -> str:
    """Return every claim as a line of CSV: its row of ``capslib claims``, reason and
    records."""
    head = ["paper", *claims.COLUMNS, "Place", "Statement", "Reason", "Records"]
    lines = []
    for verdict in verdicts:
        claim = verdict.claim
        cells = [claim.paper, *claims.row(verdict), claim.where, claim.statement]
        lines.append([*cells, verdict.reason, " ".join(verdict.records)])
    return _csv(head, lines)


def _csv(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    for cells in lines:
        writer.writerow([_no_formula(cell) for cell in cells])
    return file.getvalue()


NUMBER = re.compile(r"[+-]?[\d,.]+(e[+-]?\d+)?")


def _no_formula(cell: object) -> object:
    """Quote what a spreadsheet would run as a formula."""
    if not isinstance(cell, str) or NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell

"""The command line: ``capslib …`` or ``python -m capslib …``."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand
from typer.models import OptionInfo

from capslib import papers
from capslib.errors import Interrupted, UserError
from capslib.files import as_folder
from capslib.lab.ledger import plural
from capslib.lab.progress import RunDisplay, Terminal, printable
from capslib.lab.settings import Settings, parse
from capslib.papers.experiment import Trial

if TYPE_CHECKING:
    from capslib.lab.batch import Session
    from capslib.lab.budget import Waiting
    from capslib.lab.records import Record
    from capslib.lab.store import Store

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)
data_app = typer.Typer(no_args_is_help=True, help="The data sets: list, fetch, verify.")
app.add_typer(data_app, name="data")
new_app = typer.Typer(no_args_is_help=True, help="Write the skeleton of a new paper.")
app.add_typer(new_app, name="new")
console = Terminal(stderr=True, width=None if sys.stderr.isatty() else 160)
out = Terminal(soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 160)

Stems = Annotated[
    list[str],
    typer.Argument(
        metavar="STEM…",
        help=f"papers: {', '.join(papers.STEMS)}; studies: {', '.join(papers.STUDIES)}",
    ),
]
SomeStems = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[STEM…]",
        help=(
            f"papers: {', '.join(papers.STEMS)}; studies: {', '.join(papers.STUDIES)}; "
            "with --budget by default all papers"
        ),
    ),
]
Stem = Annotated[str | None, typer.Argument(metavar="[STEM]", help="one paper; default: all")]


def option(name: str, **options: object) -> OptionInfo:
    """Return the option for a parameter of the notebooks, in the words of :class:`Settings`."""
    return typer.Option(help=Settings.model_fields[name].description, **options)


def flag(name: str, help: str) -> OptionInfo:
    """Return an option that takes no value, and has no opposite."""
    return typer.Option(name, help=help)


def fields(help: str, *names: str) -> OptionInfo:
    """Return an option that may be repeated, for fields of trials and their values."""
    return typer.Option(*names, metavar="FIELD=VALUE", help=help)


DataDir = Annotated[Path | None, option("data_dir", parser=as_folder, metavar="FOLDER")]
ResultsDir = Annotated[Path | None, option("results_dir", parser=as_folder, metavar="FOLDER")]


class Command(TyperCommand):
    """A command that takes one value for each option, unless the option may be repeated."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        *_, parameters = self.make_parser(ctx).parse_args(list(args))
        for parameter in parameters:
            if parameters.count(parameter) > 1:
                is_single = not (parameter.multiple or parameter.is_flag)
                if is_single:
                    raise UserError(f"{parameter.opts[0]} is given twice: give it one value.")
        return super().parse_args(ctx, args)


class Notices(logging.Handler):
    """Show what capslib tells its user by :func:`capslib.errors.notify`."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"capslib: {record.getMessage()}")


def say(text: str) -> None:
    """Print a text to standard error, each line of it in one piece."""
    console.print(text, soft_wrap=True)


def main() -> None:
    """Run the command line.

    Bad input ends with status 2 and one message, and leaves nothing half-written. So does
    whatever the system refuses: a name that is too long, a working folder that is gone, a full
    disk behind the output.
    """
    # Threads that wait leave the cores to others, here, in kernels and in workers.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.stdout.reconfigure(errors="replace")  # such as cp1252 lack some of our letters
    logging.getLogger("capslib").addHandler(Notices())
    warnings.formatwarning = lambda message, *_, **__: f"capslib: {message}\n"
    try:
        os.getcwd()
    except FileNotFoundError:
        refuse("The working folder is gone: change to one that is there.")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except UserError as error:
        refuse(str(error))
    except BrokenPipeError:  # whoever reads the output has enough, as `head` has
        drop_output()
        raise SystemExit(1) from None
    except OSError as error:
        drop_output()
        target = error.filename or "What the output goes to"
        reason = error.strerror or error
        refuse(f"{target} cannot be used: {reason}. Name another place, or mend this one.")


def refuse(message: str) -> NoReturn:
    """Exit with status 2 and a message, with words of 1,000 letters or more cut short."""
    message = re.sub(r"\S{1000,}", lambda word: f"{word[0][:60]}…", message)
    name = Text("capslib:", style="bold red")
    console.print(name, printable(message), soft_wrap=True)
    raise SystemExit(2) from None


def drop_output() -> None:
    """Discard output that is still buffered.

    At exit Python would try to write it again, and fail.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note_unproven_code(settings: Settings) -> None:
    """Say before a run why `capslib records check` will refuse its records, if it will.

    Nothing is said at smoke scale, whose records nobody sends.
    """
    from capslib.lab import provenance

    if settings.scale == "smoke":
        return
    objection = provenance.checkout().objection
    if objection:
        say(f"note: `capslib records check` will refuse these records: {objection}.")


def status_of(stopped: KeyboardInterrupt) -> int:
    """Return the exit status of a command that a signal has stopped."""
    return 128 + getattr(stopped, "signal", signal.SIGINT)


@app.command(cls=Command)
def execute(
    stems: Stems,
    scale: Annotated[str | None, option("scale", show_default="smoke")] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            "-p",
            metavar="NAME=VALUE",
            help=f"of the notebook: {', '.join(Settings.model_fields)}",
        ),
    ] = None,
    force: Annotated[
        bool, flag("--force", "execute notebooks even if nothing has changed")
    ] = False,
) -> None:
    """Execute notebooks whose inputs have changed: Jupytext → Papermill → the book's folder."""
    from capslib.lab import batch, notebooks

    pairs = list(parameter or [])
    if scale is not None:
        pairs.append(f"scale={scale}")
    session = batch.Session.start(**parse(pairs))
    stems = list(dict.fromkeys(stems))
    for stem in stems:
        notebooks.check(stem, session)
    note_unproven_code(session.settings)
    for stem in stems:
        try:
            done = notebooks.execute(stem, session.settings, force=force)
        except KeyboardInterrupt as stopped:
            end = "ended at once"
            if isinstance(stopped, Interrupted):
                end = "stopped, with its checkpoints written"
            say(
                f"{stem}: {end}. The same command goes on; until then the book has what it had."
            )
            raise typer.Exit(status_of(stopped)) from None
        say(f"{stem}: {done}")


@app.command(cls=Command)
def run(
    scale: Annotated[str, option("scale")],
    stems: SomeStems = None,
    experiment: Annotated[
        list[str] | None, typer.Option(help="only this experiment (may be repeated)")
    ] = None,
    where: Annotated[
        list[str] | None, fields("keep only trials with this value; seed=1 is one seed")
    ] = None,
    change: Annotated[list[str] | None, fields("change this field", "--set")] = None,
    seeds: Annotated[int | None, option("seeds")] = None,
    device: Annotated[str, option("device")] = "cpu",
    workers: Annotated[int, option("workers")] = 0,
    threads: Annotated[int, option("threads")] = 1,
    scheduler: Annotated[str | None, option("scheduler")] = None,
    data_dir: DataDir = None,
    results_dir: ResultsDir = None,
    retry_failed: Annotated[
        bool, flag("--retry-failed", "run failed trials again, too")
    ] = False,
    max_steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="rehearse: stop each training after this many steps; no result"
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="run what decides most claims in this time, such as 15m, 12h or 90s",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        flag(
            "--dry-run",
            "show what would run, here or on such a device elsewhere, its time and memory",
        ),
    ] = False,
    verbose: Annotated[
        bool, flag("--verbose", "with --dry-run: list every trial, not only groups of them")
    ] = False,
) -> None:
    """Run the trials that have no record yet, in parallel.
    After a stop or a kill, the same command goes on from there.
    """
    started = time.monotonic()
    if dry_run and max_steps:
        raise UserError(
            "--dry-run plans the whole run, and --max-steps rehearses it: "
            "give one of them, then the other."
        )
    if verbose and not dry_run:
        raise UserError("--verbose lists the trials of a plan: give --dry-run with it.")
    selection = {
        "--experiment": experiment,
        "--where": where,
        "--set": change,
        "--seeds": seeds,
        "--max-steps": max_steps,
        "--retry-failed": retry_failed,
        "--scheduler": scheduler,
    }
    seconds = None if budget is None else checked_budget(budget, stems, scale, selection)
    if not stems and seconds is None:
        listed = ", ".join(papers.STEMS)
        raise UserError(f"Name a paper ({listed}), or give --budget for all of them.")
    from capslib.lab import batch

    start = batch.Session.for_plans if dry_run else batch.Session.start
    session = start(
        scale=scale,
        device=device,
        seeds=seeds,
        workers=workers,
        threads=threads,
        scheduler=scheduler,
        data_dir=data_dir,
        results_dir=results_dir,
    )
    if not max_steps:  # no rehearsal is ever sent in
        note_unproven_code(session.settings)
    if seconds is not None:
        run_in_time(stems or papers.STEMS, session, seconds, started, dry_run)
        return
    trials: dict[str, Trial] = {}  # by key: a paper or an experiment may be named twice
    for stem in stems:
        for name in experiment or papers.experiments(stem):
            for trial in session.trials(
                stem,
                name,
                where=parse(where or [], "field"),
                change=parse(change or [], "field"),
            ):
                trials[trial.key] = trial
    if dry_run:
        show_plan(list(trials.values()), session, retry_failed, verbose)
        return
    with shown_run() as display:
        records = batch.run(
            list(trials.values()),
            session.store,
            session.settings,
            display=display,
            retry_failed=retry_failed,
            max_steps=max_steps,
        )
    exit_if_failed(records, session)


@contextmanager
def shown_run() -> Iterator[RunDisplay]:
    """Show the trials that run. If a signal stops them, say how to go on, and exit."""
    try:
        with RunDisplay(console) as display:
            yield display
    except KeyboardInterrupt as stopped:
        say("Stopped. The same command continues from the last checkpoints.")
        raise typer.Exit(status_of(stopped)) from None


def exit_if_failed(records: list[Record], session: Session) -> None:
    """Print the records that are of failures, and exit with status 1 if there are any."""
    from capslib.lab import progress

    failed = [record for record in records if record.failed]
    if failed:
        console.print(progress.failures(failed, session.store))
        raise typer.Exit(1)


def show_plan(trials: list[Trial], session: Session, retry_failed: bool, verbose: bool) -> None:
    """Print what would run, what it costs, and what keeps it from starting."""
    from capslib.lab import batch, budget, planning, progress

    store, settings = session.store, session.settings
    plan = planning.plan(trials, store, settings, retry_failed=retry_failed)
    for line in progress.summary(plan):
        say(line)
    todo = {trial.key: trial for trial in plan.todo}
    stems = {trial.paper for trial in plan.todo}
    waiting = budget.waiting_for(sorted(stems), settings.scale, store).among(todo.keys())
    costs = {}
    for key, trial in waiting.trials.items():
        costs[key] = budget.cost_of(trial, plan.estimates[key], store)
    for line in progress.plan_lines(plan, waiting, costs, list_trials=verbose):
        out.print(line)
    if settings.scheduler is None:
        missing = batch.missing_data(plan.todo, settings.data_dir)
        if missing:
            say("It cannot start yet. " + "\n".join(missing.values()))


def checked_budget(
    budget: str, stems: list[str] | None, scale: str, selection: dict[str, object]
) -> float:
    """Return the seconds of a budget. Raise UserError for what does not go with one."""
    from capslib.lab.budget import seconds_of

    seconds = seconds_of(budget)
    conflicting = [name for name, value in selection.items() if value]
    if conflicting:
        raise UserError(
            f"--budget chooses the trials itself: leave out {', '.join(conflicting)}."
        )
    if scale == "smoke":
        raise UserError("No claim is decided at smoke scale: give --scale cpu or paper.")
    for stem in stems or ():
        papers.module(stem)  # raises for an unknown stem
    if stems and not any(stem in papers.PAPERS for stem in stems):
        raise UserError(
            f"--budget runs what decides claims, and {stems[0]} makes none: "
            f"leave out {stems[0]}, or --budget."
        )
    return seconds


def run_in_time(
    stems: Sequence[str], session: Session, seconds: float, started: float, dry_run: bool
) -> None:
    """Run, or with ``dry_run`` show, the trials that decide most claims in some seconds.

    In the end print what was decided, and what as much time again would decide.
    """
    from capslib.lab import batch, budget, progress

    store, settings = session.store, session.settings
    waiting = budget.waiting_for(dict.fromkeys(stems), settings.scale, store)
    missing = batch.missing_data(waiting.trials.values(), settings.data_dir)
    if missing and not dry_run:
        ready = {k for k, t in waiting.trials.items() if papers.arm(t).data not in missing}
        waiting = waiting.among(ready)
        if not waiting.bundles:
            raise UserError("\n".join(missing.values()))
        say(f"Left out: trials on {', '.join(missing)}, whose data are not here.")
    if not waiting.bundles:
        say(f"No claim waits for a trial at {settings.scale} scale.")
        return
    if dry_run:
        choice = budget.plan_budget(waiting, store, settings, seconds)
        for line in progress.choice_lines(choice, waiting.trials):
            out.print(line)
        if missing:
            say("Data that are not here:\n" + "\n".join(missing.values()))
        return
    with shown_run() as display:
        records = batch.run_budget(
            waiting, store, settings, seconds, started=started, display=display
        )
    remaining = waiting.without({record.key for record in records})
    report(waiting, remaining, records, session, time.monotonic() - started)
    choice = budget.plan_budget(remaining, store, settings, seconds)
    if choice.groups or choice.begun:
        out.print(f"As much time again, {progress.duration(seconds)}, would run:")
        for line in progress.choice_lines(choice, remaining.trials, most=0):
            out.print(line)
    exit_if_failed(records, session)


def report(
    waiting: Waiting,
    remaining: Waiting,
    records: list[Record],
    session: Session,
    seconds: float,
) -> None:
    """Print the verdict on each claim whose last trials have just run."""
    from capslib.lab import claims, progress
    from capslib.lab.workers import checkpoint_time

    decided = set(waiting.claims) - set(remaining.claims)
    spent = f"{plural(len(records), 'trial')} ran in {progress.duration(seconds)}"
    if not decided:
        advice = "checkpoints keep what is done"
        times = (checkpoint_time(trial, session.store) for trial in waiting.trials.values())
        if not records and not any(times):
            advice = "no training came as far as a checkpoint, so give it more time"
        say(f"{spent}. No claim has all its trials yet; {advice}.")
        return
    say(f"{spent}. That completes the trials of {plural(len(decided), 'claim')}:")
    table = columns(*(column.lower() for column in claims.COLUMNS))
    for stem in dict.fromkeys(trial.paper for trial in waiting.trials.values()):
        for verdict in claims.verdicts(stem, store=session.store):
            if verdict.claim.id in decided:
                table.add_row(*claims.row(verdict))
    out.print(table)


def columns(*names: str, **options: object) -> Table:
    """Return a table without lines between its columns."""
    return Table(*names, box=None, header_style="bold", **options)


@app.command(cls=Command)
def claims(
    stem: Stem = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    headlines: Annotated[
        bool, flag("--headlines", "what a paper says in its abstract and conclusion")
    ] = False,
    results_dir: ResultsDir = None,
) -> None:
    """Show every claim: id, the paper's value, ours with its interval, n, scale and verdict."""
    from capslib.lab import claims
    from capslib.lab.headlines import judged
    from capslib.lab.store import Store
    from capslib.lab.words import CAPSULES, NONE_TRAINED, counts

    if headlines and as_json:
        raise UserError("Give --headlines or --json, not both.")
    store = Store(results_dir, remember=False).check_not_empty()
    verdicts = claims.verdicts(stem, store=store)
    if headlines:
        table = columns("paper", "headline", "verdict", leading=1)
        for headline in judged(verdicts):
            paper = papers.PAPERS[headline.paper].short
            table.add_row(paper, headline.sentence, headline.verdict)
        out.print(table)
        return
    if as_json:
        print(claims.to_json(verdicts))
        return
    table = columns(*(column.lower() for column in claims.COLUMNS))
    for verdict in verdicts:
        table.add_row(*claims.row(verdict))
    out.print(table)
    for group, words in counts(verdicts).items():
        text = "  ".join(f"{word} {number}" for word, number in words.items())
        if stem and group == CAPSULES and not any(words.values()):
            text = NONE_TRAINED
        out.print(f"{group}: {text}")


@app.command(cls=Command)
def records(
    stem_or_check: Annotated[
        str | None,
        typer.Argument(metavar="[STEM | check]", help="one paper, or `check` to validate"),
    ] = None,
    stem: Stem = None,
    results_dir: ResultsDir = None,
    repair: Annotated[bool, flag("--repair", "with check: set damaged records aside")] = False,
) -> None:
    """Show what has been run.
    With `check`: validate the records before a pull request, status 1 if one has a problem.
    """
    from capslib.lab.store import Store

    checks = stem_or_check == "check"
    paper = stem if checks else stem_or_check
    if paper is not None:
        papers.module(paper)  # raises for an unknown stem
    if (repair or stem is not None) and not checks:
        raise UserError(
            "One paper, as in `capslib records STEM`; "
            "--repair belongs to `capslib records check --repair`."
        )
    store = Store(results_dir, remember=False).check_not_empty()
    if checks:
        check_records(store, paper, repair)
    table = columns("record", "trial", "exit", "metrics", "device", "seconds")
    for record in store.records(paper, cut=True):
        metrics = [f"{name}={metric.value:.4g}" for name, metric in record.metrics.items()]
        table.add_row(
            record.key,
            str(record.trial),
            record.exit,
            "  ".join(metrics),
            record.environment.device,
            f"{record.wall_seconds:.0f}",
        )
    out.print(table)


def check_records(store: Store, stem: str | None, repair: bool) -> NoReturn:
    """Print the problems of records, and exit with status 1 if there are any."""
    from capslib.lab.review import grouped_notes, review

    if repair:
        store.repair_all(stem)
    problems, notes = review(store, stem)
    for line in [*problems, *(f"note: {note}" for note in grouped_notes(notes))]:
        out.print(line)
    counts = [plural(len(store.paths(stem)), "record"), plural(len(problems), "problem")]
    say(f"{', '.join(counts)}, {plural(len(notes), 'note')}.")
    raise typer.Exit(1 if problems else 0)


@data_app.command("list", cls=Command)
def data_list(data_dir: DataDir = None) -> None:
    """List the data sets: which are here, what they hold, and their licences."""
    from capslib import data

    table = columns("name", "kind", "here", "splits", "licence", "folder")
    for row in data.describe(data_dir):
        table.add_row(row.name, row.kind, row.state, row.splits, row.licence, row.folder)
    out.print(table)


@data_app.command("fetch", cls=Command)
def data_fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME…")], data_dir: DataDir = None
) -> None:
    """Download the publishers' files, check their hashes and prepare them,
    whole or not at all.
    """
    from capslib import data

    for name in names:
        say(f"{name}: {data.fetch(name, data_dir=data_dir)}")


@data_app.command("verify", cls=Command)
def data_verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]")] = None,
    data_dir: DataDir = None,
) -> None:
    """Hash every array of the prepared sets again.
    Status 1 if one differs from its manifest.
    """
    from capslib import data

    names = names or [row.name for row in data.describe(data_dir) if row.folder]
    if not names:
        raise UserError(
            "There is no data set: check --data-dir and $CAPSLIB_DATA, "
            "or use `capslib data fetch NAME`."
        )
    problems: list[str] = []
    for name in names:
        problems += data.verify(name, data_dir=data_dir)
    for problem in problems:
        out.print(problem)
    if problems:
        say(f"{plural(len(problems), 'problem')}.")
        raise typer.Exit(1)
    say("All arrays match their manifests.")


@new_app.callback()
def new() -> None:
    """Write the skeleton of a new paper."""


@new_app.command("paper", cls=Command)
def new_paper(
    stem: Annotated[
        str, typer.Argument(metavar="STEM", help="its name in files, such as demo_paper")
    ],
    prefix: Annotated[
        str | None,
        typer.Option(metavar="LETTERS", help="how its claims' ids begin; default: initials"),
    ] = None,
) -> None:
    """Write every file that a paper needs, with TODO where yours comes in.
    Nothing that exists is written over.
    """
    from capslib.lab.skeleton import new_paper

    for path in new_paper(stem, prefix):
        out.print(str(path))
    say(f"Next: git add -N . && git grep -n TODO, and try it: capslib execute {stem}")


@app.command(cls=Command)
def pack(
    stems: Stems,
    to: Annotated[Path, typer.Option("--to", parser=as_folder, metavar="FOLDER")],
    scale: Annotated[str, option("scale", show_default="paper")] = "paper",
    wheel: Annotated[
        list[str] | None,
        typer.Option(help="take along a package, and what it needs; may be repeated"),
    ] = None,
    all_wheels: Annotated[
        bool, flag("--all-wheels", "take along all packages that a run needs beside PyTorch")
    ] = False,
    python: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="of the other machine, such as 3.12, for wheels"),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="of a part, such as 60M; default: one part"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Pack what runs need on a machine without a network: code, data, wheels, and `run.sh`."""
    from capslib.lab import pack as packing

    parts = packing.pack(
        stems,
        to,
        scale=scale,
        data_dir=data_dir,
        wheels=[*(packing.NEEDED if all_wheels else ()), *(wheel or ())],
        python=python,
        part_size=None if max_size is None else packing.parse_size(max_size),
    )
    for path in parts:
        out.print(f"{path}  {path.stat().st_size / 1e6:,.1f} MB")
    device = " --device cuda" if scale == "paper" else ""
    say(f"Take {to} there, and start it with: sh {to.name}/run.sh{device}")


@app.command(cls=Command)
def unpack(
    source: Annotated[Path, typer.Argument(parser=as_folder, metavar="FOLDER")],
    checkpoints: Annotated[
        bool, flag("--checkpoints", "bring trainings, too, finished or not")
    ] = False,
    results_dir: ResultsDir = None,
) -> None:
    """Bring the records of a pack that has run into this checkout.
    FOLDER is the pack, a folder of records, or a tar archive of one.
    """
    from capslib.lab import pack as packing
    from capslib.lab.store import Store

    store = Store(results_dir, remember=False)
    unpacked = packing.unpack(source, store, checkpoints=checkpoints)
    say(f"{plural(unpacked.records, 'new record')}, {unpacked.present} that were here.")
    if checkpoints:
        say(f"{plural(unpacked.checkpoints, 'file')} of trainings.")
    say("Next: capslib records check, make verdicts.")

"""The command line: ``capslib …`` or ``python -m capslib …``. Every command calls one function of the library."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand
from typer.models import OptionInfo

from capslib import papers
from capslib.errors import Interrupted, UserError
from capslib.files import folder
from capslib.lab.progress import Terminal
from capslib.lab.settings import Settings, parse
from capslib.papers.experiment import Trial

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)
data_app = typer.Typer(no_args_is_help=True, help="The data sets: list, fetch, verify.")
app.add_typer(data_app, name="data")
console = Terminal(stderr=True, width=None if sys.stderr.isatty() else 160)
out = Terminal(soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 160)

Stems = Annotated[
    list[str], typer.Argument(metavar="STEM…", help=f"papers: {', '.join(papers.STEMS)}")
]
Stem = Annotated[str | None, typer.Argument(metavar="[STEM]", help="one paper; default: all")]
NAMES = f"of the notebook: {', '.join(Settings.model_fields)}"
FOLDER = {"parser": folder, "metavar": "FOLDER"}


def option(name: str, **more: object) -> OptionInfo:
    """The option for a parameter of the notebooks, in the words of :class:`Settings`."""
    return typer.Option(help=Settings.model_fields[name].description, **more)


DataDir = Annotated[Path | None, option("data_dir", **FOLDER)]
ResultsDir = Annotated[Path | None, option("results_dir", **FOLDER)]


class Command(TyperCommand):
    """A command that takes a value for each option once, except for options that may be repeated."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        *_, given = self.make_parser(ctx).parse_args(list(args))
        for parameter in given:
            repeatable = getattr(parameter, "multiple", True) or getattr(
                parameter, "is_flag", False
            )
            if given.count(parameter) > 1 and not repeatable:
                raise UserError(f"{parameter.opts[0]} is given twice: give it one value.")
        return super().parse_args(ctx, args)


class Notices(logging.Handler):
    """Shows what capslib tells its user by :func:`capslib.errors.notify`."""

    def emit(self, record: logging.LogRecord) -> None:
        console.print(
            f"capslib: {record.getMessage()}", highlight=False, markup=False, soft_wrap=True
        )


def main() -> None:
    """Run the command line. Bad input ends with status 2 and one message, and leaves nothing half-written.

    So does whatever the system refuses: a name that is too long, a working folder that is gone, a full disk behind the output.
    """
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "PASSIVE"
    )  # threads that wait leave the cores to others
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
        place = error.filename or "What the output goes to"
        refuse(
            f"{place} cannot be used: {error.strerror or error}. Name another place, or mend this one."
        )


def note_unproven_code(settings: Settings) -> None:
    """Say before a run why `capslib records check` will refuse its records, if it will.

    Nothing is said at smoke scale, whose records nobody sends.
    """
    from capslib.lab import runs

    objection = runs.checkout().objection
    if settings.scale != "smoke" and objection:
        note = f"note: `capslib records check` will refuse these records: {objection}."
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def refuse(message: str) -> NoReturn:
    """Exit with status 2 and a message, whose endless words are cut."""
    message = re.sub(r"\S{1000,}", lambda word: f"{word[0][:60]}…", message)
    console.print(f"[bold red]capslib:[/] {escape(message)}", highlight=False, soft_wrap=True)
    raise SystemExit(2) from None


def drop_output() -> None:
    """Send what is left of the output nowhere, or Python would try once more to write it, and fail with a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@app.command(cls=Command)
def execute(
    stems: Stems,
    scale: Annotated[str | None, option("scale", show_default="smoke")] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", metavar="NAME=VALUE", help=NAMES)
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="execute notebooks even if nothing has changed")
    ] = False,
) -> None:
    """Execute notebooks whose inputs have changed: Jupytext → Papermill → book/papers/STEM.ipynb."""
    from capslib.lab import batch, notebooks

    given = [] if scale is None else [f"scale={scale}"]
    session = batch.Session.start(**parse([*given, *(parameter or [])]))
    stems = list(dict.fromkeys(stems))
    for stem in stems:
        notebooks.check(stem, session)
    note_unproven_code(session.settings)
    for stem in stems:
        try:
            done = notebooks.execute(stem, session.settings, force=force)
        except KeyboardInterrupt as stopped:
            how = (
                "stopped, with its checkpoints written"
                if isinstance(stopped, Interrupted)
                else "ended at once"
            )
            console.print(
                f"{stem}: {how}. The same command goes on; until then the book has what it had.",
                highlight=False,
            )
            raise typer.Exit(128 + getattr(stopped, "signal", signal.SIGINT)) from None
        console.print(f"{stem}: {done}", highlight=False)


@app.command(cls=Command)
def run(
    stems: Stems,
    scale: Annotated[str, option("scale")],
    experiment: Annotated[
        list[str] | None, typer.Option(help="only this experiment (may be repeated)")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE", help="keep only trials with this value; seed=1 is one seed"
        ),
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="change this field")
    ] = None,
    seeds: Annotated[int | None, option("seeds")] = None,
    device: Annotated[str, option("device")] = "cpu",
    workers: Annotated[int, option("workers")] = 0,
    threads: Annotated[int, option("threads")] = 1,
    scheduler: Annotated[str | None, option("scheduler")] = None,
    data_dir: DataDir = None,
    results_dir: ResultsDir = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="run failed trials again, too")
    ] = False,
    max_steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="rehearse: stop each training after this many steps; no result"
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="show what would run, here or on such a device elsewhere, its time and memory",
        ),
    ] = False,
) -> None:
    """Run the trials that have no record yet, in parallel. After a stop or a kill, the same command goes on from there."""
    from capslib.lab import batch, planning, progress

    if dry_run and max_steps:
        raise UserError(
            "--dry-run plans the whole run, and --max-steps rehearses it: give one of them, then the other."
        )
    session = batch.Session.start(
        scale=scale,
        device=device,
        seeds=seeds,
        workers=workers,
        threads=threads,
        scheduler=scheduler,
        data_dir=data_dir,
        results_dir=results_dir,
        elsewhere=dry_run,
    )
    store, settings = session.store, session.settings
    note_unproven_code(settings)
    trials: list[Trial] = []
    for stem in stems:
        for name in experiment or papers.experiments(stem):
            trials += session.trials(
                stem,
                name,
                where=parse(where or [], "field"),
                change=parse(change or [], "field"),
            )
    trials = list(
        {trial.key: trial for trial in trials}.values()
    )  # where a paper or an experiment is named twice
    if dry_run:
        plan = planning.plan(trials, store, settings, retry_failed=retry_failed)
        for line in progress.summary(plan):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        for line in progress.costs(plan, settings, store):
            out.print(line, highlight=False, markup=False)
        try:
            if settings.scheduler is None:
                batch.check_data(plan.todo, settings.data_dir)
        except UserError as missing:
            console.print(
                f"It cannot start yet. {missing}", highlight=False, markup=False, soft_wrap=True
            )
        return
    try:
        with progress.Shown(console) as display:
            records = batch.run(
                trials,
                store,
                settings,
                display=display,
                retry_failed=retry_failed,
                max_steps=max_steps,
            )
    except KeyboardInterrupt as stopped:
        console.print("Stopped. The same command continues from the last checkpoints.")
        raise typer.Exit(128 + getattr(stopped, "signal", signal.SIGINT)) from None
    if failed := [r for r in records if r.failed]:
        console.print(progress.failures(failed, store))
        raise typer.Exit(1)


@app.command(cls=Command)
def claims(
    stem: Stem = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    headlines: Annotated[
        bool,
        typer.Option("--headlines", help="what a paper says in its abstract and conclusion"),
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
    verdicts = claims.verdicts(stem, store=Store(results_dir).check_there())
    if headlines:
        table = Table("paper", "headline", "verdict", box=None, header_style="bold", leading=1)
        for headline in judged(verdicts):
            table.add_row(
                papers.PAPERS[headline.paper].short,
                escape(headline.sentence),
                escape(headline.verdict),
            )
        out.print(table)
        return
    if as_json:
        print(claims.to_json(verdicts))
        return
    shown = Table(*(column.lower() for column in claims.COLUMNS), box=None, header_style="bold")
    for verdict in verdicts:
        shown.add_row(*map(escape, claims.row(verdict)))
    out.print(shown)
    for group, words in counts(verdicts).items():
        told = "  ".join(f"{word} {number}" for word, number in words.items())
        if stem and group == CAPSULES and not any(words.values()):
            told = NONE_TRAINED
        out.print(f"{group}: {told}", highlight=False)


@app.command(cls=Command)
def records(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[STEM | check]", help="one paper, or `check` to validate"),
    ] = None,
    stem: Stem = None,
    results_dir: ResultsDir = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="with check: set damaged records aside")
    ] = False,
) -> None:
    """Show what has been run. With `check`: validate the records before a pull request, status 1 if one has a problem."""
    from capslib.lab.review import review, together
    from capslib.lab.store import Store

    checks, chosen = what == "check", stem if what == "check" else what
    if chosen is not None:
        papers.module(chosen)  # raises for an unknown stem
    if (repair or stem is not None) and not checks:
        raise UserError(
            "One paper, as in `capslib records STEM`; --repair belongs to `capslib records check --repair`."
        )
    store = Store(results_dir).check_there()
    if checks:
        if repair:
            store.repair_all(chosen)
        problems, notes = review(store, chosen)
        for line in (*problems, *(f"note: {note}" for note in together(notes))):
            out.print(line, highlight=False, markup=False)
        count = len(store.paths(chosen))
        console.print(
            f"{count} records, {len(problems)} problems, {len(notes)} notes.", highlight=False
        )
        raise typer.Exit(1 if problems else 0)
    table = Table(
        "record", "trial", "exit", "metrics", "device", "seconds", box=None, header_style="bold"
    )
    for record in store.records(chosen, cut=True):
        shown = "  ".join(f"{k}={m.value:.4g}" for k, m in record.metrics.items())
        words = (
            str(record.trial),
            record.exit,
            shown,
            record.environment.device,
            f"{record.wall_seconds:.0f}",
        )
        table.add_row(record.key, *map(escape, words))
    out.print(table)


@data_app.command("list", cls=Command)
def data_list(data_dir: DataDir = None) -> None:
    """List the data sets: which are here, what they hold, and their licences."""
    from capslib import data

    table = Table(
        "name", "kind", "here", "splits", "licence", "folder", box=None, header_style="bold"
    )
    for row in data.describe(data_dir):
        table.add_row(
            *map(escape, (row.name, row.kind, row.state, row.splits, row.licence, row.folder))
        )
    out.print(table)


@data_app.command("fetch", cls=Command)
def data_fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME…")], data_dir: DataDir = None
) -> None:
    """Download the publishers' files, check their hashes and prepare them, whole or not at all."""
    from capslib import data

    for name in names:
        console.print(f"{name}: {data.fetch(name, data_dir=data_dir)}", highlight=False)


@data_app.command("verify", cls=Command)
def data_verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]")] = None,
    data_dir: DataDir = None,
) -> None:
    """Hash every array of the prepared sets again. Status 1 if one differs from its manifest."""
    from capslib import data

    if not (names := names or [row.name for row in data.describe(data_dir) if row.folder]):
        raise UserError(
            "There is no data set: check --data-dir and $CAPSLIB_DATA, or use `capslib data fetch NAME`."
        )
    problems = [p for name in names for p in data.verify(name, data_dir=data_dir)]
    for problem in problems:
        out.print(problem, highlight=False, markup=False)
    console.print(
        "All arrays match their manifests." if not problems else f"{len(problems)} problems.",
        highlight=False,
    )
    raise typer.Exit(1 if problems else 0)

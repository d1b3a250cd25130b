"""The command line, as a user meets it: a process with an exit status, output and a message.

Bad input has to be answered at once. How long a second is depends on the machine, so what is
tested is that torch, nearly all of the time that capslib takes to start, was not imported.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from forked import Done
from helpers import make_record

from capslib.lab.headlines import headlines
from capslib.lab.ledger import ledger
from capslib.lab.ledger.deviations import deviations_of
from capslib.lab.provenance import checkout
from capslib.lab.records import Code, Environment
from capslib.lab.settings import Settings
from capslib.lab.store import Store
from capslib.papers import experiments

CHAPTER = "negation_limitation"
RUN = f"run {CHAPTER} --scale cpu"
TINY = (
    f"run {CHAPTER} --scale smoke --experiment sign "
    "--set points=20 --set epochs=1 --workers 1 --results-dir records"
)
SIGN = experiments(CHAPTER)["sign"]
ARMS = len(SIGN.at("smoke"))
DIGITS = 5_000 * "9"
LONG = "/".join(30 * [200 * "a"])


@pytest.fixture
def environment(tmp_path_factory) -> dict[str, str]:
    """Nothing of the caller's settings, and a cache that is not in the working folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    for name in os.environ:
        if name.startswith("CAPSLIB_"):
            del environment[name]
    for name in ("FORCE_COLOR", "COLUMNS", "PYTHONIOENCODING"):
        environment.pop(name, None)
    environment["CUDA_VISIBLE_DEVICES"] = ""  # the same answers on a machine with a GPU
    return environment


@pytest.fixture
def capslib(tmp_path, environment, tmp_path_factory):
    """Run ``capslib …`` in the folder of a book that has nothing yet."""
    scratch = tmp_path_factory.mktemp("output")
    (tmp_path / "_toc.yml").touch()

    def call(command: str, **variables: str) -> Done:
        words = shlex.split(command)
        done = forked.call(words, tmp_path, {**environment, **variables}, scratch)
        assert "Traceback" not in done.message
        return done

    return call


@pytest.fixture
def put(tmp_path):
    """Write a record of an arm of the sign experiment into the folder ``records``."""

    def write(scale: str = "cpu", **fields: object) -> Path:
        trial = SIGN.trials(scale)[0]
        return Store(tmp_path / "records").put(make_record(trial, **fields))

    return write


@pytest.fixture
def empty(tmp_path) -> None:
    (tmp_path / "empty").mkdir()


def refused(done: Done, message: str) -> None:
    """Assert that bad input was answered at once."""
    assert done.status == 2, done.message
    assert message in done.message
    assert "torch" not in done.imported


def test_the_module_is_the_command_line(environment, tmp_path):
    """A process from its start: ``python -m capslib``, which needs no torch to answer."""
    command = [sys.executable, "-X", "importtime", "-m", "capslib"]
    words = ["run", CHAPTER, "--scale", "papr"]
    done = subprocess.run(
        command + words, cwd=tmp_path, capture_output=True, encoding="utf-8", env=environment
    )
    assert done.returncode == 2
    assert "Unknown scale 'papr'. Did you mean 'paper'?" in done.stderr
    assert re.search(r"\| +capslib\.lab\.cli$", done.stderr, re.MULTILINE)
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


BAD_INPUT = {
    f"run {CHAPTER} --scale papr": "Unknown scale 'papr'. Did you mean 'paper'?",
    f"execute {CHAPTER} -p scal=cpu": "Unknown parameter 'scal'. Did you mean 'scale'?",
    f"execute {CHAPTER} -p seeds": "should look like name=value",
    f"{RUN} --results-dir '~nosuchuser/x'": "'~nosuchuser/x' names no folder: give one to",
    "claims --results-dir ''": "'' names no folder: give one to",
    "records --results-dir reslts": "There are no records in reslts: check --results-dir",
    "claims --results-dir reslts": "There are no records in reslts: check --results-dir",
    "records check --results-dir empty": "There are no records in empty",
    "data verify --data-dir empty": "There is no data set: check --data-dir",
    f"{RUN} --device gpu": "Unknown device 'gpu'. A GPU of NVIDIA is cuda, or cuda:0",
    f"{RUN} --device cuda": "There is no cuda here: no CUDA device found. Use device cpu,",
    f"{RUN} --experiment depth --set depth=0": "Configuration of depth: depth = 0",
    f"{RUN} --experiment depth --set dept=3": "field of depth 'dept'. Did you mean 'depth'?",
    f"{RUN} --where sed=1": "Did you mean 'seed'?",
    f"{RUN} --set points=9": "Experiments that have it: sign. Name one with --experiment.",
    f"{RUN} --where front=odd": "Experiments that have it: negated. Name one with --experiment",
    f"{RUN} --where seed=0 --where seed=1": "Field 'seed' is given twice",
    f"{RUN} --experiment sign --set seed=4": "--where seed=2 is that one alone",
    f"{RUN} --experiment depth --where depth=12": (
        "No configuration of depth at scale cpu has depth=12. There are: depth=2; depth="
    ),
    "run em_routing --scale cpu --experiment viewpoint --where 'sizes=[32, 8]'": (
        "There are: sizes=[32, 8, 8, 8]."
    ),
    # A list may have spaces or none; this command gets as far as the data.
    "run em_routing --scale cpu --experiment viewpoint --where sizes=[32,8,8,8] "
    "--data-dir empty": "smallnorb",
    "run inequality_anomaly --scale paper --experiment baselines "
    "--where percent=1.0 --where seed=7": "has no seed 7. There are: 0, 1, 2.",
    f"{RUN} --experiment dpth": f"Unknown experiment of {CHAPTER} 'dpth'. Did you mean 'depth'",
    "run negation_limitatio --scale cpu": f"'negation_limitatio'. Did you mean '{CHAPTER}'?",
    "claims em_routin": "Did you mean 'em_routing'?",
    "claims --headlines --json": "Give --headlines or --json, not both",
    "records em_routing learned_routing": "One paper, as in `capslib records STEM`",
    "records --repair": "--repair belongs to",
    f"{RUN} --experiment depth --data-dir empty": "train-images-idx3-ubyte.gz is missing",
    "data fetch mnits": "Unknown data set 'mnits'. Did you mean 'mnist'?",
    f"{RUN} --scheduler localhost": "looks like tcp://host:8786",
    f"{RUN} --max-steps 0": "Invalid value for '--max-steps'",
    f"{RUN} --max-steps 20 --dry-run": "--dry-run plans the whole run, and --max-steps",
    f"run {CHAPTER}": "Missing option '--scale'",
    "run --scale cpu": "Name a paper (em_routing, ",
    f"{RUN} --verbose": "--verbose lists the trials of a plan: give --dry-run with it.",
    f"{RUN} --budget soon": "'soon' is no time for --budget: give hours, minutes or",
    f"{RUN} --budget 15": "as in 12h, 15m, 90s or 1h30m",
    f"{RUN} --budget 15m --seeds 2 --where seed=1": "leave out --where, --seeds.",
    f"{RUN} --budget 15m --max-steps 5": (
        "--budget chooses the trials itself: leave out --max-steps."
    ),
    f"{RUN} --max-steps 5 --retry-failed --experiment sign": "is no result: give one of them",
    f"run {CHAPTER} --scale smoke --budget 15m": "No claim is decided at smoke scale: give",
    "run which_routing --scale cpu --budget 1m": (
        "which_routing makes none: leave out which_routing, or --budget."
    ),
    "run em_routin --scale cpu --budget 1m": "Did you mean 'em_routing'?",
    "run em_routing --scale cpu --budget 1h --device cuda": "There is no cuda here",
    f"{RUN} --scale smoke": "--scale is given twice: give it one value.",
    f"execute {CHAPTER} --scale smoke -p scale=cpu": "Parameter 'scale' is given twice",
    f"{RUN} --set epochs={DIGITS}": "'epochs': its value is too long, too deep, or no Unicode",
    f"{RUN} --where sizes={50_000 * '['}": "Field 'sizes': its value is too long, too deep",
    f"{RUN} --device cuda:{DIGITS}": f"Unknown device 'cuda:{54 * '9'}… Valid: cpu, cuda",
    f"{RUN} --where 'data=\"\\ud800\"'": "Field 'data': its value is too long, too deep, or no",
    f"claims --results-dir {LONG}": "cannot be used: File name too long.",
    f"{RUN} --results-dir {LONG}": "… File name too long. Make that folder writable, or choose",
    f"exectue {CHAPTER}": "No such command 'exectue'",
}


@pytest.mark.parametrize("command", BAD_INPUT, ids=lambda command: command[:80])
def test_bad_input_ends_with_status_2_and_names_the_fix(capslib, tmp_path, empty, command):
    refused(capslib(command), BAD_INPUT[command])
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    ("command", "variable", "value", "message"),
    [
        ("records", "CAPSLIB_RESULTS", "", "'' names no folder"),
        ("claims", "CAPSLIB_RESULTS", "reslts", "There are no records in reslts"),
        (RUN, "CAPSLIB_RESULTS", "_toc.yml/x", "Results cannot be written to _toc.yml/x"),
        ("data verify", "CAPSLIB_DATA", "dta", "There is no data set: check --data-dir and"),
        (f"execute {CHAPTER}", "CAPSLIB_CHECKPOINT_SECONDS", "abc", "should be a number"),
    ],
)
def test_a_bad_variable_is_answered_like_a_bad_option(
    capslib, tmp_path, command, variable, value, message
):
    refused(capslib(command, **{variable: value}), message)
    assert [path.name for path in tmp_path.iterdir()] == ["_toc.yml"]


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ("mkdir x; cd x; rmdir ../x; capslib data list", 2, "The working folder is gone: "),
        ("capslib data list > /dev/full", 2, "cannot be used: No space left on device."),
        ("capslib data list | true; exit ${PIPESTATUS[0]}", 1, ""),
        ("capslib data list >&-", 0, ""),
    ],
)
def test_what_is_around_the_command_is_answered_in_one_sentence(
    environment, tmp_path, command, status, message
):
    words = ["bash", "-c", command.replace("capslib", f"{sys.executable} -m capslib")]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, encoding="utf-8", env=environment
    )
    assert done.returncode == status
    assert message in done.stderr
    assert done.stderr.count("\n") == bool(message), done.stderr


def test_a_plain_install_says_which_extra_the_command_line_needs():
    code = "import sys; sys.modules['typer'] = None; from capslib.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert done.returncode == 2
    message = "capslib: the command line needs typer: pip install 'capslib[lab]' brings it.\n"
    assert done.stderr == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-p results_dir=file/x", "Results cannot be written to file/x: Not a directory."),
        ("-p scale=cpu -p data_dir=none", "train-images-idx3-ubyte.gz is missing"),
        ("-p elsewhere=true", "Unknown parameter 'elsewhere'"),
        ("", "The chapter cannot be written to "),
    ],
)
def test_execute_checks_everything_before_the_first_kernel_starts(
    capslib, tmp_path, words, message
):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / f"{CHAPTER}.py").touch()
    (tmp_path / "file").touch()
    (tmp_path / "book").mkdir()
    if not words:
        (tmp_path / "book" / "papers").touch()
    files = sorted(tmp_path.rglob("*"))
    done = capslib(f"execute {CHAPTER} {words}")
    refused(done, message)
    assert "papermill" not in done.imported
    assert sorted(tmp_path.rglob("*")) == files


def test_data_that_are_missing_are_named_before_planning(capslib, tmp_path, put):
    """A plan that goes by the FLOPs of other records takes torch, and half a minute."""
    put()
    done = capslib(f"{RUN} --experiment depth --results-dir records --data-dir {tmp_path}/none")
    refused(done, "train-images-idx3-ubyte.gz is missing")
    for words in ("https://", "capslib data fetch mnist", f"{tmp_path}/none/mnist"):
        assert words in done.message
    for option in ("--data-dir", "$CAPSLIB_DATA"):
        assert option in done.message


def test_a_truncated_file_is_named_with_what_was_expected(capslib, tmp_path):
    """The publishers' file, of which the download broke off."""
    file = tmp_path / "data" / "mnist" / "train-images-idx3-ubyte.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(bytes(range(256)) * 4000)[:1000])
    done = capslib(f"{RUN} --experiment depth --where data=mnist --data-dir {tmp_path}/data")
    refused(done, f"{file} is truncated or corrupted: expected sha256 440fcabf")
    assert "(1,000 bytes)" in done.message
    assert list(file.parent.iterdir()) == [file]


def test_a_scheduler_that_does_not_answer_is_bad_input(capslib):
    """A device has to be here only if trials run here: workers elsewhere may have GPUs."""
    done = capslib(f"{RUN} --experiment sign --device cuda --scheduler tcp://127.0.0.1:9")
    assert done.status == 2
    assert "No dask scheduler answers at tcp://127.0.0.1:9" in done.message


# ------------------------------------------------------------------------------ good input

PLAN = f"run {CHAPTER} --scale paper --experiment sign --dry-run"


def test_a_dry_run_lists_groups_of_trials_with_what_they_decide_and_runs_none(
    capslib, tmp_path
):
    """It may be for a device of another machine."""
    done = capslib(f"{PLAN} {CHAPTER} --device cuda --data-dir none")
    assert done.status == 0, done.message
    count = len(SIGN.trials("paper"))
    assert f"{count} trials at scale paper: 0 have a record, {count} to run." in done.message
    message = f"Expected on a worker elsewhere: about .*, {count} by counted work alone"
    assert re.search(message, done.message)
    objection = checkout.__wrapped__().objection  # to the code of whoever runs this test
    is_refused = "`capslib records check` will refuse these records" in done.message
    assert is_refused is bool(objection)
    head, *groups, total = done.out.splitlines()
    assert head.split()[:3] == ["trials", "at", "once"]
    assert sum(int(line.split()[0]) for line in groups) == count
    assert any("/sign dynamic/bias: NEG-T1-rba-bias; 5 by counted work" in g for g in groups)
    assert total.startswith(f"all: {count} trials, about ")
    assert [path.name for path in tmp_path.iterdir()] == ["_toc.yml"], "it leaves no folder"
    each = capslib(f"{PLAN} {CHAPTER} --verbose")
    listed = [line for line in each.out.splitlines() if line.startswith(f"{CHAPTER}/sign [")]
    assert len(listed) == count


def test_a_dry_run_with_a_budget_shows_what_is_chosen_and_what_is_left_out(capslib, tmp_path):
    """On a machine with none of the data, for a card that is elsewhere."""
    budget = f"run {CHAPTER} --scale paper --device cuda --budget 5m --dry-run"
    done = capslib(f"{budget} --data-dir none")
    assert done.status == 0, done.message
    assert "headline claims, in about " in done.out
    assert "Left out, " in done.out
    assert "Data that are not here" in done.message
    assert [path.name for path in tmp_path.iterdir()] == ["_toc.yml"], "it leaves no folder"


def test_a_budget_runs_whole_claims_and_says_what_they_are(capslib, tmp_path):
    """Theorems need no data; what does is left out. Then nothing waits that could run."""
    budget = f"run {CHAPTER} --scale cpu --workers 1 --budget 4m --data-dir none"
    done = capslib(f"{budget} --results-dir records")
    assert done.status == 0, done.message
    assert "Left out: trials on fashion_mnist, mnist, whose data are not here." in done.message
    assert "completes the trials of 3 claims" in done.message
    assert re.search(r"NEG-W-1 .* holds", done.out)
    trials = experiments(CHAPTER)["symmetry"].trials("cpu")
    assert len(list((tmp_path / "records").rglob("symmetry/*.json"))) == len(trials) - 3
    again = capslib(f"{budget} --results-dir records")
    assert again.status == 2
    assert "train-images-idx3-ubyte.gz is missing" in again.message


def test_a_plan_says_what_keeps_it_from_starting(capslib, empty):
    done = capslib(f"{RUN} --experiment depth --seeds 1 --dry-run --data-dir empty")
    assert done.status == 0, done.message
    assert "It cannot start yet. The data set fashion_mnist is missing" in done.message
    assert "Run `capslib data fetch mnist`" in done.message, "all sets at once"


@pytest.mark.parametrize("scale", ["smoke", "cpu"])
def test_a_run_whose_records_count_says_that_git_knows_no_revision(capslib, tmp_path, scale):
    done = capslib(PLAN.replace("paper", scale), PATH=str(tmp_path))
    assert done.status == 0, done.message
    note = "records check` will refuse these records: the revision of this code is not known ("
    assert (f"{note}git cannot be started" in done.message) is (scale == "cpu")


def test_a_run_leaves_records_that_are_listed_and_tell_what_others_will_take(capslib, tmp_path):
    """A rehearsal before it is listed too, but is neither sound nor in its way."""
    rehearsal = capslib(f"{TINY} --max-steps 1")
    assert rehearsal.status == 0, rehearsal.message
    assert capslib("records --results-dir records").out.count(" cut ") == ARMS
    assert capslib("records check --results-dir records").status == 1
    done = capslib(TINY)
    assert done.status == 0, done.message
    assert f"0 have a record, {ARMS} to run." in done.message
    repetition = capslib(TINY)
    assert f"{ARMS} have a record, 0 to run." in repetition.message
    assert "torch" not in repetition.imported

    table = capslib(f"records {CHAPTER} --results-dir records")
    keys = [path.stem for path in (tmp_path / "records").rglob("*.json")]
    assert len(keys) == ARMS
    assert all(key in table.out for key in keys)
    assert "train_accuracy=" in table.out
    assert " cut " not in table.out
    assert "torch" not in table.imported
    table = capslib("records em_routing --results-dir records")
    assert not any(key in table.out for key in keys)

    doubled = capslib(f"{TINY} --dry-run".replace("epochs=1", "epochs=2"))
    # No claim is judged by trials with another number of epochs.
    *trials, group, total = doubled.out.splitlines()
    assert len(trials) == ARMS
    estimate = r" MB; by records of the same step"
    assert all(re.search(estimate, line) for line in trials)
    assert group.split()[0] == str(ARMS)
    assert total.startswith(f"all: {ARMS} trials, about ")
    assert f"; {2 * ARMS} steps, " in total


def test_records_check_fails_for_a_problem_and_not_for_a_note(capslib, put):
    code = Code(revision="a" * 40, dirty=False, capslib="0" * 64)
    path = put(code=code, deviations=deviations_of(SIGN.trials("cpu")[0])[1:])
    check = "records check --results-dir records"
    sound = capslib(check)
    assert sound.status == 0
    assert "does not name a deviation that the ledger names today: " in sound.out
    assert "1 record, 0 problems, " in sound.message
    assert "torch" not in sound.imported

    path.write_bytes(path.read_bytes()[:99])
    broken = capslib(f"{check} {CHAPTER}")
    assert broken.status == 1
    assert f"{CHAPTER}/sign/{path.name}: damaged (Invalid JSON: EOF" in broken.out
    for command in ("claims", "records", f"{RUN} --experiment sign --dry-run"):
        assert capslib(f"{command} --results-dir records").status == 0
    assert list(path.parent.iterdir()) == [path], "reading changes no file"
    assert capslib(f"{check} em_routing --repair").status == 0
    assert list(path.parent.iterdir()) == [path], "nor does repairing another paper"
    repaired = capslib(f"{check} --repair")
    assert repaired.status == 1
    assert f"set aside as {path.name}.damaged-" in repaired.message
    assert "set aside as damaged: delete it, and run its trial again" in repaired.out


def test_no_trial_runs_over_the_record_of_a_newer_capslib(capslib, put):
    path = put("smoke")
    text = path.read_text(encoding="utf-8")
    newer = text.replace('"schema_version": 2', '"schema_version": 3')
    path.write_text(newer, encoding="utf-8")
    run = f"run {CHAPTER} --scale smoke --experiment sign --workers 1 --results-dir records"
    done = capslib(run)
    assert done.status == 2
    assert f"{path.name} was written by a newer capslib" in done.message
    assert capslib(f"claims {CHAPTER} --results-dir records").status == 0
    assert path.read_text(encoding="utf-8") == newer


def test_claims_as_a_table_as_headlines_and_as_json(capslib):
    table = capslib(f"claims {CHAPTER}")
    assert table.status == 0, table.message
    assert "NEG-T1-rba-nobias" in table.out
    assert "in a reduced setting: same order 0  opposite order 0" in table.out
    assert "no capsule network of this paper has been trained at its size\n" in table.out
    assert "EM-T1-iter3" not in table.out
    assert "torch" not in table.imported

    abstract = " ".join(capslib(f"claims {CHAPTER} --headlines").out.split())
    for headline in headlines():
        beginning = " ".join(headline.sentence.split()[:4])
        assert (beginning in abstract) == (headline.paper == CHAPTER)

    rows = json.loads(capslib("claims --json").out)
    assert {row["id"] for row in rows} == set(ledger())
    words = {"waiting", "quoted", "not to be had", "erratum"}
    assert {row["verdict"] for row in rows} == words, "a verdict without a record"


def test_a_record_of_a_failed_trial_makes_the_run_fail(capslib, tmp_path):
    """A step so large that the weights overflow: the trial ends in a NaN, and others run."""
    done = capslib(f"{TINY} --where routing=em_vector --set weight_std=1e38")
    assert done.status == 1, done.message
    assert "failures" in done.message
    assert "nan" in done.message
    assert done.message.replace("\n", "").isprintable(), "what goes to a file is plain lines"
    records = list((tmp_path / "records").rglob("*.json"))
    logs = list((tmp_path / "records" / ".logs").iterdir())
    assert len(records) == len(logs) >= 1
    message = re.sub(r"[\s│]", "", done.message)
    assert all(log.name in message for log in logs)


def test_help_and_the_list_of_data_need_neither_torch_nor_data(capslib):
    for command, words in {
        "run --help": [CHAPTER],
        "execute --help": [*Settings.model_fields],
        "data list --data-dir none": ["mnist", "digits", "kmnist"],
    }.items():
        done = capslib(command)
        assert done.status == 0
        assert all(word in done.out for word in words)
        assert "torch" not in done.imported


def machine(device: str) -> Environment:
    return Environment(python="3", torch="2", device=device, threads=1, deterministic=True)


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("[/] [red]", "[/] [red]"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J\u202e\rwell", r"\x9b2J\u202e\rwell"),
    ],
)
def test_texts_of_a_record_are_no_markup_and_no_commands_of_the_terminal(
    capslib, put, device, text
):
    put(environment=machine(device))
    done = capslib("records --results-dir records")
    assert done.status == 0, done.message
    assert text in done.out
    assert done.out.replace("\n", "").isprintable()


@pytest.mark.parametrize("command", ["claims", "claims --json", "records", "run --help"])
def test_an_encoding_without_our_letters_shows_others_in_their_place(capslib, put, command):
    put(environment=machine("β"))
    if "--help" not in command:
        command += " --results-dir records"
    done = capslib(command, PYTHONIOENCODING="cp1252")
    assert done.status == 0, done.message
    assert done.out
    if "--json" in command:
        assert done.out == capslib(command).out, "what programs read loses nothing"

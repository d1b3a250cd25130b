"""The command line, as a user meets it: a process with an exit status, an output and a message.

Bad input has to be answered at once. How long a second is depends on the machine, so what is
tested is that torch, nearly all of the time that capslib takes to start, was not imported.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from forked import Done

from capslib.lab.ledger.deviations import deviations
from capslib.lab.records import Code
from capslib.lab.runs import checkout
from capslib.lab.settings import Settings, cuda_devices, parse
from capslib.papers import arm, experiments

CHAPTER = "negation_limitation"
ARMS = len(experiments(CHAPTER)["sign"].at("smoke"))
NO_FILES = "{empty}"
DIGITS = 5_000 * "9"
LONG = "/".join(30 * [200 * "a"])


@pytest.fixture
def environment(tmp_path_factory) -> dict[str, str]:
    """Nothing of the caller's settings, and a cache that is not in the working folder."""
    hidden = (
        "CAPSLIB_DATA",
        "CAPSLIB_RESULTS",
        "CAPSLIB_DOWNLOAD",
        "CUDA_VISIBLE_DEVICES",
        "FORCE_COLOR",
        "COLUMNS",
        "PYTHONIOENCODING",
    )
    return {
        **{k: v for k, v in os.environ.items() if k not in hidden},
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
    }


@pytest.fixture
def capslib(tmp_path, environment, tmp_path_factory):
    """Run ``capslib …`` in the folder of a book that has nothing yet."""
    scratch = tmp_path_factory.mktemp("said")
    (tmp_path / "_toc.yml").touch()

    def call(*words: object, **more: str) -> Done:
        return forked.call(list(map(str, words)), tmp_path, {**environment, **more}, scratch)

    return call


def test_the_module_is_the_command_line(environment, tmp_path):
    """A process from its start: ``python -m capslib``, which needs no torch to answer."""
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "capslib",
        "run",
        CHAPTER,
        "--scale",
        "papr",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, encoding="utf-8", env=environment
    )
    imported = {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert done.returncode == 2
    assert "Unknown scale 'papr'. Did you mean 'paper'?" in done.stderr
    assert "capslib.lab.cli" in imported
    assert "torch" not in imported


def run(*words: str) -> tuple[str, ...]:
    return ("run", CHAPTER, "--scale", "cpu", *words)


BAD = {
    "unknown scale": (
        ("run", CHAPTER, "--scale", "papr"),
        "Unknown scale 'papr'. Did you mean 'paper'?",
    ),
    "unknown scale of a notebook": (
        ("execute", CHAPTER, "--scale", "smok"),
        "Unknown scale 'smok'. Did you mean 'smoke'?",
    ),
    "scale as a parameter": (("execute", CHAPTER, "-p", "scale=huge"), "Unknown scale 'huge'."),
    "mistyped parameter": (
        ("execute", CHAPTER, "-p", "scal=cpu"),
        "Unknown parameter 'scal'. Did you mean 'scale'?",
    ),
    "parameter without a value": (
        ("execute", CHAPTER, "-p", "seeds"),
        "should look like name=value",
    ),
    "seeds without end": (
        run("--seeds", "100000000", "--dry-run"),
        "Parameter seeds = 100000000: Input should be less than or equal to 1000",
    ),
    "results without a name": (run("--results-dir", ""), "'' names no folder: give one to"),
    "results of claims without a name": (
        ("claims", "--results-dir", ""),
        "'' names no folder: give one to",
    ),
    "data without a name": (run("--data-dir", ""), "'' names no folder: give one to"),
    "results of claims that are not there": (
        ("claims", "--results-dir", "reslts"),
        "There are no records in reslts: check --results-dir",
    ),
    "results to list that are not there": (
        ("records", "--results-dir", "reslts"),
        "There are no records in reslts: check --results-dir",
    ),
    "results to check that are not there": (
        ("records", "check", "--results-dir", "reslts"),
        "There are no records in reslts",
    ),
    "results to check that are empty": (
        ("records", "check", "--results-dir", NO_FILES),
        "There are no records in ",
    ),
    "data to verify that are not there": (
        ("data", "verify", "--data-dir", "dta"),
        "There is no data set: check --data-dir and $CAPSLIB_DATA",
    ),
    "data to verify that are empty": (
        ("data", "verify", "--data-dir", NO_FILES),
        "There is no data set: check --data-dir",
    ),
    "nothing to verify": (("data", "verify"), "There is no data set: check --data-dir"),
    "device of another name": (
        run("--device", "gpu"),
        "Unknown device 'gpu'. A GPU of NVIDIA is cuda, or cuda:0",
    ),
    "device that is not there": (
        run("--device", "cuda"),
        "There is no cuda here: no CUDA device found. Use device cpu,",
    ),
    "device of a notebook": (
        ("execute", CHAPTER, "-p", "device=cuda:7"),
        "There is no cuda:7 here: no CUDA device found. Use device cpu,",
    ),
    "trial out of range": (
        run("--experiment", "depth", "--set", "depth=0"),
        "Configuration of depth: depth = 0",
    ),
    "unknown field": (
        run("--experiment", "depth", "--set", "dept=3"),
        "Unknown field of depth 'dept'. Did you mean 'depth'?",
    ),
    "unknown field in where": (
        run("--experiment", "sign", "--where", "routin=em"),
        "Did you mean 'routing'?",
    ),
    "mistyped seed in where": (run("--where", "sed=1"), "Did you mean 'seed'?"),
    "field of another experiment in where": (
        run("--where", "front=odd"),
        "Experiments that have it: negated. Name one with --experiment.",
    ),
    "field of another experiment to set": (
        run("--set", "points=9"),
        "Experiments that have it: sign. Name one with --experiment.",
    ),
    "configuration of another experiment": (
        ("run", "inequality_anomaly", "--scale", "paper", "--where", "data=crispr"),
        "Experiments that have it: off_targets, repairs, counts, baselines. Name one with --experiment.",
    ),
    "two values": (
        run("--where", "seed=0", "--where", "seed=1"),
        "Field 'seed' is given twice",
    ),
    "seed to set": (
        run("--experiment", "sign", "--set", "seed=4"),
        "--where seed=2 is that one alone",
    ),
    "nothing left": (
        run("--experiment", "depth", "--where", "depth=12"),
        "No configuration of depth at scale cpu has depth=12. There are: depth=2; depth=",
    ),
    "no such list": (
        (
            "run",
            "em_routing",
            "--scale",
            "cpu",
            "--experiment",
            "viewpoint",
            "--where",
            "sizes=[32, 8]",
        ),
        "There are: sizes=[32, 8, 8, 8].",
    ),
    "unknown experiment": (
        run("--experiment", "dpth"),
        f"Unknown experiment of {CHAPTER} 'dpth'. Did you mean 'depth'?",
    ),
    "unknown paper": (
        ("run", "negation_limitatio", "--scale", "cpu"),
        f"Unknown paper 'negation_limitatio'. Did you mean '{CHAPTER}'?",
    ),
    "unknown paper of claims": (("claims", "em_routin"), "Did you mean 'em_routing'?"),
    "two papers of records": (
        ("records", "em_routing", "learned_routing"),
        "One paper, as in `capslib records STEM`",
    ),
    "unknown paper of records": (("records", "em_routin"), "Did you mean 'em_routing'?"),
    "data that is missing": (
        run("--experiment", "depth", "--data-dir", NO_FILES),
        "train-images-idx3-ubyte.gz is missing",
    ),
    "unknown data set": (
        ("data", "fetch", "mnits"),
        "Unknown data set 'mnits'. Did you mean 'mnist'?",
    ),
    "scheduler that is no address": (
        run("--scheduler", "localhost"),
        "looks like tcp://host:8786",
    ),
    "a rehearsal of no step": (run("--max-steps", "0"), "Invalid value for '--max-steps'"),
    "a plan of a rehearsal": (
        run("--max-steps", "20", "--dry-run"),
        "--dry-run plans the whole run, and --max-steps rehearses it",
    ),
    "no scale": (("run", CHAPTER), "Missing option '--scale'"),
    "two scales": (run("--scale", "smoke"), "--scale is given twice: give it one value."),
    "two scales of a notebook, in two ways": (
        ("execute", CHAPTER, "--scale", "smoke", "-p", "scale=cpu"),
        "Parameter 'scale' is given twice: give it one value.",
    ),
    "two devices": (run("--device", "cpu", "--device", "cuda"), "--device is given twice"),
    "two folders": (
        ("records", "check", "--results-dir", "a", "--results-dir", "b"),
        "--results-dir is given twice",
    ),
    "a number of 5,000 digits": (
        run("--set", f"epochs={DIGITS}"),
        "Field 'epochs': its value is too long, too deep, or no Unicode text.",
    ),
    "a parameter of 5,000 digits": (
        ("execute", CHAPTER, "-p", f"seeds={DIGITS}"),
        "Parameter 'seeds': its value is too long",
    ),
    "50,000 brackets": (
        run("--where", "sizes=" + 50_000 * "["),
        "Field 'sizes': its value is too long, too deep",
    ),
    "half of a letter": (
        run("--where", r'data="\ud800"'),
        "Field 'data': its value is too long, too deep, or no Unicode text.",
    ),
    "a device of 5,000 digits": (
        run("--device", f"cuda:{DIGITS}"),
        f"Unknown device 'cuda:{54 * '9'}… Valid: cpu, cuda",
    ),
    "a user who is not there": (
        run("--results-dir", "~nosuchuser/x"),
        "'~nosuchuser/x' names no folder: give one to",
    ),
    "a folder of claims with too long a path": (
        ("claims", "--results-dir", LONG),
        "cannot be used: File name too long.",
    ),
    "a folder of data with too long a path": (
        ("data", "list", "--data-dir", LONG),
        "cannot be used: File name too long.",
    ),
    "a folder to write to with too long a path": (
        run("--results-dir", LONG),
        "… File name too long. Make that folder writable, or choose another",
    ),
    "unknown command": (("exectue", CHAPTER), "No such command 'exectue'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_status_2_and_names_the_fix(capslib, tmp_path, case):
    words, says = BAD[case]
    (tmp_path / "empty").mkdir()
    done = capslib(*(w.format(empty=tmp_path / "empty") for w in words))
    assert done.status == 2, done.message
    assert says in done.message
    assert "Traceback" not in done.message
    assert "torch" not in done.imported
    assert (
        not list((tmp_path / "results").rglob("*.json"))
        if (tmp_path / "results").exists()
        else True
    )


BAD_VARIABLES = {
    "results of a run": (
        "CAPSLIB_RESULTS",
        "",
        run("--experiment", "sign"),
        "'' names no folder: give one to --data-dir, --results-dir or its variable",
    ),
    "results to list": ("CAPSLIB_RESULTS", "", ("records",), "'' names no folder"),
    "results that are not there": (
        "CAPSLIB_RESULTS",
        "reslts",
        ("claims",),
        "There are no records in reslts: check --results-dir and $CAPSLIB_RESULTS",
    ),
    "data that are not there": (
        "CAPSLIB_DATA",
        "dta",
        ("data", "verify"),
        "There is no data set: check --data-dir and $CAPSLIB_DATA",
    ),
    "time between checkpoints": (
        "CAPSLIB_CHECKPOINT_SECONDS",
        "abc",
        ("execute", CHAPTER),
        "$CAPSLIB_CHECKPOINT_SECONDS is 'abc'; it should be a number of seconds, such as 60.",
    ),
    "a time that is infinity": (
        "CAPSLIB_CHECKPOINT_SECONDS",
        400 * "9",
        ("execute", CHAPTER),
        "it should be a number of seconds, such as 60.",
    ),
    "data of a user who is not there": (
        "CAPSLIB_DATA",
        "~nosuchuser",
        ("data", "list"),
        "'~nosuchuser' names no folder",
    ),
}


@pytest.mark.parametrize("case", BAD_VARIABLES)
def test_a_bad_variable_is_answered_like_a_bad_option(capslib, tmp_path, case):
    name, value, words, says = BAD_VARIABLES[case]
    done = capslib(*words, **{name: value})
    assert done.status == 2, done.message
    assert says in done.message
    assert "Traceback" not in done.message
    assert "torch" not in done.imported
    assert [path.name for path in tmp_path.iterdir()] == ["_toc.yml"]


SURROUNDINGS = {
    "a working folder that is gone": (
        "mkdir gone; cd gone; rmdir ../gone; {} data list",
        2,
        "The working folder is gone: change to one that is there.",
    ),
    "a full disk behind the output": (
        "{} data list > /dev/full",
        2,
        "What the output goes to cannot be used: No space left on device.",
    ),
    "a reader that has enough": ("{} data list | true; exit ${{PIPESTATUS[0]}}", 1, ""),
    "an output that is closed": ("{} data list >&-", 0, ""),
}


@pytest.mark.parametrize("case", SURROUNDINGS)
def test_what_is_around_the_command_is_answered_without_a_traceback(
    environment, tmp_path, case
):
    command, status, says = SURROUNDINGS[case]
    words = ["bash", "-c", command.format(f"{sys.executable} -m capslib")]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, encoding="utf-8", env=environment
    )
    assert (done.returncode, says in done.stderr) == (status, True), done.stderr
    assert done.stderr.count("\n") == bool(says), "one sentence, or nothing"


def test_a_plain_install_says_which_extra_the_command_line_needs():
    code = "import sys; sys.modules['typer'] = None; from capslib.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert done.returncode == 2
    assert (
        done.stderr
        == "capslib: the command line needs typer: pip install 'capslib[lab]' brings it.\n"
    )


UP_FRONT = {
    "results": (
        ("-p", "results_dir=file/results"),
        "Results cannot be written to file/results: Not a directory.",
    ),
    "data": (
        ("-p", "scale=cpu", "-p", "data_dir=none"),
        "train-images-idx3-ubyte.gz is missing",
    ),
    "book": ((), "The chapter cannot be written to "),
}


@pytest.mark.parametrize("case", UP_FRONT)
def test_execute_checks_everything_before_the_first_kernel_starts(capslib, tmp_path, case):
    words, says = UP_FRONT[case]
    chapter = tmp_path / "notebooks" / f"{CHAPTER}.py"
    chapter.parent.mkdir()
    chapter.write_text("# %%\nimport pathlib; pathlib.Path('ran').touch()\n", encoding="utf-8")
    for file in ("_toc.yml", "file"):
        (tmp_path / file).touch()
    old = tmp_path / "book" / "papers" / f"{CHAPTER}.ipynb"
    old.parent.mkdir(parents=True)
    old.write_text("what was there before", encoding="utf-8")
    if case == "book":
        old.unlink()
        old.parent.rmdir()
        old.parent.touch()
    before = sorted(tmp_path.rglob("*"))
    done = capslib("execute", CHAPTER, *words)
    assert done.status == 2, done.message
    assert says in done.message
    assert "Traceback" not in done.message
    assert not {"torch", "papermill"} & done.imported
    assert sorted(tmp_path.rglob("*")) == before
    assert case == "book" or old.read_text(encoding="utf-8") == "what was there before"


def test_data_that_is_missing_says_where_it_comes_from_and_where_it_goes(capslib, tmp_path):
    done = capslib(
        *run("--experiment", "depth", "--where", "data=mnist", "--data-dir", tmp_path / "empty")
    )
    assert done.status == 2
    for words in (
        "https://",
        "capslib data fetch mnist",
        f"{tmp_path / 'empty' / 'mnist'}",
        "--data-dir",
        "$CAPSLIB_DATA",
    ):
        assert words in done.message


def test_data_that_is_missing_is_answered_before_planning(capslib, tmp_path, make_record):
    """A plan that goes by the FLOPs of other records takes torch, and half a minute for a whole
    paper.
    """
    put(tmp_path / "results", make_record(experiments(CHAPTER)["sign"].trials("cpu")[0]))
    done = capslib(*run("--experiment", "depth", "--data-dir", tmp_path / "empty"))
    assert done.status == 2
    assert "train-images-idx3-ubyte.gz is missing" in done.message
    assert "torch" not in done.imported


def test_a_truncated_file_is_named_with_what_was_expected_and_found(capslib, tmp_path):
    """The publishers' file, of which the download broke off."""
    file = tmp_path / "data" / "mnist" / "train-images-idx3-ubyte.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(bytes(range(256)) * 4000)[:1000])
    done = capslib(
        *run("--experiment", "depth", "--where", "data=mnist", "--data-dir", tmp_path / "data")
    )
    assert done.status == 2
    assert f"{file} is truncated or corrupted: expected sha256 440fcabf" in done.message
    assert "(1,000 bytes)" in done.message
    assert "Traceback" not in done.message
    assert "torch" not in done.imported
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_results_folder_that_cannot_be_written(capslib, tmp_path, how):
    (tmp_path / "file").touch()
    place = str(tmp_path / "file" / "results")
    words, variable = (
        (("--results-dir", place), {}) if how == "option" else ((), {"CAPSLIB_RESULTS": place})
    )
    done = capslib(*run("--experiment", "sign", *words), **variable)
    assert done.status == 2
    assert f"Results cannot be written to {place}" in done.message
    assert "--results-dir" in done.message
    assert "Traceback" not in done.message
    assert "torch" not in done.imported


def test_a_scheduler_that_does_not_answer_is_bad_input(capslib):
    """A device has to be here only if trials run here: the scheduler may have workers with
    GPUs.
    """
    done = capslib(
        *run("--experiment", "sign", "--device", "cuda", "--scheduler", "tcp://127.0.0.1:9")
    )
    assert done.status == 2
    assert "No dask scheduler answers at tcp://127.0.0.1:9" in done.message
    assert "Traceback" not in done.message


# ------------------------------------------------------------------------------------------------------------
# good input


def test_a_dry_run_lists_trials_and_claims_with_their_costs_and_runs_none(capslib, tmp_path):
    done = capslib("run", CHAPTER, "--scale", "paper", "--experiment", "sign", "--dry-run")
    assert done.status == 0, done.message
    count = len(experiments(CHAPTER)["sign"].trials("paper"))
    assert f"{count} trials at scale paper: 0 have a record, {count} to run." in done.message
    assert "no record tells how long they take" in done.message
    objection = checkout.__wrapped__().objection  # to the code of whoever runs this test
    assert ("`capslib records check` will refuse these records" in done.message) is bool(
        objection
    )
    lines = done.out.splitlines()
    trials, claims = lines[:count], lines[count:]
    assert all(line.startswith(f"{CHAPTER}/sign [paper] routing=") for line in trials)
    costs = r"  no record to go by; .*; \d+ steps, .* TFLOP: \S+ card-minutes at an assumed 20 TFLOP/s$"
    assert all(re.search(costs, line) for line in trials)
    assert [line.partition(" trials, ")[0] for line in claims] == [
        *(
            f"NEG-T1-{routing}-{bias}: 5"
            for routing in ("rba", "em")
            for bias in ("nobias", "bias")
        ),
        f"{CHAPTER}, Table 1: 20",
        f"all: {count}",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["_toc.yml"], (
        "a dry run leaves no folder behind"
    )


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_that_git_knows_no_revision_is_said_before_a_run_whose_records_count(
    capslib, tmp_path, scale
):
    done = capslib(
        "run",
        CHAPTER,
        "--scale",
        scale,
        "--experiment",
        "sign",
        "--dry-run",
        PATH=str(tmp_path),
    )
    assert done.status == 0, done.message
    note = "`capslib records check` will refuse these records: the revision of this code is not known (git cannot be started"
    assert (note in done.message) is (scale != "smoke")


def test_a_paper_that_is_named_twice_runs_once(capslib):
    once, twice = (
        capslib("run", *[CHAPTER] * n, "--scale", "paper", "--experiment", "sign", "--dry-run")
        for n in (1, 2)
    )
    assert (once.status, once.out) == (twice.status, twice.out)


def test_a_seed_that_others_have_is_not_offered(capslib):
    """Baselines on images have three of the ten seeds of the experiment."""
    done = capslib(
        "run",
        "inequality_anomaly",
        "--scale",
        "paper",
        "--experiment",
        "baselines",
        "--where",
        "percent=1.0",
        "--where",
        "seed=7",
    )
    assert done.message.rstrip().endswith("has no seed 7. There are: 0, 1, 2.")


@pytest.mark.skipif(cuda_devices() > 0, reason="this machine has the device")
def test_a_dry_run_may_be_for_a_device_of_another_machine(capslib):
    done = capslib(
        "run",
        CHAPTER,
        "--scale",
        "paper",
        "--experiment",
        "sign",
        "--device",
        "cuda",
        "--dry-run",
    )
    assert done.status == 0, done.message
    assert "On the workers elsewhere; no record tells how long they take." in done.message


def test_where_takes_a_list_as_it_is_typed(capslib):
    viewpoint = experiments("em_routing")["viewpoint"]
    count = len(viewpoint.at("cpu"))
    for typed in ("sizes=[32,8,8,8]", "sizes=[32, 8, 8, 8]"):
        assert len(viewpoint.trials("cpu", seeds=[0], where=parse([typed], "field"))) == count
    chosen = (
        "run",
        "em_routing",
        "--scale",
        "cpu",
        "--experiment",
        "viewpoint",
        "--where",
        "sizes=[32, 8, 8, 8]",
        "--seeds",
        "1",
    )
    done = capslib(*chosen, "--data-dir", "none")
    assert "smallnorb" in done.message, "it got as far as the data"
    assert "No configuration" not in done.message
    assert "torch" not in done.imported


TINY = (
    "run",
    CHAPTER,
    "--scale",
    "smoke",
    "--experiment",
    "sign",
    "--set",
    "points=20",
    "--set",
    "epochs=1",
    "--workers",
    "1",
)


def test_a_run_leaves_records_that_are_listed_and_tell_what_others_will_take(capslib, tmp_path):
    """A rehearsal before it is listed too, but is neither sound nor in its way."""
    place = ("--results-dir", tmp_path / "records")
    rehearsal = capslib(*TINY, *place, "--max-steps", "1")
    assert rehearsal.status == 0, rehearsal.message
    assert capslib("records", *place).out.count(" cut ") == ARMS
    assert capslib("records", "check", *place).status == 1

    done = capslib(*TINY, *place)
    assert done.status == 0, done.message
    assert f"{ARMS} trials at scale smoke: 0 have a record, {ARMS} to run." in done.message
    again = capslib(*TINY, *place)
    assert again.status == 0
    assert f"{ARMS} have a record, 0 to run." in again.message
    assert "torch" not in again.imported

    keys = {p.stem for p in (tmp_path / "records").rglob("*.json")}
    assert len(keys) == ARMS
    for words in ((), (CHAPTER,)):
        listed = capslib("records", *words, *place)
        assert listed.status == 0
        assert all(key in listed.out for key in keys)
        assert "torch" not in listed.imported
    assert "train_accuracy=" in listed.out
    assert " cut " not in listed.out
    assert not any(key in capslib("records", "em_routing", *place).out for key in keys)

    longer = capslib(
        *(word.replace("epochs=1", "epochs=2") for word in TINY), *place, "--dry-run"
    )
    assert longer.status == 0, longer.message
    *trials, together = (
        longer.out.splitlines()
    )  # no claim is judged by trials with another number of epochs
    assert len(trials) == ARMS
    estimate = r" MB \(\d+ records? of the same step.*\); 2 steps, "
    assert all(re.search(estimate, line) for line in trials)
    assert together.startswith(f"all: {ARMS} trials, about ")
    assert "Expected: " in longer.message


def test_a_plan_says_what_keeps_it_from_starting(capslib, tmp_path):
    (tmp_path / "empty").mkdir()
    done = capslib(
        *run(
            "--experiment",
            "depth",
            "--where",
            "depth=3",
            "--seeds",
            "1",
            "--dry-run",
            "--data-dir",
            tmp_path / "empty",
        )
    )
    assert done.status == 0, done.message
    assert "It cannot start yet. The data set fashion_mnist is missing" in done.message
    assert "Run `capslib data fetch mnist`" in done.message, "all sets at once"


def put(folder: Path, record) -> Path:
    from capslib.lab.store import Store

    return Store(folder).put(record)


def test_records_check_fails_for_a_problem_and_not_for_a_note(capslib, tmp_path, make_record):
    folder = tmp_path / "records"
    trial = experiments(CHAPTER)["sign"].trials("cpu")[0]
    code = Code(revision="a" * 40, dirty=False, capslib="0" * 64)
    record = make_record(
        trial, code=code, deviations=deviations(CHAPTER, "sign", arm(trial))[1:]
    )
    path = put(folder, record)
    sound = capslib("records", "check", "--results-dir", folder)
    assert sound.status == 0
    assert (
        f"note: {CHAPTER}/sign/{trial.key}.json: does not name a deviation that the ledger names today: "
        in sound.out
    )
    assert "1 records, 0 problems, " in sound.message
    assert "torch" not in sound.imported
    path.write_bytes(path.read_bytes()[:99])
    for stem in ((), (CHAPTER,)):
        broken = capslib("records", "check", *stem, "--results-dir", folder)
        assert broken.status == 1
        assert f"{CHAPTER}/sign/{trial.key}.json: damaged (Invalid JSON: EOF" in broken.out
        assert "1 records, 1 problems, 0 notes." in broken.message
    for words in (
        ("claims",),
        ("records",),
        ("run", CHAPTER, "--scale", "cpu", "--experiment", "sign", "--dry-run"),
    ):
        assert capslib(*words, "--results-dir", folder).status == 0, "reading changes no file"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert (
        capslib("records", "check", "em_routing", "--repair", "--results-dir", folder).status
        == 0
    )
    assert path.exists()
    repaired = capslib("records", "check", "--repair", "--results-dir", folder)
    assert repaired.status == 1
    assert f"set aside as {path.name}.damaged-" in repaired.message
    assert "set aside as damaged: delete it, and run its trial again" in repaired.out
    assert [p.name.partition(".damaged")[0] for p in path.parent.iterdir()] == [path.name]
    assert (
        "--repair belongs to" in capslib("records", "--repair", "--results-dir", folder).message
    )


def test_no_trial_runs_over_the_record_of_a_newer_capslib(capslib, tmp_path, make_record):
    folder = tmp_path / "records"
    path = put(folder, make_record(experiments(CHAPTER)["sign"].trials("smoke")[0]))
    path.write_text(
        path.read_text(encoding="utf-8").replace('"schema_version": 2', '"schema_version": 3'),
        encoding="utf-8",
    )
    content = path.read_bytes()
    done = capslib(
        "run",
        CHAPTER,
        "--scale",
        "smoke",
        "--experiment",
        "sign",
        "--workers",
        "1",
        "--results-dir",
        folder,
    )
    assert (done.status, f"{path} was written by a newer capslib; update" in done.message) == (
        2,
        True,
    )
    claims = capslib("claims", CHAPTER, "--results-dir", folder)
    assert claims.status == 0
    assert claims.message.count("was written by a newer capslib") == 1
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == {path: content}


def test_claims_as_a_table_and_as_json(capslib, tmp_path):
    table = capslib("claims", CHAPTER)
    assert table.status == 0, table.message
    assert "NEG-T1-rba-nobias" in table.out
    assert (
        "in a reduced setting: same order 0  opposite order 0  holds in part 0  fails in part 0  undecided 0  measured 0\n"
        in table.out
    )
    assert (
        "capsule networks at the papers’ own size: no capsule network of this paper has been trained at its size\n"
        in table.out
    )
    assert "EM-T1-iter3" not in table.out
    assert "torch" not in table.imported

    abstract = capslib("claims", CHAPTER, "--headlines")
    assert abstract.status == 0, abstract.message
    assert "Deep capsule networks train only with a bias." in " ".join(abstract.out.split())
    assert "matrix capsules" not in abstract.out
    assert capslib("claims", "--headlines", "--json").status == 2

    every = capslib("claims", "--json")
    assert every.status == 0
    claims = {claim["id"]: claim for claim in json.loads(every.out)}
    assert {
        "NEG-T1-rba-nobias",
        "NEG-W-1",
        "EM-T1-iter3",
        "SP-T1-affnist-a",
        "LR-T3-conn-mnist",
        "INQ-T1-nevus",
    } <= set(claims)
    assert {claim["verdict"] for claim in claims.values()} == {
        "waiting",
        "quoted",
        "not to be had",
        "erratum",
    }, "a verdict without a record"
    assert {claim["verdict_is"] for claim in claims.values()} == {
        "not run",
        "errata of the papers",
    }


def test_a_record_of_a_failed_trial_makes_the_run_fail(capslib, tmp_path):
    """A step so large that the weights overflow: the trial ends in a NaN, is recorded as such,
    and the others run.
    """
    place = ("--results-dir", tmp_path / "records")
    done = capslib(*TINY, "--where", "routing=em_vector", "--set", "weight_std=1e38", *place)
    assert done.status == 1, done.message
    assert "failures" in done.message
    assert "nan" in done.message
    assert "Traceback" not in done.message
    assert done.message.replace("\n", "").isprintable(), "what goes to a file is plain lines"
    arms = experiments(CHAPTER)["sign"].trials(
        "smoke", where={"routing": "em_vector"}, change={"weight_std": 1e38}
    )
    assert len(list((tmp_path / "records").rglob("*.json"))) == len(arms)
    logs = [path.name for path in (tmp_path / "records" / ".logs").iterdir()]
    assert len(logs) == len(arms)
    assert all(name in re.sub(r"[\s│]", "", done.message) for name in logs)


def test_help_names_the_papers(capslib):
    done = capslib("run", "--help")
    assert done.status == 0
    assert CHAPTER in done.out
    assert "torch" not in done.imported


def test_help_names_the_parameters_of_a_notebook(capslib):
    assert all(name in capslib("execute", "--help").out for name in Settings.model_fields)


def test_data_sets_are_listed_without_data(capslib, tmp_path):
    done = capslib("data", "list", "--data-dir", tmp_path / "none")
    assert done.status == 0, done.message
    assert all(name in done.out for name in ("mnist", "digits", "kmnist"))
    assert "torch" not in done.imported


def put_one_of_a_device(folder: Path, make_record, device: str) -> None:
    from capslib.lab.records import Environment

    machine = Environment(python="3", torch="2", device=device, threads=1, deterministic=True)
    put(folder, make_record(experiments(CHAPTER)["sign"].trials("cpu")[0], environment=machine))


@pytest.mark.parametrize(
    ("device", "shown"),
    [
        ("[/] [red]", "[/] [red]"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J\u202e\rwell", r"\x9b2J\u202e\rwell"),
    ],
)
def test_texts_of_a_record_are_no_markup_and_no_commands_of_the_terminal(
    capslib, tmp_path, make_record, device, shown
):
    put_one_of_a_device(tmp_path / "records", make_record, device)
    done = capslib("records", "--results-dir", tmp_path / "records")
    assert done.status == 0, done.message
    assert shown in done.out
    assert done.out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "words", [("claims",), ("claims", "--json"), ("records",), ("run", "--help")]
)
def test_an_encoding_without_our_letters_shows_others_in_their_place(
    capslib, tmp_path, make_record, words
):
    put_one_of_a_device(tmp_path / "records", make_record, "β")
    place = () if "--help" in words else ("--results-dir", tmp_path / "records")
    done = capslib(*words, *place, PYTHONIOENCODING="cp1252")
    assert done.status == 0, done.message
    assert done.out
    if "--json" in words:
        assert done.out == capslib(*words, *place).out, "what programs read loses nothing"

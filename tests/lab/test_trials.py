"""Trials and their keys, records and their form, and how a trial may end."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
import toys
from pydantic import ValidationError

from capslib.errors import NotFinite, UserError
from capslib.lab import runs
from capslib.lab.records import Record
from capslib.lab.runs import (
    PACKAGE,
    checkout,
    code_hash,
    code_of,
    git,
    hash_of_code,
    reached,
    revisions,
    run_trial,
)
from capslib.papers import experiments
from capslib.papers.experiment import Arm, DataFingerprint, Metric, Trial
from capslib.training import Context

# ------------------------------------------------------------------------------------------
# keys


def test_the_key_of_a_trial_never_changes(trial):
    """If this fails, every committed record has lost its name. Raise the revision of an
    experiment instead.
    """
    config = {
        "routing": "dynamic",
        "bias": True,
        "points": 20,
        "learning_rate": 0.005,
        "decoder": [8, 16],
    }
    assert trial.model_copy(update={"config": config}).key == "2fe240753d98bbbe"


def test_the_key_knows_every_field(trial):
    changed = {
        "paper": "em_routing",
        "experiment": "depth",
        "revision": 2,
        "scale": "paper",
        "seed": 4,
        "config": {**trial.config, "points": 21},
    }
    assert set(changed) == set(Trial.model_fields), "a new field needs a line here"
    keys = {trial.model_copy(update={name: value}).key for name, value in changed.items()}
    keys |= {
        trial.model_copy(update={"config": {**trial.config, name: "x"}}).key
        for name in trial.config
    }
    assert len(keys) == len(changed) + len(trial.config)
    assert trial.key not in keys


def test_the_key_does_not_know_the_order_of_fields_or_the_way_through_json(trial):
    backwards = trial.model_copy(update={"config": dict(reversed(trial.config.items()))})
    assert backwards.key == trial.key == Trial.model_validate_json(trial.model_dump_json()).key


def test_equal_settings_are_one_trial_however_they_are_written(make_experiment):
    experiment = make_experiment()
    keys = set()
    for fields in ({"size": 1}, {"size": "1"}, {}):  # a default may be written out
        arm = Arm("", options=toys.ToyOptions(**fields))
        keys.add(experiment.trial("cpu", arm, 0).key)
    assert len(keys) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"scale": "huge"},
        {"seed": -1},
        {"seed": 2**60},
        {"revision": 0},
        {"surprise": 1},
        {"config": {"size": 10**101}},
    ],
)
def test_a_trial_is_validated(trial, change):
    with pytest.raises(ValidationError):
        Trial.model_validate({**trial.model_dump(), **change})


def test_a_trial_says_what_it_is(trial):
    assert str(trial) == (
        "negation_limitation/sign [cpu] "
        "routing=dynamic bias=True points=20 learning_rate=0.01 seed=3"
    )


# ------------------------------------------------------------------------------------------
# selections


def test_the_trials_of_a_scale_come_seed_by_seed(make_experiment):
    trials = make_experiment().trials("cpu")
    assert [(t.seed, t.config) for t in trials] == [
        (s, c) for s in (0, 1, 2) for c in ({}, {"size": 2}, {"size": 3})
    ]
    assert len(make_experiment().trials("smoke")) == 3


def test_where_keeps_and_change_sets(make_experiment):
    experiment = make_experiment()
    assert [t.config for t in experiment.trials("smoke", where={"size": 2})] == [{"size": 2}]
    assert [t.config for t in experiment.trials("smoke", change={"size": 9})] == [
        {"size": 9}
    ]  # three that became one
    assert [t.config for t in experiment.trials("smoke", change={"size": "9"})] == [{"size": 9}]
    assert [t.seed for t in experiment.trials("cpu", seeds=(7, 5), where={"size": 1})] == [7, 5]
    (trial,) = experiment.trials("cpu", where={"size": 1, "seed": 1})
    assert trial == experiment.trials("cpu", where={"size": 1})[1]
    assert [t.seed for t in experiment.trials("cpu", seeds=range(8), where={"seed": 7})] == [
        7
    ] * len(experiment.at("cpu"))


def test_an_experiment_knows_the_budget_of_a_trial(make_experiment):
    """The toy has no epochs, so no trial of it has twice its budget."""
    experiment = make_experiment()
    trial, *_ = experiment.trials("cpu")
    assert experiment.budget(trial) == 1
    for change in (
        {"revision": trial.revision + 1},
        {"config": {"size": 99}},
        {"scale": "paper"},
        {"seed": 99},
    ):
        changed = trial.model_copy(update=change)
        assert experiment.budget(changed) == (changed in experiment.trials(changed.scale))


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        ({"where": {"siz": 1}}, "Unknown field of toy 'siz'. Did you mean 'size'"),
        ({"change": {"siz": 1}}, "Unknown field of toy 'siz'. Did you mean 'size'"),
        (
            {"where": {"size": 7}},
            "toy at scale smoke has size=7. There are: size=1; size=2; size=3.",
        ),
        ({"where": {"seed": 7}}, "toy at scale smoke has no seed 7. There are: 0."),
        ({"change": {"size": "many"}}, "Configuration of toy: size = 'many'"),
    ],
)
def test_a_bad_selection_is_a_user_error(make_experiment, selection, says):
    with pytest.raises(UserError) as error:
        make_experiment().trials("smoke", **selection)
    assert says in str(error.value)


# ------------------------------------------------------------------------------------------
# records


def test_a_record_survives_json_to_the_last_bit(trial, make_record):
    record = make_record(trial, series={"x": [1 / 3, 1e-300, 0.1 + 0.2]}, resumed_from=[3, 9])
    assert Record.model_validate_json(record.model_dump_json(indent=1)) == record


@pytest.mark.parametrize(
    "change",
    [
        {"exit": "fine"},
        {"schema_version": 1},
        {"wall_seconds": -1},
        {"surprise": 0},
        {"series": {"x": [float("nan")]}},
        {"config": None},
    ],
)
def test_a_record_is_validated(trial, make_record, change):
    with pytest.raises(ValidationError):
        make_record(trial, **change)


def test_a_metric_is_a_number():
    for value in (float("nan"), float("inf"), None, "high"):
        with pytest.raises(ValidationError):
            Metric(value=value, n=1, unit="fraction")


def test_the_schema_can_be_published():
    schema = json.loads(json.dumps(Record.model_json_schema()))
    assert set(Record.model_fields) == set(schema["properties"])
    assert schema["additionalProperties"] is False
    assert {"Trial", "Metric", "Deviation", "Environment", "Code", "DataFingerprint"} <= set(
        schema["$defs"]
    )


def test_a_record_is_real_unless_a_stand_in_was_seen(trial, make_record):
    real, stand_in = (
        DataFingerprint(name="x", sha256="0" * 64, stand_in=s, complete=True)
        for s in (False, True)
    )
    assert make_record(trial).real
    assert make_record(trial, data=[real]).real
    assert not make_record(trial, data=[real, stand_in]).real


def test_the_hash_of_the_code_is_a_hash():
    assert len(code_hash()) == 64
    assert code_hash() == code_hash()


@pytest.fixture(scope="module")
def code() -> dict[str, bytes]:
    """The files of the package, by name."""
    return {p.relative_to(PACKAGE).as_posix(): p.read_bytes() for p in PACKAGE.rglob("*.py")}


def edited(
    code: dict[str, bytes], name: str, old: bytes = b'"""', new: bytes = b'"""Edited. '
) -> dict[str, bytes]:
    assert old in code[name]
    return {**code, name: code[name].replace(old, new, 1)}


SIGN = "capslib.papers.negation_limitation.sign"


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("papers/negation_limitation/sign.py", True),
        ("papers/common.py", True),
        ("routing/em.py", True),  # of the registry of routings, by name
        ("networks/negation_limitation.py", True),
        ("networks/em_routing.py", True),  # what the registry of networks names may be chosen
        ("training.py", True),
        ("lab/cli.py", False),
        ("lab/judging.py", False),
        ("papers/em_routing/table1.py", False),
        ("__init__.py", False),
    ],
)
def test_the_code_of_an_experiment_is_what_its_module_imports(code, name, counts):
    """Checkpoints outlive a change of the command line, and none of a routing."""
    changed = edited(code, name)
    assert (hash_of_code(changed, SIGN) != hash_of_code(code, SIGN)) is counts
    assert hash_of_code(changed) != hash_of_code(code), "a worker has the whole package"


def with_line_ends_of_windows(content: bytes) -> bytes:
    return content.replace(b"\n", b"\r\n")


def test_the_hash_of_the_code_does_not_ask_how_lines_end(code):
    """So a checkpoint goes on in a clone of Windows, and a cluster may have both."""
    windows = {name: with_line_ends_of_windows(content) for name, content in code.items()}
    assert hash_of_code(windows) == hash_of_code(code)
    assert hash_of_code(windows, SIGN) == hash_of_code(code, SIGN)


def test_what_is_imported_within_a_function_counts(code):
    files = edited(code, "lab/statistics.py", b"from __future__", b"# edited\nfrom __future__")
    late = edited(
        code,
        "papers/common.py",
        b"def abscissa",
        b"def late():\n    from capslib.lab.statistics import interval\n\n\ndef abscissa",
    )
    edited_both = {**late, "lab/statistics.py": files["lab/statistics.py"]}
    assert "lab/statistics.py" not in reached(code, SIGN)
    assert "lab/statistics.py" in reached(late, SIGN)
    assert hash_of_code(late, SIGN) != hash_of_code(edited_both, SIGN)


def test_a_record_and_a_checkpoint_hold_the_hash_of_their_own_code(code):
    sign = experiments("negation_limitation")["sign"]
    assert code_of(sign).capslib == code_hash(SIGN) == hash_of_code(code, SIGN) != code_hash()


# ------------------------------------------------------------------------------------------
# revisions


def commit(root: Path) -> str:
    """Put what lies in a folder into a repository, and give the revision."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "a")):
        assert not git(*words, folder=root).returncode
    return git("rev-parse", "HEAD", folder=root).stdout.strip()


@pytest.fixture
def project(tmp_path) -> Path:
    """A folder with what tells this project from others, in no repository yet."""
    root = tmp_path / "project"
    for name in (*runs.LANDMARKS, "capslib/lab/ledger/em_routing.csv", ".gitignore"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(".venv\n")
    return root


CHANGES = {
    "nothing": (lambda root: None, False),
    "a changed module": (
        lambda root: (root / "capslib" / "__init__.py").write_text("A = 2"),
        True,
    ),
    "a new module": (
        lambda root: (root / "capslib" / "lab" / "new.py").write_text("A = 2"),
        True,
    ),
    "a module that is gone": (lambda root: (root / "capslib" / "__init__.py").unlink(), True),
    "a changed ledger": (
        lambda root: (root / "capslib" / "lab" / "ledger" / "em_routing.csv").write_text("b"),
        True,
    ),
    "notes of the author": (
        lambda root: (root / "capslib" / "todo.txt").write_text("b"),
        False,
    ),
    "a record": (lambda root: (root / "results.json").write_text("b"), False),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_checkout_has_a_revision_and_may_have_changes(project, what):
    revision = commit(project)
    change, dirty = CHANGES[what]
    change(project)
    assert checkout(project) == (revision, dirty, "")
    assert ("commit first" in checkout(project).objection) is dirty


@pytest.mark.parametrize(
    "variable",
    [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_LITERAL_PATHSPECS",
    ],
)
def test_a_variable_of_git_names_no_other_repository(project, monkeypatch, variable):
    """A hook of git sets some of them, for the repository that it belongs to."""
    revision = commit(project)
    (project / "capslib" / "new.py").touch()
    monkeypatch.setenv(variable, "1")
    assert checkout(project) == (revision, True, "")


def unpacked(project: Path) -> Path:
    """A tarball of the project, below nothing of git."""
    return project


def copied(project: Path) -> Path:
    """A tarball of the project, in a folder of a stranger's repository that tracks it."""
    commit(project.parent)
    return project


def installed(project: Path) -> Path:
    """An installed package, below a clone of this project."""
    commit(project)
    (project / ".venv").mkdir()
    (project / "capslib").rename(project / ".venv" / "capslib")
    return project / ".venv"


def vendored(project: Path) -> Path:
    """The package alone, at the root of a stranger's repository."""
    (project / "book").rename(project / "pages")
    commit(project)
    return project


def not_committed(project: Path) -> Path:
    """A tarball of the project, in a repository that has nothing yet."""
    assert not git("init", "-q", folder=project).returncode
    return project


def of_a_broken_repository(project: Path) -> Path:
    commit(project)
    (project / ".git" / "index").write_text("broken")
    return project


STRANGERS = {
    unpacked: "not a git repository",
    copied: "is in a git repository of something else",
    installed: "is in a git repository of something else",
    vendored: "is in a git repository of something else",
    not_committed: "Needed a single revision",
    of_a_broken_repository: "index file",
}


@pytest.mark.parametrize("place", STRANGERS)
def test_no_revision_of_a_stranger_passes_for_that_of_the_code(project, place):
    code = checkout(place(project))
    assert (code.revision, code.dirty) == (None, None)
    assert STRANGERS[place] in code.reason
    assert code.reason in code.objection


@pytest.mark.skipif(
    getattr(os, "geteuid", lambda: 1)() != 0, reason="only root gives a folder away"
)
def test_git_says_itself_why_it_trusts_no_folder_of_somebody_else(project):
    commit(project)
    os.chown(project, 12_345, -1)
    assert checkout(project).revision is None
    assert "dubious ownership" in checkout(project).reason
    assert "safe.directory" in checkout(project).objection


def test_a_history_is_known_where_it_is_whole(project, tmp_path):
    first = commit(project)
    (project / "new.txt").touch()
    last = commit(project)
    assert not git(
        "clone", "-q", "--depth", "1", project.as_uri(), "shallow", folder=tmp_path
    ).returncode
    assert revisions(project) == {first, last}
    assert checkout(tmp_path / "shallow").revision == last
    assert revisions(tmp_path / "shallow") is None
    assert revisions(tmp_path) is None, "no checkout"


PROGRAMS = {
    "none": (None, 0, "git cannot be started: No such file or directory"),
    "not a program": ("", 0o644, "git cannot be started: Permission denied"),
    "one that fails in silence": ("#!/bin/sh\nexit 1\n", 0o755, "git ended with status 1"),
    "one that speaks no UTF-8": (
        "#!/bin/sh\nprintf '\\351t\\351' >&2; exit 1\n",
        0o755,
        "\ufffdt\ufffd",
    ),
}


@pytest.mark.skipif(sys.platform == "win32", reason="programs there have other names")
@pytest.mark.parametrize("program", PROGRAMS)
def test_without_a_git_that_works_the_code_has_no_revision(
    project, tmp_path, monkeypatch, program
):
    commit(project)
    content, mode, reason = PROGRAMS[program]
    path = tmp_path / "programs" / "git"
    path.parent.mkdir()
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    monkeypatch.setenv("PATH", str(path.parent))
    assert checkout(project) == (None, None, reason)
    assert "the revision of this code is not known" in checkout(project).objection


def test_the_revision_of_a_record_is_that_at_the_start_of_its_trial(store, make_experiment):
    """A commit or a pull while a trial runs does not change the code that it has loaded."""
    sizes = []

    def looking(config, context):
        sizes.append(checkout.cache_info().currsize)
        return toys.measured(config, context)

    checkout.cache_clear()
    run(make_experiment(looking), store)
    assert sizes == [1]


# ------------------------------------------------------------------------------------------
# machines


def test_the_device_of_a_record_is_the_one_it_ran_on(monkeypatch):
    """A record of an Apple GPU must not pass for one of its CPU."""
    monkeypatch.setattr(runs.platform, "machine", lambda: "arm64")
    assert runs._environment("mps").device == "MPS (arm64)"
    assert runs._environment("cpu").device == "CPU (arm64)"
    assert [runs._environment(device).deterministic for device in ("cpu", "mps")] == [
        True,
        False,
    ]
    assert not runs._environment("mps").device.startswith("CPU"), (
        "how planning tells the two apart"
    )


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_peak_memory_is_known_without_the_resource_module(monkeypatch, platform):
    """Windows has none, and on a Mac it counts in another unit."""
    assert psutil  # it asks for the platform once, when it is imported
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setitem(sys.modules, "resource", None)  # an import of it raises
    with runs.PeakMemory("cpu") as memory:
        pass
    assert 2**20 < memory.bytes < 2**45


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_kernel_that_keeps_no_peak_costs_no_finished_trial(monkeypatch):
    """gVisor's /proc/self/status lacks it, and the trial was lost after its training."""
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "VmRSS:\t    1024 kB\n")
    with runs.PeakMemory("cpu") as memory:
        pass
    assert 2**20 < memory.bytes < 2**45


STEPS = """
import resource, torch
from capslib.lab.runs import PeakMemory, keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.zeros(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def peak():
    with PeakMemory("cpu") as memory:
        pass
    return memory

first = faults()
keep_memory()
for _ in range(4):
    faults()
later, held = faults(), peak().bytes
keep_memory()
print(first, later, (held - peak().bytes) >> 20)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="another C library has none of these options"
)
def test_a_step_finds_the_memory_of_the_last_one_and_the_next_trial_does_not_count_it():
    """Page faults are counted: five blocks of 64 MiB take 81,920 of 4 KiB, or none.

    The heap first grows by some blocks, how many depends on what else lies in it: a block joins
    the free memory beside it when it is given back, and one alone is too small for the next of
    its size, which has to be aligned. Seven blocks were the most.
    """
    done = subprocess.run(
        [sys.executable, "-c", STEPS],
        capture_output=True,
        encoding="utf-8",
        check=True,
        env={**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"},  # as in a dask worker
    )
    first, later, given_back = done.stdout.split()
    assert int(later) < int(first) / 10
    assert not os.access("/proc/self/clear_refs", os.W_OK) or int(given_back) > 48


# ------------------------------------------------------------------------------------------
# how a trial ends


def run(experiment, store, seed: int = 0) -> Record:
    (trial,) = experiment.trials("smoke", where={"size": 2}, seeds=[seed])
    return run_trial(experiment, trial, store, Context(seed=seed))


def weights(folder: Path, size: int = 2, seed: int = 0) -> Path:
    """Where the training of the toy of :func:`run` has its checkpoint or its final weights."""
    arm = Arm("", options=toys.ToyOptions(size=size))
    return toys.training(arm, seed).path(folder)


def raising(error: BaseException):
    def run(arm, context):
        path = weights(context.folder, arm.options.size)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a long way already")
        raise error

    return run


def test_a_trial_that_ends_well_leaves_a_record(store, make_experiment):
    record = run(make_experiment(), store, seed=5)
    assert record == store.get(record.trial)
    assert (record.exit, record.message, record.metrics["size"].value) == ("ok", "", 7)
    assert record.key == record.trial.key
    assert record.environment.threads == torch.get_num_threads()
    assert record.code.capslib == code_of(make_experiment()).capslib
    assert record.peak_memory_bytes > 2**20
    assert record.started <= record.finished


@pytest.mark.parametrize(
    ("error", "exit", "says"),
    [
        (
            NotFinite("step 7: the output of conv is not finite"),
            "nan",
            "step 7: the output of conv is not finite",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory.\nTried to …"),
            "oom",
            "CUDA out of memory.",
        ),
        (MemoryError(), "oom", "MemoryError"),
    ],
)
def test_a_trial_that_fails_is_recorded_with_its_reason(
    store, make_experiment, error, exit, says
):
    record = run(make_experiment(raising(error)), store)
    assert (record.exit, record.message, record.metrics) == (exit, says, {})
    assert store.get(record.trial) == record


def test_an_exception_is_recorded_with_its_place(store, make_experiment):
    record = run(make_experiment(raising(ZeroDivisionError("by nothing"))), store)
    assert "ZeroDivisionError: by nothing" in store.log(record.trial).read_text(
        encoding="utf-8"
    )
    assert record.exit == "error"
    assert record.message.startswith("ZeroDivisionError: by nothing (test_trials.py:")


def test_a_trial_that_ends_its_process_is_a_failure_of_its_own(store, make_experiment):
    """On a worker its end would look as if memory had run out."""
    record = run(make_experiment(raising(SystemExit(3))), store)
    assert (record.exit, record.message.partition(" (")[0]) == ("error", "SystemExit: 3")


@pytest.mark.parametrize("failed", [False, True])
def test_a_rehearsal_is_recorded_as_such_even_where_it_fails(store, make_experiment, failed):
    """A NaN in it would else pass for a result; and it has no say over the checkpoint of the
    whole run.
    """
    experiment = make_experiment(*([raising(NotFinite("step 7"))] if failed else []))
    (trial,) = experiment.trials("smoke", where={"size": 2})
    weights(store.trainings).parent.mkdir(parents=True)
    weights(store.trainings).write_bytes(b"a long way already")
    record = run_trial(experiment, trial, store, Context(seed=0, max_steps=3))
    assert (record.exit, record.message, record.failed) == (
        "cut",
        "nan: step 7" if failed else "",
        failed,
    )
    assert store.get(trial) == record
    assert weights(store.trainings).read_bytes() == b"a long way already"


@pytest.mark.parametrize("error", [UserError("no such data"), KeyboardInterrupt()])
def test_what_is_no_result_is_raised_and_the_checkpoint_stays(store, make_experiment, error):
    experiment = make_experiment(raising(error))
    with pytest.raises(type(error)):
        run(experiment, store)
    assert list(store.records()) == []
    assert weights(store.trainings).read_bytes() == b"a long way already"


def test_the_trainings_of_a_trial_that_is_done_stay_for_others(store, make_experiment):
    """Another experiment may share them; that a later one reads them, and not before they are
    whole, is tested with recipes.
    """
    record = run(make_experiment(raising(NotFinite("step 1"))), store)
    assert record.exit == "nan"
    assert list(store.trainings.iterdir()) == [weights(store.trainings)]
    assert all(
        part.startswith(".") for part in store.trainings.relative_to(store.root).parts
    ), "hidden from git and from reviews"


def test_a_trial_out_of_range_does_not_start(store, make_experiment):
    experiment = make_experiment()
    trial = experiment.trials("smoke")[0].model_copy(update={"config": {"size": "many"}})
    with pytest.raises(ValidationError):
        run_trial(experiment, trial, store, Context(seed=0))
    assert list(store.records()) == []

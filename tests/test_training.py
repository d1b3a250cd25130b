"""The training loop: it learns, it is exact when killed, it says where a NaN came from."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from helpers import notified
from torch import nn

from capslib import training
from capslib.errors import Interrupted, NotFinite, UserError
from capslib.lab.records import Record
from capslib.lab.review import review
from capslib.lab.runs import run_trial
from capslib.lab.store import Store
from capslib.papers import experiments
from capslib.training import (
    Context,
    Examples,
    History,
    Patience,
    accuracy,
    fit,
    permutation,
    seeded,
)

EXAMPLES, BATCH, EPOCHS = 50, 8, 3


@pytest.mark.parametrize("nothing", [dict(n=0), dict(epochs=0), dict(batch_size=0)], ids=str)
def test_a_training_of_nothing_says_so(nothing):
    n, epochs, batch_size = (nothing.get(name, 4) for name in ("n", "epochs", "batch_size"))
    line = nn.Linear(1, 1)
    with pytest.raises(
        ValueError,
        match=f"needs examples, epochs and a batch size, not {n}, {epochs} and {batch_size}",
    ):
        fit(
            line,
            Examples(torch.zeros(n, 1)),
            loss=lambda *_: {},
            optimizer=torch.optim.SGD(line.parameters()),
            epochs=epochs,
            batch_size=batch_size,
            context=Context(seed=0),
        )


def test_a_context_takes_names_of_folders():
    context = Context(seed=0, folder="trainings", data_dir="data")
    assert (context.folder, context.data_dir, context.checkpoint) == (
        Path("trainings"),
        Path("data"),
        None,
    )


PER_EPOCH = 7  # the last batch of an epoch is a short one
STEPS = EPOCHS * PER_EPOCH


def blobs(n: int = EXAMPLES) -> Examples:
    """Two clouds of points in four dimensions, half of the points each."""
    target = torch.arange(n) % 2
    noise = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return Examples(noise + 2 * (2 * target[:, None] - 1), target)


def cross_entropy(model, batch):
    scores = model(batch.inputs)
    right = (scores.argmax(dim=-1) == batch.labels).float().mean()
    return {"loss": nn.functional.cross_entropy(scores, batch.labels), "accuracy": right}


def network(*extra: nn.Module, seed: int = 0) -> nn.Sequential:
    """With dropout, so that the state of the random number generator matters to every step."""
    with seeded(seed):
        return nn.Sequential(
            nn.Linear(4, 8), *extra, nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
        )


def train(
    context: Context, *extra: nn.Module, model: nn.Module | None = None, **options
) -> History:
    model = network(*extra) if model is None else model
    defaults = dict(
        loss=cross_entropy,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        epochs=EPOCHS,
        batch_size=BATCH,
    )
    with seeded(1):  # of dropout: what a trial has drawn before it trains
        return fit(model, blobs(), context=context, **{**defaults, **options})


def evaluation(model: nn.Module) -> dict[str, float]:
    assert not model.training
    return {"accuracy": accuracy(model, blobs())}


class Recorder:
    """What a CUDA graph does, without one: it keeps the tensors of one call, and fills them anew when it is replayed."""

    def __init__(self, model: nn.Module, monkeypatch, breaks: bool = False):
        self.model, self.breaks, self.recorded, self.replayed = model, breaks, 0, 0
        gradients = training._Gradients
        monkeypatch.setattr(training, "_captured", self.captured)
        monkeypatch.setattr(
            training, "_Gradients", lambda model, loss, _: gradients(model, loss, BATCH)
        )

    def captured(self, function):
        if self.breaks:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.recorded += 1
        random = torch.get_rng_state()
        result = function()
        kept = [p.grad for p in self.model.parameters()]
        torch.set_rng_state(random)  # nothing runs while a graph is recorded

        def replay() -> None:
            self.replayed += 1
            result.copy_(function())
            for parameter, gradient in zip(self.model.parameters(), kept, strict=True):
                if (
                    gradient is not None and parameter.grad is not None
                ):  # of a replayed step all are
                    gradient.copy_(parameter.grad)
                parameter.grad = None  # whoever reads it before it is put back finds nothing

        return result, replay


# ----------------------------------------------------------------------------------------------------------- it learns


def test_it_learns():
    model = network()
    history = train(Context(seed=0), model=model, epochs=20, evaluate=evaluation)
    assert len(history.terms["loss"]) == len(history.terms["accuracy"]) == 20 * PER_EPOCH
    assert sum(history.terms["loss"][-PER_EPOCH:]) < 0.2 * sum(
        history.terms["loss"][:PER_EPOCH]
    )
    assert history.epochs["accuracy"][-1] == accuracy(model.eval(), blobs()) > 0.95


def test_its_first_step_is_one_step_of_the_optimizer():
    """On the first batch of the permutation, dropout aside."""
    x, y = blobs()
    ours, by_hand = (nn.Linear(4, 2) for _ in range(2))
    by_hand.load_state_dict(ours.state_dict())
    history = fit(
        ours,
        Examples(x, y),
        loss=cross_entropy,
        optimizer=torch.optim.SGD(ours.parameters(), 0.1),
        epochs=1,
        batch_size=EXAMPLES,
        context=Context(seed=5),
    )
    batch = permutation(EXAMPLES, 5, 0)
    loss = nn.functional.cross_entropy(by_hand(x[batch]), y[batch])
    loss.backward()
    assert history.terms["loss"] == [loss.item()]
    for p, q in zip(ours.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(p, q - 0.1 * q.grad)


def test_it_evaluates_once_an_epoch_and_trains_in_training_mode():
    seen, context = [], Context(seed=0)

    def evaluate(model):
        seen.append(model.training)
        return {"epoch": len(seen)}

    model = network()
    modes = []
    model.register_forward_hook(lambda module, *_: modes.append(module.training))
    history = train(context, model=model, evaluate=evaluate)
    assert seen == [False] * EPOCHS
    assert modes == [True] * STEPS
    assert history.epochs == {"epoch": [1, 2, 3]}


def test_progress_is_told_every_epoch():
    told = []
    train(Context(seed=0, progress=lambda *words: told.append(words)))
    assert [(step, steps) for step, steps, _ in told] == [
        (PER_EPOCH * k, STEPS) for k in (1, 2, 3)
    ]


def test_accuracy_is_a_share_whatever_the_batches():
    scores = torch.eye(3)[torch.tensor([0, 1, 2, 0, 1])]
    target = torch.tensor([0, 1, 2, 1, 0])
    for size in (1, 2, 5, 1000):
        assert accuracy(
            lambda x: x, Examples(scores, target), batch_size=size
        ) == pytest.approx(0.6)


# ---------------------------------------------------------------------------------------------- randomness is a function


def scheduled(model: nn.Module) -> tuple[dict, list[int]]:
    """Options of a run whose rate falls at every step while a factor of its loss, a tensor, rises; and the steps told."""
    optimizer, factor, told = torch.optim.Adam(model.parameters()), torch.zeros(()), []

    def before_step(step: int) -> None:
        told.append(step)
        optimizer.param_groups[0]["lr"] = 1e-2 * 0.9**step
        factor.fill_(1 + step)

    def loss(model, batch):
        terms = cross_entropy(model, batch)
        return {**terms, "loss": terms["loss"] * factor}

    return dict(model=model, optimizer=optimizer, loss=loss, before_step=before_step), told


def test_before_every_step_a_schedule_is_told_its_number():
    """By hand, on the same batches: the numbers are those of the schedule, from the first step on."""
    model, by_hand = nn.Linear(4, 2), nn.Linear(4, 2)
    by_hand.load_state_dict(model.state_dict())
    options, told = scheduled(model)
    history = train(Context(seed=0), **options)
    assert told == list(range(STEPS))
    (x, y), losses, optimizer = blobs(), [], torch.optim.Adam(by_hand.parameters())
    for step in range(STEPS):
        batch = permutation(EXAMPLES, 0, step // PER_EPOCH).split(BATCH)[step % PER_EPOCH]
        optimizer.param_groups[0]["lr"] = 1e-2 * 0.9**step
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(by_hand(x[batch]), y[batch]) * (1 + step)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert history.terms["loss"] == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize("guard_every", [1, 5])
def test_a_schedule_goes_on_where_the_run_does(tmp_path, guard_every):
    """After a kill, and where the guard goes back: each step that is taken is told once, with its own number."""
    undisturbed = asdict(train(Context(seed=0), **scheduled(network())[0]))

    def context() -> Context:
        return Context(seed=0, checkpoint=tmp_path / "run.pt", checkpoint_seconds=0)

    options, told = scheduled(network())
    with pytest.raises(KeyboardInterrupt):
        train(context(), **options, transform=interrupted_at(12), guard_every=guard_every)
    assert told == list(range(12))
    second, (options, told) = context(), scheduled(network())
    assert asdict(train(second, **options, guard_every=guard_every)) == undisturbed
    assert told == list(range(*second.resumed_from, STEPS))

    options, told = scheduled(network(Spoil(13)))
    with pytest.raises(NotFinite, match="step 13"):
        train(Context(seed=0), **options, guard_every=guard_every)
    assert told == [*range(13), *(() if guard_every == 1 else (13, *range(PER_EPOCH, 13)))]


def test_a_captured_step_reads_what_its_schedule_has_set(monkeypatch):
    undisturbed = asdict(train(Context(seed=0), **scheduled(network())[0]))
    model = network()
    recorder, (options, told) = Recorder(model, monkeypatch), scheduled(model)
    assert asdict(train(Context(seed=0), **options)) == undisturbed
    assert (recorder.recorded, told) == (1, list(range(STEPS)))


def test_a_permutation_visits_everyone_and_depends_on_seed_and_epoch_only():
    orders = {
        (seed, epoch): permutation(100, seed, epoch) for seed in range(3) for epoch in range(3)
    }
    assert all(sorted(order.tolist()) == list(range(100)) for order in orders.values())
    assert len({tuple(order.tolist()) for order in orders.values()}) == 9
    torch.manual_seed(123)
    assert torch.equal(permutation(100, 1, 2), orders[1, 2])


def test_every_arm_sees_the_same_batches():
    def batches(model: nn.Module, seed: int) -> list[torch.Tensor]:
        seen = []
        train(
            Context(seed=seed), model=model, transform=lambda x, generator: seen.append(x) or x
        )
        return seen

    small, large = batches(nn.Linear(4, 2), 0), batches(network(seed=3), 0)
    assert len(small) == STEPS
    assert all(torch.equal(a, b) for a, b in zip(small, large, strict=True))
    assert not all(
        torch.equal(a, b) for a, b in zip(small, batches(nn.Linear(4, 2), 1), strict=True)
    )
    epoch = torch.cat(small[:PER_EPOCH])
    assert torch.equal(epoch.sort(0).values, blobs().inputs.sort(0).values)


def test_a_transform_gets_a_generator_of_its_own_step():
    def draws(seed: int) -> list[float]:
        seen = []

        def transform(x, generator):
            seen.append(torch.rand((), generator=generator).item())
            return x + 0.1 * torch.randn(x.shape, generator=generator)

        train(Context(seed=seed), transform=transform)
        return seen

    first = draws(0)
    assert len(set(first)) == STEPS
    torch.rand(10)
    assert draws(0) == first
    assert not set(draws(1)) & set(first)


def test_seeded_draws_the_same_and_leaves_the_callers_state_alone():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with seeded(3):
        first = torch.randn(4)
    with contextlib.suppress(RuntimeError), seeded(3):
        assert torch.equal(torch.randn(4), first)
        raise RuntimeError("an error inside leaves it alone too")
    assert torch.equal(torch.get_rng_state(), before)


# ----------------------------------------------------------------------------------------------------------- rehearsals


@pytest.mark.parametrize("guard_every", [1, 5])
@pytest.mark.parametrize("steps", [1, PER_EPOCH, PER_EPOCH + 3, STEPS, STEPS + 1])
def test_a_rehearsal_is_the_beginning_of_the_run_and_leaves_its_checkpoint_alone(
    tmp_path, undisturbed, steps, guard_every
):
    """Whatever it trains; its last step is followed by an evaluation, as the last of an epoch is."""
    path = tmp_path / "run.pt"
    path.write_bytes(b"of the whole run")
    context = Context(seed=0, checkpoint=path, checkpoint_seconds=0, max_steps=steps)
    for _ in range(2):
        history = train(context, evaluate=evaluation, guard_every=guard_every)
        for curve, whole in (
            (history.terms[name], undisturbed["terms"][name]) for name in ("loss", "accuracy")
        ):
            assert curve == whole[:steps]
        found, whole = history.epochs["accuracy"], undisturbed["epochs"]["accuracy"]
        assert len(found) == -(-min(steps, STEPS) // PER_EPOCH)
        assert found[: steps // PER_EPOCH] == whole[: steps // PER_EPOCH]
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"of the whole run"]


def test_a_rehearsal_that_is_stopped_leaves_nothing(tmp_path):
    with pytest.raises(Interrupted):
        train(Context(seed=0, checkpoint=tmp_path / "run.pt", max_steps=5, stop=lambda: True))
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------------- exact resume


def interrupted_at(step: int):
    """A transform that does what Ctrl-C does, before a step."""

    def transform(x, generator):
        transform.step += 1
        if transform.step == step:
            raise KeyboardInterrupt
        return x

    transform.step = 0
    return transform


@pytest.fixture
def undisturbed() -> dict:
    return asdict(train(Context(seed=0), evaluate=evaluation))


@pytest.mark.parametrize("guard_every", [1, 5])
@pytest.mark.parametrize("step", range(2, STEPS + 1))
def test_stopped_before_any_step_it_goes_on_to_the_same_end(
    tmp_path, undisturbed, step, guard_every
):
    def context() -> Context:
        return Context(seed=0, checkpoint=tmp_path / "run.pt", checkpoint_seconds=0)

    with pytest.raises(KeyboardInterrupt):
        train(
            context(),
            evaluate=evaluation,
            transform=interrupted_at(step),
            guard_every=guard_every,
        )
    torch.rand(step)  # another process has drawn other numbers
    second = context()
    assert asdict(train(second, evaluate=evaluation, guard_every=guard_every)) == undisturbed
    done = (
        step - 1
    )  # and saved where the losses were looked at, which is at the end of every epoch too
    saved = max(done - done % PER_EPOCH, *(k for k in range(done + 1) if k % guard_every == 0))
    assert second.resumed_from == ([saved] if saved else [])
    assert (second.seconds_before > 0) == (saved > 0)


@pytest.mark.parametrize("guard_every", [1, 5])
@pytest.mark.parametrize("step", [1, 6, 7, 12, STEPS - 1])
def test_asked_to_stop_it_writes_a_checkpoint_and_goes_on_to_the_same_end(
    tmp_path, undisturbed, step, guard_every
):
    """However long it is until the next checkpoint is due; where losses are looked at less often, at the next look."""
    steps = []

    def context(**more) -> Context:
        return Context(seed=0, checkpoint=tmp_path / "run.pt", checkpoint_seconds=1e9, **more)

    def count(batch, generator):
        steps.append(1)
        return batch

    with pytest.raises(Interrupted):
        train(
            context(stop=lambda: len(steps) >= step),
            evaluate=evaluation,
            transform=count,
            guard_every=guard_every,
        )
    looks = {k for k in range(1, STEPS) if k % guard_every == 0 or k % PER_EPOCH == 0}
    assert len(steps) == min(k for k in looks if k >= step)
    second = context()
    assert asdict(train(second, evaluate=evaluation, guard_every=guard_every)) == undisturbed
    assert second.resumed_from == [len(steps)]


def test_a_finished_run_leaves_its_weights_and_history_and_is_not_run_again(
    tmp_path, undisturbed
):
    path, calls, trained, again = tmp_path / "run.pt", [], network(), network(seed=1)
    train(Context(seed=0, checkpoint=path), model=trained, evaluate=evaluation)
    context = Context(seed=0, checkpoint=path)
    assert (
        asdict(train(context, model=again, evaluate=lambda model: calls.append(1) or {}))
        == undisturbed
    )
    assert (context.resumed_from, calls) == ([], [])
    assert context.seconds_before > 0
    assert all(
        torch.equal(p, q) for p, q in zip(trained.parameters(), again.parameters(), strict=True)
    )


def checkpoint_at(path: Path, step: int, code: str = "", **options) -> bytes:
    with pytest.raises(KeyboardInterrupt):
        train(
            Context(seed=0, checkpoint=path, checkpoint_seconds=0, code=code),
            evaluate=evaluation,
            transform=interrupted_at(step + 1),
            **options,
        )
    return path.read_bytes()


def assert_set_aside(path: Path, undisturbed: dict, says: str, **options) -> None:
    """A run that finds what lies at ``path`` warns, keeps it out of the way, and ends as if it had not been there."""
    context, content = (
        Context(seed=0, checkpoint=path, checkpoint_seconds=1e9),
        path.read_bytes(),
    )
    with notified(rf"run\.pt cannot be used \(.*{says}.*set aside as run\.pt\.damaged-"):
        assert asdict(train(context, evaluate=evaluation, **options)) == undisturbed
    assert context.resumed_from == []
    assert context.seconds_before == 0
    assert path.read_bytes() != content  # the final weights of the run that did without
    assert content in [p.read_bytes() for p in path.parent.glob("run.pt.damaged-*")]


def save(path: Path, state: dict) -> None:
    file = io.BytesIO()
    torch.save(state, file)
    path.write_bytes(file.getvalue())


def test_a_truncated_checkpoint_is_set_aside(tmp_path, undisturbed):
    path = tmp_path / "run.pt"
    whole = checkpoint_at(path, 9)
    for share in (0, 0.1, 0.5, 0.9, 0.999):
        path.write_bytes(whole[: int(share * len(whole))])
        assert_set_aside(path, undisturbed, "")
    assert len(list(tmp_path.glob("run.pt.damaged-*"))) == 5


def test_a_checkpoint_with_one_weight_changed_is_set_aside(tmp_path, undisturbed):
    """What torch alone would not notice: its reader leaves out the checksums of the archive."""
    path = tmp_path / "run.pt"
    whole = bytearray(checkpoint_at(path, 9))
    weight = torch.load(path, weights_only=True)["model"]["0.weight"]
    whole[whole.index(weight.numpy().tobytes())] ^= 1
    path.write_bytes(whole)
    torch.load(path, weights_only=True)
    assert_set_aside(path, undisturbed, "not what was written")


def test_zeros_and_text_in_the_place_of_a_checkpoint_are_set_aside(tmp_path, undisturbed):
    path = tmp_path / "run.pt"
    for content in (bytes(4096), b"version https://git-lfs.github.com/spec/v1\n"):
        path.write_bytes(content)
        assert_set_aside(path, undisturbed, "not a zip file")


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """The system refuses to write more, as on a full disk; for root too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_cannot_be_written_stops_the_run_and_the_same_run_goes_on(
    tmp_path, undisturbed
):
    path = tmp_path / "checkpoints" / "run.pt"
    whole = checkpoint_at(path, 9)
    with (
        no_file_longer_than(len(whole) // 2),
        pytest.raises(UserError, match=rf"{path} cannot be written: File too large"),
    ):
        train(Context(seed=0, checkpoint=path, checkpoint_seconds=0), evaluate=evaluation)
    assert path.read_bytes() == whole
    assert list(path.parent.iterdir()) == [path]
    again = Context(seed=0, checkpoint=path, checkpoint_seconds=0)
    assert asdict(train(again, evaluate=evaluation)) == undisturbed
    assert again.resumed_from == [9]


def test_a_trial_whose_record_cannot_be_written_is_not_lost(store):
    experiment = experiments("negation_limitation")["sign"]
    trial = experiment.trial(
        "smoke", experiment.config(routing="dynamic", bias=True, points=20, epochs=60), 0
    )

    def run() -> Record:
        return run_trial(experiment, trial, store, Context(seed=0, checkpoint_seconds=0))

    folder = store.path(trial).parent
    folder.parent.mkdir(parents=True)
    folder.touch()  # a file where the folder should be
    with pytest.raises(UserError, match=rf"{store.path(trial)} cannot be written: File exists"):
        run()
    folder.unlink()
    assert store.get(trial) is None
    record = run()
    assert record.resumed_from == []  # the training was finished, and its weights were there
    assert store.get(trial) == record


def test_a_checkpoint_of_another_length_is_set_aside(tmp_path, undisturbed):
    path = tmp_path / "run.pt"
    checkpoint_at(path, 9, epochs=EPOCHS + 1)
    assert_set_aside(path, undisturbed, f"run of {STEPS + PER_EPOCH} steps, not of {STEPS}")


def test_a_checkpoint_of_other_code_is_set_aside(tmp_path, undisturbed):
    path = tmp_path / "run.pt"
    checkpoint_at(path, 9, code="of yesterday")
    assert_set_aside(path, undisturbed, "another version of the code")


@pytest.mark.parametrize(
    "part", ["model", "optimizer", "epochs", "random", "resumed_from", "seconds"]
)
def test_a_checkpoint_that_lacks_a_part_is_not_used_in_part(tmp_path, undisturbed, part):
    path = tmp_path / "run.pt"
    checkpoint_at(path, 9)
    state = torch.load(path, weights_only=True)
    del state[part]
    save(path, state)
    assert_set_aside(path, undisturbed, part)


def spoilt_weights(state: dict) -> dict:
    weights = {name: tensor.clone() for name, tensor in state["model"].items()}
    next(iter(weights.values())).view(-1)[0] = math.inf
    return {"model": weights}


def spoilt_moments(state: dict) -> dict:
    moments = copy.deepcopy(state["optimizer"])
    moments["state"][0]["exp_avg"].view(-1)[0] = math.nan
    return {"optimizer": moments}


def spoilt_losses(state: dict) -> dict:
    terms = {name: curve.clone() for name, curve in state["terms"].items()}
    terms["loss"][3] = math.nan
    return {"terms": terms}


SENSELESS = {
    "a step before the first": (lambda state: {"step": -5}, "step"),
    "a step after the last": (lambda state: {"step": 10**9}, f"at step {10**9} of {STEPS}"),
    "the last step, and not finished": (
        lambda state: {"step": STEPS},
        f"at step {STEPS} of {STEPS}",
    ),
    "half a step": (lambda state: {"step": 4.5}, "step"),
    "finished after the last step": (
        lambda state: {"finished": True, "step": STEPS + 1},
        f"at step {STEPS + 1} of {STEPS}",
    ),
    "finished, in a word": (lambda state: {"finished": "no"}, "finished"),
    "a weight that is infinite": (spoilt_weights, "a weight or a moment of it is not finite"),
    "a moment that is no number": (spoilt_moments, "a weight or a moment of it is not finite"),
    "a best weight that is infinite": (
        lambda state: {"best": spoilt_weights(state)["model"]},
        "is not finite",
    ),
    "a loss that is no number": (spoilt_losses, "a loss before its step is not finite"),
    "less than no time": (lambda state: {"seconds": -100.0}, "seconds"),
    "endless time": (lambda state: {"seconds": math.inf}, "seconds"),
    "longer than there are computers": (lambda state: {"seconds": 1e308}, "seconds"),
    "time in words": (lambda state: {"seconds": "12"}, "seconds"),
    "taken up before the first step": (lambda state: {"resumed_from": [-3]}, "resumed_from"),
    "taken up later than it is": (
        lambda state: {"resumed_from": [12]},
        "taken up at step 12, and is at 9",
    ),
    "a curve of words": (lambda state: {"epochs": {"accuracy": ["good"]}}, "epochs"),
}


@pytest.mark.parametrize("what", SENSELESS)
def test_a_checkpoint_that_makes_no_sense_is_set_aside(tmp_path, undisturbed, what):
    change, says = SENSELESS[what]
    path = tmp_path / "run.pt"
    checkpoint_at(path, 9)
    state = torch.load(path, weights_only=True)
    save(path, state | change(state))
    assert_set_aside(path, undisturbed, says)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_file_in_the_place_of_a_checkpoint_is_set_aside(tmp_path, undisturbed, make):
    path = tmp_path / "run.pt"
    make(path)
    with notified(r"run.pt cannot be used \(.*no regular file.*set aside as run.pt.damaged-"):
        assert (
            asdict(train(Context(seed=0, checkpoint=path), evaluate=evaluation)) == undisturbed
        )


def test_a_checkpoint_with_code_in_it_is_not_run(tmp_path, undisturbed):
    class Touch:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    save(tmp_path / "run.pt", {"step": Touch()})
    assert_set_aside(tmp_path / "run.pt", undisturbed, "UnpicklingError")
    assert not (tmp_path / "ran").exists()


# ------------------------------------------------------------------------------------------------- killed for real

SIGN = dict(points=300, epochs=30, batch_size=100)  # 120 steps, with a checkpoint after each

SCRIPT = f"""
import os, signal, sys, torch
from capslib.papers import experiments
from capslib.lab.store import Store
from capslib.lab.review import review
from capslib.lab.runs import run_trial
from capslib.lab.records import Record
from capslib.training import Context

routing, root = sys.argv[1:3]
writes, move = 0, os.replace

def replace(source, place):
    global writes
    writes += 1
    if writes == int(count) and how == "before it is in place":
        os.kill(os.getpid(), signal.SIGKILL)
    move(source, place)
    if writes == int(count) and how == "when it is in place":
        os.kill(os.getpid(), signal.SIGKILL)
    if writes == int(count) and how == "some time later":
        signal.setitimer(signal.ITIMER_REAL, float(delay))

os.replace = replace
torch.set_num_threads(1)
experiment = experiments("negation_limitation")["sign"]
trial = experiment.trial("smoke", experiment.config(routing=routing, bias=True, **{SIGN!r}), 2)
for how, count, delay in zip(*[iter(sys.argv[3:])] * 3):
    process = os.fork()  # of one that has imported everything and computed nothing
    if process == 0:
        run_trial(experiment, trial, Store(root), Context(seed=2, checkpoint_seconds=0))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), Store(root).get(trial) is None)
"""
KILLS = {
    "before it is in place": signal.SIGKILL,
    "some time later": signal.SIGALRM,
    "when it is in place": signal.SIGKILL,
}
"""When a run dies, counted from one of its checkpoints, and of what. The clock of the kernel cannot send SIGKILL; SIGALRM, which
Python leaves alone, ends a process as abruptly: in the middle of an instruction, with nothing of Python run."""


@pytest.mark.parametrize("routing", ["em_vector"])
def test_killed_at_any_moment_a_trial_ends_with_the_same_record(tmp_path, routing):
    experiment = experiments("negation_limitation")["sign"]
    trial = experiment.trial("smoke", experiment.config(routing=routing, bias=True, **SIGN), 2)
    expected = run_trial(experiment, trial, Store(tmp_path / "undisturbed"), Context(seed=2))
    assert expected.resumed_from == []

    store, moments = Store(tmp_path / "killed"), random.Random(routing)
    kills = [*KILLS, "some time later"]
    seconds = [
        str(moments.uniform(0.0001, 0.02)) for _ in kills
    ]  # a step takes some milliseconds
    words = [
        word
        for how, delay in zip(kills, seconds, strict=True)
        for word in (how, str(moments.randint(5, 20)), delay)
    ]
    command = [sys.executable, "-c", SCRIPT, routing, store.root, *words, "never", "0", "0"]
    done = subprocess.run(command, check=True, capture_output=True, encoding="utf-8")
    assert done.stdout.splitlines() == [*(f"{-KILLS[how]} True" for how in kills), "0 False"]

    record = store.get(trial)
    assert record.metrics == expected.metrics
    assert record.series == expected.series
    assert record.exit == "ok"
    assert len(record.resumed_from) == 4
    assert record.resumed_from == sorted(set(record.resumed_from))
    assert all("checkout" in problem for problem in review(store).problems)


# ---------------------------------------------------------------------------------------------------------- NaN guard


class Spoil(nn.Module):
    """Puts a NaN into what passes through it in step ``at`` and later, or into the gradient of its own parameter."""

    def __init__(self, at: int, gradient: bool = False):
        super().__init__()
        self.at, self.gradient = at, gradient
        self.register_buffer(
            "step", torch.tensor(0)
        )  # part of the state: going back in time takes it along
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        self.step += 1
        if self.step < self.at:
            return x + self.offset
        return x + (self.offset * 0).abs().sqrt() if self.gradient else x * torch.nan


@pytest.mark.parametrize("guard_every", [1, 2, 7, 100])
@pytest.mark.parametrize("at", [1, 2, PER_EPOCH, PER_EPOCH + 1, PER_EPOCH + 4, STEPS])
def test_a_nan_is_traced_to_its_step_and_layer(at, guard_every):
    with pytest.raises(
        NotFinite, match=rf"^step {at}: the output of 1 \(Spoil\) is not finite$"
    ):
        train(Context(seed=0), Spoil(at), guard_every=guard_every)


@pytest.mark.parametrize("guard_every", [1, 7])
def test_a_nan_in_a_gradient_is_traced_to_its_parameter(guard_every):
    with pytest.raises(NotFinite, match=r"^step 11: the gradient of 1\.offset is not finite$"):
        train(Context(seed=0), Spoil(11, gradient=True), guard_every=guard_every)


def test_a_loss_that_is_not_finite_is_enough():
    def infinite(model, batch):
        return {"loss": torch.inf + 0 * sum(p.sum() for p in model.parameters())}

    with pytest.raises(NotFinite, match=r"^step 1: the loss is not finite$"):
        train(Context(seed=0), loss=infinite)


@pytest.mark.parametrize("breaks", [False, True], ids=["captured", "cannot be captured"])
def test_a_captured_step_changes_no_number(undisturbed, monkeypatch, breaks):
    """Whole batches are replayed after a warm-up, the short one at the end of an epoch is not."""
    model, training_warm_up = network(), training._Gradients.WARM_UP
    recorder = Recorder(model, monkeypatch, breaks)
    with notified("cannot be captured") if breaks else contextlib.nullcontext():
        history = train(Context(seed=0), model=model, evaluate=evaluation)
    assert (history.terms["loss"], history.epochs) == (
        undisturbed["terms"]["loss"],
        undisturbed["epochs"],
    )
    whole = EPOCHS * (PER_EPOCH - 1)
    assert (recorder.recorded, recorder.replayed) == (
        (0, 0) if breaks else (1, whole - training_warm_up)
    )


def test_a_nan_in_a_captured_step_is_traced_like_any_other(monkeypatch):
    model = network(Spoil(10))
    Recorder(model, monkeypatch)
    with pytest.raises(NotFinite, match="Spoil"):
        train(Context(seed=0), model=model, guard_every=5)


def test_a_spoilt_state_is_never_the_one_to_go_on_from(tmp_path):
    """A run that is killed between a NaN and the next look at the losses still names the step of the NaN."""
    context = Context(seed=0, checkpoint=tmp_path / "run.pt", checkpoint_seconds=0)
    with pytest.raises(KeyboardInterrupt):
        train(context, Spoil(3), guard_every=7, transform=interrupted_at(6))
    with pytest.raises(NotFinite, match=r"^step 3: the output of 1 \(Spoil\)"):
        train(context, Spoil(3), guard_every=7)


# ------------------------------------------------------------------------------- named terms, labels or none, stopping early


def autoencoder(model, batch):
    assert batch.labels is None
    error = (model(batch.inputs) - batch.inputs[:, :2]).square()
    return {"loss": error.sum(), "largest": error.max()}


def test_a_loss_without_labels_logs_its_terms():
    model = network()
    history = fit(
        model,
        Examples(blobs().inputs),
        loss=autoencoder,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        epochs=EPOCHS,
        batch_size=BATCH,
        context=Context(seed=0),
    )
    assert history.terms.keys() == {"loss", "largest"}
    assert all(len(curve) == STEPS for curve in history.terms.values())
    assert all(
        largest <= loss
        for largest, loss in zip(history.terms["largest"], history.terms["loss"], strict=True)
    )


def stopping(errors: list[float], model: nn.Module, kept: list) -> dict:
    """Options of a run whose metric is what ``errors`` says, epoch by epoch; ``kept`` gets the weights of every epoch."""

    def evaluate(model: nn.Module) -> dict[str, float]:
        kept.append({name: t.clone() for name, t in model.state_dict().items()})
        return {"error": errors[len(kept) - 1]}

    return dict(
        model=model, evaluate=evaluate, patience=Patience("error", 2), epochs=len(errors)
    )


@pytest.mark.parametrize(
    ("errors", "best", "ran"),
    [
        ([5, 3, 4, 4, 1], 2, 4),
        ([5, 4, 3, 2], 4, 4),
        ([5, 3, 3, 3, 1], 2, 4),
        ([5, 3, 4], 2, 3),
        ([1], 1, 1),
    ],
)
def test_it_stops_when_patience_ends_and_keeps_the_best_weights(errors, best, ran):
    model, kept = network(), []
    history = train(Context(seed=0), **stopping(errors, model, kept))
    assert len(kept) == ran
    assert history.epochs["error"] == errors[:ran]
    assert len(history.terms["loss"]) == ran * PER_EPOCH
    assert all(torch.equal(t, kept[best - 1][name]) for name, t in model.state_dict().items())


def test_patience_can_keep_the_last_weights():
    model, kept = network(), []
    options = stopping([5, 3, 4, 4, 1], model, kept)
    train(Context(seed=0), **{**options, "patience": Patience("error", 2, keep="last")})
    assert len(kept) == 4
    assert all(torch.equal(t, kept[-1][name]) for name, t in model.state_dict().items())


def test_a_run_with_patience_goes_on_to_the_same_end(tmp_path):
    errors, model, again = [5, 3, 4, 4, 1], network(), network()
    undisturbed = train(Context(seed=0), **stopping(errors, model, []))

    def context() -> Context:
        return Context(seed=0, checkpoint=tmp_path / "run.pt", checkpoint_seconds=0)

    kept: list = []
    with pytest.raises(KeyboardInterrupt):
        train(
            context(),
            **stopping(errors, network(), kept),
            transform=interrupted_at(3 * PER_EPOCH + 2),
        )
    assert asdict(train(context(), **stopping(errors, again, kept))) == asdict(undisturbed)
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True)
    )


def test_augmentation_and_permutations_draw_from_streams_of_their_own():
    """Once step k and epoch k drew from one stream; the records of that time can still be made again."""
    device = torch.device("cpu")
    order = [
        torch.randperm(100, generator=training.augmentation(3, k, device)).tolist()
        for k in range(20)
    ]
    shared = [
        torch.randperm(100, generator=training.augmentation(3, k, device, shared=True)).tolist()
        for k in range(20)
    ]
    epochs = [permutation(100, 3, k).tolist() for k in range(20)]
    assert shared == epochs
    assert not any(found in epochs for found in order)
    assert len({tuple(found) for found in order}) == 20


def test_a_history_is_plain_numbers():
    json.dumps(asdict(train(Context(seed=0), evaluate=evaluation)), allow_nan=False)

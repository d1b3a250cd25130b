"""The training loop: it learns, it is exact when killed, it says where a NaN came from."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Harm, notified
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from capslib import training
from capslib.errors import Interrupted, NotFinite, UserError
from capslib.lab.review import review
from capslib.lab.runs import run_trial
from capslib.lab.store import Store
from capslib.layers import DenseCapsules
from capslib.papers import experiments
from capslib.training import (
    Context,
    Examples,
    History,
    Patience,
    ProgressBar,
    accuracy,
    fit,
    permutation,
    seeded,
)

EXAMPLES, BATCH, EPOCHS = 50, 8, 3
PER_EPOCH = 7  # the last batch of an epoch is a short one
STEPS = EPOCHS * PER_EPOCH


def blobs() -> Examples:
    """Return two clouds of points in four dimensions, half of the points each."""
    labels = torch.arange(EXAMPLES) % 2
    noise = torch.randn(EXAMPLES, 4, generator=torch.Generator().manual_seed(0))
    return Examples(noise + 2 * (2 * labels[:, None] - 1), labels)


def cross_entropy(model, batch):
    scores = model(batch.inputs)
    correct = (scores.argmax(dim=-1) == batch.labels).float().mean()
    return {"loss": nn.functional.cross_entropy(scores, batch.labels), "accuracy": correct}


def network(*layers: nn.Module, seed: int = 0) -> nn.Sequential:
    """Return a network with dropout: the state of the random numbers matters to every step."""
    dropout = nn.Dropout(0.3)
    with seeded(seed):
        return nn.Sequential(nn.Linear(4, 8), *layers, nn.ReLU(), dropout, nn.Linear(8, 2))


def evaluation(model: nn.Module) -> dict[str, float]:
    assert not model.training
    return {"accuracy": accuracy(model, blobs())}


def train(context: Context | None = None, *layers: nn.Module, **changes) -> History:
    """Train the network, with these ``layers`` in it, in the same way but for changes."""
    model = changes.pop("model", None) or network(*layers)
    options = dict(
        examples=blobs(),
        loss=cross_entropy,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        epochs=EPOCHS,
        batch_size=BATCH,
        context=context or Context(seed=0),
        evaluate=evaluation,
    )
    with seeded(1):  # of dropout: what a trial has drawn before it trains
        return fit(model, **{**options, **changes})


def often(path: Path, **options) -> Context:
    """Return the context of a run that writes a checkpoint wherever it may."""
    return Context(seed=0, checkpoint=path, checkpoint_seconds=0, **options)


def kill_after(steps: int) -> Callable[[int], None]:
    """Return a ``before_step`` that does what Ctrl-C does."""

    def before_step(step: int) -> None:
        if step == steps:
            raise KeyboardInterrupt

    return before_step


def assert_same(weights, expected) -> None:
    torch.testing.assert_close(dict(weights), dict(expected), rtol=0, atol=0)


@pytest.fixture(scope="module")
def undisturbed() -> dict:
    return asdict(train())


# ---------------------------------------------------------------------------------- it learns


@pytest.mark.parametrize("terms", [torch.zeros(()), {"error": torch.zeros(())}])
def test_a_loss_returns_scalars_by_name(terms):
    with pytest.raises(TypeError, match='scalars by name, with "loss"'):
        train(loss=lambda model, batch: terms)


def test_a_rehearsal_has_a_step():
    with pytest.raises(ValueError, match="max_steps is at least 1"):
        train(Context(seed=0, max_steps=0))


def test_a_training_ends_in_eval_mode_and_on_the_path_that_was_asked_for(tmp_path):
    options = dict(context=Context(seed=0, checkpoint=tmp_path / "run.pt"), evaluate=None)
    for _ in range(2):  # the second one is read
        model = network().train()
        assert train(model=model, path="eager", **options).routing_path == "fast"
        assert not model.training
    capsules = DenseCapsules(2, 2, 2, 3)

    def loss(model, batch):
        pose = batch.inputs.unflatten(1, (2, 2))
        return {"loss": model(pose, pose.norm(dim=-1)).activation.sum()}

    assert train(model=capsules, loss=loss, path="eager", evaluate=None).routing_path == "eager"


@pytest.mark.parametrize("number", [np.float64, torch.tensor])
def test_metrics_may_be_numbers_of_any_library(tmp_path, number):
    def evaluate(model):
        return {"half": number(0.5)}

    path = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        train(often(path), before_step=kill_after(STEPS - 1), evaluate=evaluate)
    history = train(often(path), evaluate=evaluate)
    assert history.epochs["half"] == [0.5] * EPOCHS
    assert list(tmp_path.iterdir()) == [path]


def test_a_training_of_nothing_is_an_error():
    for nothing in (
        {"examples": Examples(torch.zeros(0, 4))},
        {"epochs": 0},
        {"batch_size": 0},
    ):
        with pytest.raises(ValueError, match="needs examples, epochs and a batch size"):
            train(**nothing)


def test_examples_are_inputs_with_a_label_each():
    inputs, labels = blobs()
    for count in (EXAMPLES - 1, EXAMPLES + 1):
        examples = Examples(inputs, labels.new_zeros(count))
        with pytest.raises(ValueError, match=f"{EXAMPLES} inputs need as many .* not {count}$"):
            train(examples=examples)
    for examples in ((inputs, labels), DataLoader(TensorDataset(inputs, labels))):
        with pytest.raises(TypeError, match=f"Examples.*, not {type(examples).__name__}$"):
            train(examples=examples)


def test_a_bar_appears_before_the_first_epoch_ends_and_starts_where_a_run_goes_on(
    tmp_path, capsys
):
    def look(step: int) -> None:
        if step == 1:
            shown.append(capsys.readouterr().err)
        kill_after(PER_EPOCH + 2)(step)

    shown: list[str] = []
    path = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt), ProgressBar() as bar:
        train(often(path, progress=bar), before_step=look)
    assert f" 0/{STEPS} " in shown[0]
    capsys.readouterr()
    with ProgressBar() as bar:
        train(often(path, progress=bar))
    first, *_, last = capsys.readouterr().err.strip().split("\r")
    assert f" {PER_EPOCH + 2}/{STEPS} " in first
    assert f" {STEPS}/{STEPS} " in last
    with ProgressBar() as bar:
        train(often(path, progress=bar))  # finished
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("epochs", [EPOCHS - 1, EPOCHS + 1])
def test_a_finished_file_is_read_for_more_epochs_and_set_aside_for_fewer(tmp_path, epochs):
    path = tmp_path / "run.pt"
    train(often(path))
    if epochs > EPOCHS:
        history = train(often(path), epochs=epochs)
        assert len(history.terms["loss"]) == STEPS
        return
    with notified(rf"belongs to another training, .*: it is at step {STEPS} of"):
        history = train(often(path), epochs=epochs)
    assert len(history.terms["loss"]) == epochs * PER_EPOCH


def test_a_context_takes_names_of_folders():
    context = Context(seed=0, folder="trainings", data_dir="data")
    assert (context.folder, context.data_dir) == (Path("trainings"), Path("data"))
    assert context.checkpoint is None


def test_it_learns():
    model = network()
    history = train(model=model, epochs=20)
    losses = history.terms["loss"]
    assert len(losses) == len(history.terms["accuracy"]) == 20 * PER_EPOCH
    assert sum(losses[-PER_EPOCH:]) < 0.2 * sum(losses[:PER_EPOCH])
    assert history.epochs["accuracy"][-1] == accuracy(model.eval(), blobs()) > 0.95
    json.dumps(asdict(history), allow_nan=False)


def test_it_evaluates_and_reports_once_an_epoch_and_trains_in_training_mode():
    model, modes, reports = network(), [], []
    model.register_forward_hook(lambda module, *_: modes.append(module.training))
    context = Context(seed=0, progress=lambda *report: reports.append(report[:2]))
    history = train(context, model=model, evaluate=lambda model: {"training": model.training})
    assert history.epochs == {"training": [False] * EPOCHS}
    assert modes == [True] * STEPS
    assert reports == [(PER_EPOCH, STEPS), (2 * PER_EPOCH, STEPS), (STEPS, STEPS)]


@pytest.mark.parametrize("size", [2, 1000])
def test_accuracy_is_a_share_whatever_the_batches(size):
    examples = Examples(torch.eye(3)[[0, 1, 2, 0, 1]], torch.tensor([0, 1, 2, 1, 0]))
    assert accuracy(lambda x: x, examples, batch_size=size) == pytest.approx(0.6)


def scheduled(model: nn.Module, steps: list[int]) -> dict:
    """Return options of a run whose rate falls at every step, and a factor of its loss rises.

    ``steps`` gets the numbers that its schedule is called with.
    """
    optimizer, factor = torch.optim.Adam(model.parameters()), torch.zeros(())

    def before_step(step: int) -> None:
        steps.append(step)
        optimizer.param_groups[0]["lr"] = 1e-2 * 0.9**step
        factor.fill_(1 + step)

    def loss(model, batch):
        terms = cross_entropy(model, batch)
        return {**terms, "loss": terms["loss"] * factor}

    return dict(model=model, optimizer=optimizer, loss=loss, before_step=before_step)


def test_each_step_is_one_of_the_optimizer_on_the_next_batch_by_schedule():
    model, by_hand = nn.Linear(4, 2), nn.Linear(4, 2)
    by_hand.load_state_dict(model.state_dict())
    history = train(**scheduled(model, []))
    (inputs, labels), losses = blobs(), []
    optimizer = torch.optim.Adam(by_hand.parameters())
    for step in range(STEPS):
        batches = permutation(EXAMPLES, 0, step // PER_EPOCH).split(BATCH)
        batch = batches[step % PER_EPOCH]
        optimizer.param_groups[0]["lr"] = 1e-2 * 0.9**step
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(by_hand(inputs[batch]), labels[batch]) * (1 + step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert history.terms["loss"] == pytest.approx(losses, rel=1e-6)
    torch.testing.assert_close(model.state_dict(), by_hand.state_dict())


@pytest.mark.parametrize("guard_every", [1, 5])
def test_a_schedule_goes_on_where_the_run_does(tmp_path, guard_every):
    """After a kill, and where the guard goes back, it hears the numbers of the steps."""
    undisturbed = asdict(train(**scheduled(network(), [])))

    def kill(inputs, generator):
        if steps[-1] == 11:
            raise KeyboardInterrupt
        return inputs

    path, steps = tmp_path / "run.pt", []
    with pytest.raises(KeyboardInterrupt):
        train(
            often(path), transform=kill, guard_every=guard_every, **scheduled(network(), steps)
        )
    context, steps = often(path), []
    history = train(context, guard_every=guard_every, **scheduled(network(), steps))
    assert asdict(history) == undisturbed
    assert steps == list(range(*context.resumed_from, STEPS))

    steps = []
    with pytest.raises(NotFinite, match="step 13"):
        train(guard_every=guard_every, **scheduled(network(Spoil(13)), steps))
    second_look = [] if guard_every == 1 else [13, *range(PER_EPOCH, 13)]
    assert steps == [*range(13), *second_look]


def without_labels(model, batch):
    return {"loss": model(batch.inputs).square().sum()}


@pytest.mark.parametrize("loss", [cross_entropy, without_labels])
def test_a_captured_step_changes_no_number(monkeypatch, loss):
    """Batches of one size are replayed after a warm-up, others are not."""
    model, replays = nn.Linear(4, 2), []

    def record(function):
        """Do what a CUDA graph does: fill the tensors of the first call at every replay."""
        result = function()
        gradients = [p.grad for p in model.parameters()]

        def replay() -> None:
            replays.append(result.copy_(function()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                gradient.copy_(parameter.grad)
                parameter.grad = None

        return result, replay

    monkeypatch.setattr(training, "_captured", record)
    captured = training._Gradients(model, loss, BATCH)
    eager = training._Gradients(model, loss, None)
    for batch in [*blobs().batches(BATCH)] * 2:
        if loss is without_labels:
            batch = batch._replace(labels=None)
        expected = eager(batch), [p.grad.clone() for p in model.parameters()]
        result = captured(batch), [p.grad for p in model.parameters()]
        torch.testing.assert_close(result, expected)
    assert captured.names == eager.names
    assert len(replays) == 2 * (PER_EPOCH - 1) - captured.WARM_UP


def test_a_step_that_cannot_be_captured_runs_uncaptured(monkeypatch):
    def refuse(function):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(training, "_captured", refuse)
    captured = training._Gradients(nn.Linear(4, 2), cross_entropy, BATCH)
    with notified("cannot be captured"):
        for batch in blobs().batches(BATCH):
            assert captured(batch).isfinite().all()


# ------------------------------------------------------------------- randomness is a function


def test_a_permutation_visits_all_and_depends_on_seed_and_epoch_only():
    orders = {}
    for seed in range(3):
        for epoch in range(3):
            orders[tuple(permutation(100, seed, epoch).tolist())] = seed, epoch
    assert len(orders) == 9
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(100))}
    torch.manual_seed(123)
    assert orders[tuple(permutation(100, 1, 2).tolist())] == (1, 2)


def test_augmentation_and_permutations_draw_from_streams_of_their_own():
    """Once step k and epoch k drew from one stream; records of that time can be made again."""
    separate, shared = set(), []
    for step in range(20):
        device = torch.device("cpu")
        generator = training.augmentation(3, step, device)
        separate.add(tuple(torch.randperm(100, generator=generator).tolist()))
        generator = training.augmentation(3, step, device, shared=True)
        shared.append(tuple(torch.randperm(100, generator=generator).tolist()))
    assert shared == [tuple(permutation(100, 3, epoch).tolist()) for epoch in range(20)]
    assert len(separate) == 20
    assert not separate & set(shared)


def transformed(model: nn.Module, seed: int) -> tuple[Tensor, Tensor]:
    """Return the inputs of all batches, and a number that each of their transforms draws."""
    batches, numbers = [], []

    def transform(inputs, generator):
        batches.append(inputs)
        numbers.append(torch.rand((), generator=generator))
        return inputs + 0.1 * torch.randn(inputs.shape, generator=generator)

    train(Context(seed=seed), model=model, transform=transform)
    return torch.cat(batches), torch.stack(numbers)


def test_every_network_sees_the_same_batches_and_each_step_draws_for_itself():
    inputs, numbers = transformed(nn.Linear(4, 2), 0)
    assert len(numbers.unique()) == STEPS
    assert torch.equal(inputs[:EXAMPLES].sort(0).values, blobs().inputs.sort(0).values)
    torch.testing.assert_close(transformed(network(seed=3), 0), (inputs, numbers))
    other_inputs, other_numbers = transformed(nn.Linear(4, 2), 1)
    assert not torch.equal(other_inputs, inputs)
    assert not torch.isin(other_numbers, numbers).any()


def test_seeded_draws_the_same_and_leaves_the_callers_state_alone():
    torch.manual_seed(7)
    state = torch.get_rng_state()
    with seeded(3):
        numbers = torch.randn(4)
    with contextlib.suppress(RuntimeError), seeded(3):
        assert torch.equal(torch.randn(4), numbers)
        raise RuntimeError("an error inside leaves it alone too")
    assert torch.equal(torch.get_rng_state(), state)


# ---------------------------------------------------------------------------------- rehearsals


def test_a_short_epoch_is_the_beginning_of_a_whole_pass():
    """Then comes the beginning of the next one, in an order of its own."""
    short = train(epoch_steps=3)
    whole = train()
    assert len(short.terms["loss"]) == EPOCHS * 3
    assert len(short.epochs["accuracy"]) == EPOCHS
    assert short.terms["loss"][:3] == whole.terms["loss"][:3]
    assert short.terms["loss"][3] != whole.terms["loss"][3]
    assert train(epoch_steps=PER_EPOCH + 1) == whole


@pytest.mark.parametrize("steps", [PER_EPOCH, PER_EPOCH + 3, STEPS + 1])
def test_a_rehearsal_is_the_beginning_of_the_run_and_leaves_its_checkpoint_alone(
    tmp_path, undisturbed, steps
):
    """Its last step is followed by an evaluation, as the last of an epoch is."""
    path = tmp_path / "run.pt"
    path.write_bytes(b"of the whole run")
    history = train(often(path, max_steps=steps))
    for name, curve in undisturbed["terms"].items():
        assert history.terms[name] == curve[:steps]
    accuracies, epochs = history.epochs["accuracy"], steps // PER_EPOCH
    assert len(accuracies) == math.ceil(min(steps, STEPS) / PER_EPOCH)
    assert accuracies[:epochs] == undisturbed["epochs"]["accuracy"][:epochs]
    with pytest.raises(Interrupted):
        train(often(path, max_steps=2, stop=lambda: True))
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"of the whole run"]


# -------------------------------------------------------------------------------- exact resume


def checked(step: int, guard_every: int) -> bool:
    """Return whether losses are checked after so many steps, as at the end of an epoch."""
    return step % guard_every == 0 or step % PER_EPOCH == 0


@pytest.mark.parametrize("guard_every", [1, 5])
@pytest.mark.parametrize("steps", [1, 6, 7, 12])
def test_killed_after_any_step_it_goes_on_to_the_same_end(
    tmp_path, undisturbed, steps, guard_every
):
    """From the last step whose loss was checked."""
    path = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        train(often(path), before_step=kill_after(steps), guard_every=guard_every)
    torch.rand(steps)  # another process has drawn other numbers
    context = often(path)
    assert asdict(train(context, guard_every=guard_every)) == undisturbed
    checks = [step for step in range(1, steps + 1) if checked(step, guard_every)]
    assert context.resumed_from == checks[-1:]
    assert (context.seconds_before > 0) == bool(checks)


@pytest.mark.parametrize(("steps", "guard_every"), [(1, 1), (1, 5), (6, 5), (12, 5)])
def test_asked_to_stop_it_writes_a_checkpoint_at_the_next_check(
    tmp_path, undisturbed, steps, guard_every
):
    """However long it is until the next one is due; and it goes on to the same end."""
    numbers = []
    context = Context(seed=0, checkpoint=tmp_path / "run.pt", checkpoint_seconds=1e9)
    context.stop = lambda: len(numbers) >= steps
    with pytest.raises(Interrupted):
        train(context, before_step=numbers.append, guard_every=guard_every)
    assert len(numbers) == min(k for k in range(steps, STEPS) if checked(k, guard_every))
    context = often(tmp_path / "run.pt")
    assert asdict(train(context, guard_every=guard_every)) == undisturbed
    assert context.resumed_from == [len(numbers)]


def test_a_finished_run_leaves_weights_and_history_and_is_not_run_again(tmp_path, undisturbed):
    trained, second, context = network(), network(seed=1), often(tmp_path / "run.pt")
    train(often(tmp_path / "run.pt"), model=trained)
    assert asdict(train(context, model=second, before_step=kill_after(0))) == undisturbed
    assert context.resumed_from == []
    assert context.seconds_before > 0
    assert_same(second.state_dict(), trained.state_dict())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> bytes:
    """The checkpoint that a run left after nine steps."""
    path = tmp_path_factory.mktemp("checkpoint") / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        train(often(path), before_step=kill_after(9))
    return path.read_bytes()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    weight = torch.load(path, weights_only=True)["model"]["0.weight"]
    content[content.index(weight.numpy().tobytes())] ^= 1
    path.write_bytes(content)
    torch.load(path, weights_only=True)  # whose reader leaves out the checksums of the archive


def put_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


NO_NUMBER = torch.tensor([math.nan])
DAMAGES = {
    "empty": (lambda path: os.truncate(path, 0), ""),
    "half": (lambda path: os.truncate(path, path.stat().st_size // 2), ""),
    "text": (lambda path: path.write_bytes(b"version https://git-lfs\n"), "not a zip file"),
    "a bit flipped": (flip_a_bit, "not what was written"),
    "a pipe": (put_a_pipe, "no regular file"),
    "a folder": (put_a_folder, "no regular file"),
    "code": (lambda path: torch.save({"step": Harm()}, path), "UnpicklingError"),
}
"""What may happen to a checkpoint, and what a run says of it."""
CHANGES = {
    "the last step": ({"step": STEPS}, f"at step {STEPS} of {STEPS}"),
    "a step below zero": ({"step": -5}, "step"),
    "a step too many": ({"step": STEPS + 1, "finished": True}, f"at step {STEPS + 1} of"),
    "finished in words": ({"finished": "no"}, "finished"),
    "more losses than steps": (
        {"terms": {"loss": torch.zeros(28)}},
        f"of 28 steps, not of {STEPS}",
    ),
    "a loss that is NaN": (
        {"terms": {"loss": NO_NUMBER.expand(STEPS)}},
        "a loss before its step is not",
    ),
    "a weight that is NaN": (
        {"model": dict.fromkeys(network().state_dict(), NO_NUMBER)},
        "a weight or a moment",
    ),
    "a best weight that is NaN": (
        {"best": {"0.weight": NO_NUMBER}},
        "a weight or a moment of it is not",
    ),
    "a moment that is NaN": (
        {"optimizer": {"exp_avg": NO_NUMBER}},
        "a weight or a moment of it is not",
    ),
    "seconds below zero": ({"seconds": -100.0}, "seconds"),
    "too many seconds": ({"seconds": 1e308}, "seconds"),
    "taken up below zero": ({"resumed_from": [-3]}, "resumed_from"),
    "taken up in the future": ({"resumed_from": [12]}, "taken up at step 12, and is at 9"),
    "an accuracy in words": ({"epochs": {"accuracy": ["good"]}}, "epochs"),
    "another code": ({"code": "of yesterday"}, "another version of the code"),
    "no model": ({"model": None}, ""),
    "no optimizer": ({"optimizer": None}, ""),
    "no epochs": ({"epochs": None}, ""),
    "no random numbers": ({"random": None}, ""),
    "no seconds": ({"seconds": None}, ""),
}
"""Parts of a checkpoint that no run can have written, and what a run says of them."""


def change(parts: dict, path: Path) -> None:
    torch.save(torch.load(path, weights_only=True) | parts, path)


CASES = dict(DAMAGES)
for name, (parts, message) in CHANGES.items():
    CASES[name] = functools.partial(change, parts), message


@pytest.mark.parametrize(("damage", "message"), CASES.values(), ids=CASES)
def test_a_checkpoint_that_cannot_be_trusted_is_set_aside_whole(
    tmp_path, monkeypatch, checkpoint, undisturbed, damage, message
):
    """The run warns, keeps it out of the way, and ends as if it had not been there."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.pt"
    path.write_bytes(checkpoint)
    damage(path)
    content = path.read_bytes() if path.is_file() else None
    context = Context(seed=0, checkpoint=path, checkpoint_seconds=1e9)
    with notified(rf"run\.pt cannot be used \(.*{message}.*set aside as run\.pt\.damaged-"):
        assert asdict(train(context)) == undisturbed
    assert (context.resumed_from, context.seconds_before) == ([], 0)
    aside, final = sorted(tmp_path.iterdir(), reverse=True)
    assert final == path
    assert content is None or aside.read_bytes() == content
    assert torch.load(path, weights_only=True)["finished"]


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Let the system refuse to write more, as on a full disk; for root too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_cannot_be_written_stops_the_run_and_the_same_run_goes_on(
    tmp_path, checkpoint, undisturbed
):
    path = tmp_path / "run.pt"
    path.write_bytes(checkpoint)
    message = rf"{path} cannot be written: File too large"
    with no_file_longer_than(len(checkpoint) // 2), pytest.raises(UserError, match=message):
        train(often(path))
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == checkpoint
    context = often(path)
    assert asdict(train(context)) == undisturbed
    assert context.resumed_from == [9]


# ----------------------------------------------------------------------------- killed for real

SIGN = experiments("negation_limitation")["sign"]
ARM, BUDGET = {"arm": "em_vector/bias"}, {"points": 300, "epochs": 15, "batch_size": 100}
[TRIAL] = SIGN.trials("smoke", seeds=[2], where=ARM, change=BUDGET)  # of 60 steps


def test_a_trial_whose_record_cannot_be_written_is_not_lost(store):
    folder = store.path(TRIAL).parent
    folder.parent.mkdir(parents=True)
    folder.touch()  # a file where the folder should be
    with pytest.raises(UserError, match=rf"{store.path(TRIAL)} cannot be written: File exists"):
        run_trial(SIGN, TRIAL, store, Context(seed=2))
    folder.unlink()
    assert store.get(TRIAL) is None
    record = run_trial(SIGN, TRIAL, store, Context(seed=2))
    assert record.resumed_from == []  # the training was finished, and its weights were there
    assert store.get(TRIAL).series == record.series


SCRIPT = """
import json, os, signal, sys, torch
from test_training import SIGN, TRIAL, Context, Store, run_trial

folder, kills = sys.argv[1], json.loads(sys.argv[2])
store, writes, move = Store(f"{folder}/killed"), 0, os.replace

def replace(source, place):
    global writes
    writes += 1
    if writes == count and moment == "before it is in place":
        os.kill(os.getpid(), signal.SIGKILL)
    move(source, place)
    if writes == count and moment == "when it is in place":
        os.kill(os.getpid(), signal.SIGKILL)
    if writes == count and moment == "some time later":
        signal.setitimer(signal.ITIMER_REAL, delay)

torch.set_num_threads(1)
run_trial(SIGN, TRIAL, Store(f"{folder}/undisturbed"), Context(seed=2))
os.replace = replace
for moment, count, delay in kills:
    process = os.fork()  # of one that has imported everything
    if process == 0:
        run_trial(SIGN, TRIAL, store, Context(seed=2, checkpoint_seconds=0))
        os._exit(0)
    _, status = os.waitpid(process, 0)
    print(os.waitstatus_to_exitcode(status), store.get(TRIAL) is None)
"""


def test_killed_at_any_moment_a_trial_ends_with_the_same_record(tmp_path):
    """The moment is counted from one of the checkpoints that a run writes.

    The clock of the kernel cannot send SIGKILL. SIGALRM, which Python leaves alone, ends a
    process as abruptly: in the middle of an instruction, with nothing of Python run.
    """
    draw = random.Random("em_vector")
    kills, lines = [], []
    for moment, number in (
        ("before it is in place", signal.SIGKILL),
        ("some time later", signal.SIGALRM),
        ("when it is in place", signal.SIGKILL),
        ("some time later", signal.SIGALRM),
    ):
        # A step takes some milliseconds.
        kills.append([moment, draw.randint(3, 10), draw.uniform(0.0001, 0.02)])
        lines.append(f"{-number} True")
    kills.append(["never", 0, 0])
    command = [sys.executable, "-c", SCRIPT, tmp_path, json.dumps(kills)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    output = subprocess.check_output(command, encoding="utf-8", env=environment)
    assert output.splitlines() == [*lines, "0 False"]

    expected, store = Store(tmp_path / "undisturbed").get(TRIAL), Store(tmp_path / "killed")
    record = store.get(TRIAL)
    assert expected.resumed_from == []
    assert record.metrics == expected.metrics
    assert record.series == expected.series
    assert record.exit == "ok"
    assert len(record.resumed_from) == 4
    assert record.resumed_from == sorted(set(record.resumed_from))
    assert all("checkout" in problem for problem in review(store).problems)


# ----------------------------------------------------------------------------------- NaN guard


class Spoil(nn.Module):
    """Puts a NaN, from step ``first`` on, into what passes or the gradient of its offset."""

    def __init__(self, first: int, gradient: bool = False):
        super().__init__()
        self.first, self.gradient = first, gradient
        self.register_buffer("step", torch.tensor(0))  # which goes back in time with the state
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        self.step += self.training
        if self.step < self.first:
            return x + self.offset
        return x + (self.offset * 0).abs().sqrt() if self.gradient else x * torch.nan


@pytest.mark.parametrize("guard_every", [1, 2, 100])
@pytest.mark.parametrize("step", [1, PER_EPOCH, PER_EPOCH + 4])
def test_a_nan_is_traced_to_its_step_and_layer(step, guard_every):
    message = rf"^step {step}: the output of 1 \(Spoil\) is not finite$"
    with pytest.raises(NotFinite, match=message):
        train(None, Spoil(step), guard_every=guard_every)


def test_a_nan_in_a_gradient_is_traced_to_its_parameter():
    with pytest.raises(NotFinite, match=r"^step 11: the gradient of 1\.offset is not finite$"):
        train(None, Spoil(11, gradient=True), guard_every=7)


def test_a_loss_that_is_not_finite_is_enough():
    def infinite(model, batch):
        return {"loss": torch.inf + 0 * sum(p.sum() for p in model.parameters())}

    with pytest.raises(NotFinite, match=r"^step 1: the loss is not finite$"):
        train(loss=infinite)


def test_a_spoilt_state_is_never_the_one_to_go_on_from(tmp_path):
    """A run that is killed between a NaN and the next check still names the step of the NaN."""
    context = often(tmp_path / "run.pt")
    with pytest.raises(KeyboardInterrupt):
        train(context, Spoil(3), guard_every=7, before_step=kill_after(5))
    with pytest.raises(NotFinite, match=r"^step 3: the output of 1 \(Spoil\)"):
        train(context, Spoil(3), guard_every=7)


# ------------------------------------------------------------------------------ stopping early


def stopping(errors: list[float], keep: str, weights: list) -> dict:
    """Return options of a run whose errors after each epoch are these.

    ``weights`` gets those of every epoch.
    """

    def evaluate(model: nn.Module) -> dict[str, float]:
        weights.append({name: t.clone() for name, t in model.state_dict().items()})
        return {"error": errors[len(weights) - 1]}

    return dict(evaluate=evaluate, patience=Patience("error", 2, keep), epochs=len(errors))


@pytest.mark.parametrize(
    ("errors", "keep", "epochs", "epoch"),
    [
        ([5, 3, 3, 3, 1], "best", 4, 2),
        ([5, 3, 4, 4, 1], "last", 4, 4),
        ([5, 3, 4], "best", 3, 2),
    ],
)
def test_it_stops_when_patience_ends_and_has_the_weights_to_keep(
    tmp_path, errors, keep, epochs, epoch
):
    """Also if it is killed in its last epoch, and goes on."""
    model, weights = network(), []
    history = train(model=model, **stopping(errors, keep, weights))
    assert len(weights) == epochs
    assert history.epochs["error"] == errors[:epochs]
    assert len(history.terms["loss"]) == epochs * PER_EPOCH
    assert_same(model.state_dict(), weights[epoch - 1])

    path, second, weights = tmp_path / "run.pt", network(), []
    kill = kill_after(epochs * PER_EPOCH - 2)
    with pytest.raises(KeyboardInterrupt):
        train(often(path), before_step=kill, **stopping(errors, keep, weights))
    assert train(often(path), model=second, **stopping(errors, keep, weights)) == history
    assert_same(second.state_dict(), model.state_dict())


def test_patience_needs_a_metric_that_is_measured():
    patience = Patience("accurcy", 1)
    with pytest.raises(ValueError, match="no 'accurcy', but accuracy"):
        train(patience=patience)
    with pytest.raises(ValueError, match="needs evaluate"):
        train(patience=patience, evaluate=None)


def test_a_metric_that_is_no_number_is_the_worst():
    options = stopping([math.nan, 5.0, 6.0, 7.0, 1.0], "last", [])
    assert len(train(**options).epochs["error"]) == 4


def test_patience_waits_for_an_accuracy_to_rise():
    accuracies, weights = [0.1, 0.7, 0.6, 0.7, 0.9], []
    options = stopping(accuracies, "best", weights)
    options["patience"] = options["patience"]._replace(better="higher")
    model = network()
    history = train(model=model, **options)
    assert history.epochs["error"] == [0.1, 0.7, 0.6, 0.7], "two epochs without a rise"
    assert_same(model.state_dict(), weights[1])

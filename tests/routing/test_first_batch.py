"""A routing starts from its first batch once: in training, unless weights are loaded."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress

import pytest
import torch

from capslib.errors import Interrupted
from capslib.layers import ConvCapsules, DenseCapsules
from capslib.losses import margin_loss
from capslib.networks import create_network
from capslib.networks.em_routing import PRESETS
from capslib.routing import ROUTINGS, Routing, module, start_on_first_batch
from capslib.training import Context, Examples, fit

IMAGES = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
STARTS = [name for name in ROUTINGS if ROUTINGS[name].start_from is not Routing.start_from]
each_start = pytest.mark.parametrize("name", STARTS)


def network_of(name: str):
    torch.manual_seed(0)
    return create_network("capsnet", (1, 8, 8), 3, routing=name)


def state(network) -> list:
    values = network.classes.routing.state_dict().values()
    return [value.clone() for value in values]


def moved(network, before: list) -> bool:
    pairs = zip(state(network), before, strict=True)
    return not all(torch.equal(*pair) for pair in pairs)


@each_start
def test_it_starts_at_the_first_batch_of_a_training_and_only_then(name):
    network = network_of(name)
    before = state(network)
    network.eval()(IMAGES)
    assert not moved(network, before)
    network.train()(IMAGES)
    assert moved(network, before)
    started = state(network)
    network(0.1 * IMAGES)
    assert not moved(network, started)


@each_start
def test_activations_tell_examples_apart_after_the_start(name):
    network = network_of(name)
    activation = network(IMAGES).activation
    assert activation.std(dim=0).mean() > 0.03
    assert 0.2 < activation.mean() < 0.8


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("network", ["capsnet", "matrix_capsnet", "consensus_capsnet"])
def test_a_first_batch_under_autocast_starts_every_routing_in_float32(network, name):
    network = create_network(network, (1, 20, 20), 3, routing=name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        activation = network(torch.rand(4, 1, 20, 20)).activation
    assert module.waiting_routings(network) == []
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    activation.float().square().sum().backward()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", sorted(set(ROUTINGS) - set(STARTS)))
def test_other_routings_stay_as_they_are_drawn(name):
    network = network_of(name)
    before = state(network)
    network(IMAGES)
    assert not moved(network, before)


@each_start
def test_loaded_weights_take_the_place_of_the_start(name):
    network, loaded = network_of(name), network_of(name)
    network(IMAGES)
    loaded.load_state_dict(network.state_dict())
    before = state(loaded)
    loaded.train()(0.1 * IMAGES)
    assert not moved(loaded, before)


@each_start
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_starts_by_itself(name, copied):
    network = network_of(name)
    twin, before = copied(network), state(network)
    twin(IMAGES)
    assert moved(twin, before)
    assert not moved(network, before)
    network(IMAGES)
    assert not moved(network, state(twin))


@each_start
def test_a_batch_of_equal_votes_starts_nothing_and_the_next_one_does(name):
    network = network_of(name)
    before = state(network)
    for batch in (IMAGES[:1], torch.zeros_like(IMAGES)):
        assert network(batch).activation.isfinite().all()
        assert not moved(network, before)
    network(IMAGES)
    assert moved(network, before)


def test_a_layer_of_many_votes_starts_from_several_examples(monkeypatch):
    monkeypatch.setattr(module, "FIRST_VOTES", 1)
    network = network_of("em")
    activation = network(IMAGES).activation
    assert activation.std(dim=0).mean() > 0.03


@each_start
def test_weights_of_other_layers_leave_the_start(name):
    network = network_of(name)
    others = {}
    for key, value in network.state_dict().items():
        if "routing" not in key:
            others[key] = value
    network.load_state_dict(others, strict=False)
    before = state(network)
    network(IMAGES)
    assert moved(network, before)


@each_start
@pytest.mark.parametrize("cause", ["damaged", "other weights", "other code"])
def test_a_training_whose_checkpoint_is_set_aside_is_a_new_one(name, cause, tmp_path):
    def loss(network, batch):
        return {"loss": margin_loss(network(batch.inputs).activation, batch.labels)}

    def trained(file, **options) -> torch.nn.Module:
        network = network_of(name)
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        context = Context(seed=0, checkpoint=file, **options)
        examples = Examples(IMAGES, torch.arange(20) % 3)
        with suppress(Interrupted):
            fit(
                network,
                examples,
                loss=loss,
                optimizer=optimizer,
                epochs=2,
                batch_size=10,
                context=context,
            )
        return network

    file = tmp_path / "run.pt"
    trained(file, stop=lambda: True, code="old")
    left = torch.load(file)
    if cause == "damaged":
        file.write_bytes(b"damaged")
    elif cause == "other weights":
        left["model"]["classes.weight"] = torch.zeros(2, 2)
        torch.save(left, file)
    code = "new" if cause == "other code" else "old"
    again, new = trained(file, code=code), trained(None)
    assert list(tmp_path.glob("run.pt.damaged-*"))
    weights, expected = dict(again.state_dict()), dict(new.state_dict())
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


def test_the_start_is_that_of_the_layer():
    torch.manual_seed(0)
    layer = DenseCapsules(6, 3, 4, 5, routing="em")
    twin = copy.deepcopy(layer)
    pose, activation = torch.randn(9, 6, 4), torch.rand(9, 6)
    layer.routing.start_at_half(layer.votes(pose), activation)
    result = start_on_first_batch(start_on_first_batch(twin))(pose, activation)
    torch.testing.assert_close(tuple(result), tuple(layer(pose, activation)))


@pytest.mark.parametrize("name", ["em", "similarity"])
def test_windows_start_too_and_from_as_many_examples_as_memory_allows(name, monkeypatch):
    monkeypatch.setattr(module, "FIRST_VOTES", 1)
    layer = start_on_first_batch(ConvCapsules(2, 3, kernel=3, routing=name))
    pose, activation = torch.randn(4, 5, 5, 2, 4, 4), torch.rand(4, 5, 5, 2)
    assert layer(pose, activation).activation.isfinite().all()


def test_without_gradients_the_start_is_the_same():
    network, twin = network_of("em"), network_of("em")
    network(IMAGES)
    with torch.no_grad():
        twin(IMAGES)
    assert not moved(twin, state(network))


def test_a_start_that_is_asked_for_stays():
    network = create_network("capsnet", (1, 8, 8), 3, routing="similarity", start="steep")
    before = state(network)
    network(IMAGES)
    assert not moved(network, before)


@pytest.mark.parametrize(
    "constant", [{"beta": (0.0, 0.0)}, {"beta_scale": (1, 1)}, {"inverse_temperature": 0.01}]
)
@pytest.mark.parametrize("name", ["em", "em_vector"])
def test_constants_that_are_given_stay(name, constant):
    torch.manual_seed(0)
    network = create_network("capsnet", (1, 8, 8), 3, routing=name, **constant)
    before = state(network)
    network(IMAGES)
    assert not moved(network, before)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_but_the_calibrated_one_keeps_its_constants(preset):
    network = create_network("matrix_capsnet", (1, 20, 20), 3, preset=preset)
    layers = (network.capsules1, network.capsules2, network.classes)
    before = [layer.routing.inverse_temperature for layer in layers]
    network(torch.rand(16, 1, 20, 20))
    after = [layer.routing.inverse_temperature for layer in layers]
    assert (before == after) == (preset != "calibrated")


def test_equal_votes_give_finite_starts():
    for name in STARTS:
        layer = start_on_first_batch(DenseCapsules(4, 2, 3, 5, routing=name))
        result = layer(torch.zeros(6, 4, 3), torch.zeros(6, 4))
        assert all(tensor.isfinite().all() for tensor in result), name

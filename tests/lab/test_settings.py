"""Settings: what is valid, and what is said about what is not."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from capslib.errors import UserError
from capslib.lab import settings as module
from capslib.lab.settings import Settings, check_device, parse


def test_defaults_are_smoke_on_the_cpu():
    settings = Settings.check({})
    assert settings.scale == "smoke"
    assert settings.device == "cpu"
    assert settings.seeds is None, "those of the experiment"
    assert settings.workers == 0, "as many as fit"
    assert settings.threads == 1
    assert settings.scheduler is None
    assert settings.data_dir is None
    assert settings.results_dir is None


BAD_PARAMETERS = {
    "scal=cpu": "Unknown parameter 'scal'. Did you mean 'scale'?",
    "zzz=1": "Unknown parameter 'zzz'. Valid: scale, device, seeds",
    "scale=papr": "Unknown scale 'papr'. Did you mean 'paper'?",
    "scale=None": "Unknown scale 'None'",
    "scale=3": "Valid: smoke, cpu, paper",
    "device=gpu": "Unknown device 'gpu'. A GPU of NVIDIA is cuda, or cuda:0",
    "device=cuda:x": "Did you mean 'cuda:0'?",
    "device=cuda:٣": "Did you mean 'cuda:0'?",
    "device=cpu:3": "Did you mean 'cpu'?",
    "seeds=0": "Parameter seeds = 0",
    "seeds=1.5": "Parameter seeds = 1.5",
    "seeds=some": "Parameter seeds = 'some'",
    "seeds=true": "Parameter seeds = True",
    "seeds=100000000": "less than or equal to 1000",
    "workers=-1": "Parameter workers = -1",
    "threads=0": "Parameter threads = 0",
    "results_dir=": "'' names no folder: give one to --data-dir, --results-dir or its variable",
    "results_dir=3": "Parameter results_dir = 3",
    "data_dir=a\0b": "names no folder",
    "scheduler=localhost": "tcp://host:8786",
    "scheduler=tcp://127.0.0.1": "tcp://host:8786",
    "scheduler=inproc://127.0.0.1/1/2": "tcp://host:8786",
}


@pytest.mark.parametrize("pair", BAD_PARAMETERS)
def test_bad_parameters_are_answered_with_the_nearest_good_one(pair):
    parameters = parse([pair])
    with pytest.raises(UserError) as error:
        Settings.check(parameters)
    message = str(error.value)
    assert BAD_PARAMETERS[pair] in message
    assert "\n" not in message


@pytest.mark.parametrize("seconds", ["abc", "", "-1", "nan", "inf", 400 * "9"])
def test_the_time_between_checkpoints_has_to_be_a_number_of_seconds(monkeypatch, seconds):
    name = "CAPSLIB_CHECKPOINT_SECONDS"
    monkeypatch.setenv(name, seconds)
    message = rf"^\${name} is '{seconds}'; it should be a number of"
    with pytest.raises(UserError, match=message):
        Settings.check({})


# ------------------------------------------------------------------------------------------
# devices


@pytest.mark.parametrize(
    ("devices", "name", "message"),
    [
        (0, "cuda", "no CUDA device found"),
        (2, "cuda:2", "cuda:0 to cuda:1 found"),
        (2, "mps", "only Apple machines"),
    ],
)
def test_a_device_that_is_not_there_is_refused(monkeypatch, devices, name, message):
    monkeypatch.setattr(module, "cuda_devices", lambda: devices)
    monkeypatch.setattr(module.sys, "platform", "linux")
    with pytest.raises(UserError, match=message):
        check_device(name)


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1", "mps"])
def test_a_device_that_is_there_may_be_used(monkeypatch, name):
    monkeypatch.setattr(module, "cuda_devices", lambda: 2)
    monkeypatch.setattr(module, "built_for_cuda", lambda: True)
    monkeypatch.setattr(module.sys, "platform", "darwin")
    check_device(name)


@pytest.mark.parametrize(
    ("line", "built"),
    [("cuda: Optional[str] = None", False), ("cuda = None", False), ("cuda = '12.8'", True)],
)
def test_a_torch_without_cuda_is_named_where_there_is_a_driver(
    tmp_path, monkeypatch, line, built
):
    (tmp_path / "version.py").write_text(f"debug = False\n{line}\nhip = None\n")
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(module, "cuda_devices", lambda: 2)
    assert module.built_for_cuda() is built
    if not built:
        with pytest.raises(UserError, match=r"built without CUDA.*Install one with CUDA"):
            check_device("cuda:1")


class Driver:
    """A driver of three devices, which starts with a status."""

    def __init__(self, status: int):
        self.status = status

    def cuInit(self, flags):
        return self.status

    def cuDeviceGetCount(self, pointer):
        pointer._obj.value = 3
        return 0


@pytest.mark.parametrize(
    ("status", "visible", "count"), [(0, None, 3), (100, None, 0), (0, "", 0), (0, "-1", 0)]
)
def test_devices_are_those_that_the_driver_shows(monkeypatch, status, visible, count):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(status))
    assert module.cuda_devices() == count


def test_without_a_driver_there_is_no_device(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert module.cuda_devices() == 0


# ------------------------------------------------------------------------------------------
# name=value


VALUES = {
    "0.5": 0.5,
    "true": True,
    "False": False,
    "None": None,
    "null": None,
    "cpu": "cpu",
    "[1, 2]": [1, 2],
    "x=y": "x=y",
    '"1"': "1",
    "": "",
}


@pytest.mark.parametrize("text", VALUES)
def test_a_value_is_json_where_it_is_and_else_text(text):
    parameters = parse([f"name={text}"])
    assert parameters == {"name": VALUES[text]}


@pytest.mark.parametrize("pair", ["scale", "=cpu", ""])
def test_a_pair_without_a_name_or_a_sign_is_refused(pair):
    with pytest.raises(UserError, match="should look like name=value"):
        parse([pair])


def test_a_name_has_one_value():
    with pytest.raises(UserError, match="Field 'seed' is given twice"):
        parse(["seed=0", "data=mnist", "seed=1"], "field")

"""Settings: what is valid, and what is said about what is not."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from capslib.errors import UserError, unknown
from capslib.lab import settings as module
from capslib.lab.settings import Settings, check_device, parse


def test_defaults_are_smoke_on_the_cpu():
    settings = Settings.check()
    assert next(iter(Settings.model_fields)) == "scale"
    assert settings == Settings(
        scale="smoke",
        device="cpu",
        seeds=None,
        workers=0,
        threads=1,
        scheduler=None,
        data_dir=None,
        results_dir=None,
    )


def test_what_is_given_is_kept(tmp_path):
    settings = Settings.check(
        scale="paper",
        seeds=5,
        workers=2,
        scheduler="tcp://10.0.0.1:8786",
        data_dir=str(tmp_path),
    )
    assert (settings.scale, settings.seeds, settings.workers) == ("paper", 5, 2)
    assert settings.data_dir == Path(tmp_path)
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"scal": "cpu"}, "Unknown parameter 'scal'. Did you mean 'scale'?"),
        ({"result_dir": "x"}, "Did you mean 'results_dir'?"),
        ({"zzz": 1}, "Valid: scale, device, seeds"),
        ({"scale": "papr"}, "Unknown scale 'papr'. Did you mean 'paper'?"),
        ({"scale": None}, "Unknown scale 'None'"),
        ({"scale": 3}, "Valid: smoke, cpu, paper"),
        ({"device": "gpu"}, "Unknown device 'gpu'. A GPU of NVIDIA is cuda, or cuda:0"),
        ({"device": "cudda"}, "Did you mean 'cuda'?"),
        ({"device": "cuda:x"}, "Did you mean 'cuda:0'?"),
        ({"device": "cuda:٣"}, "Did you mean 'cuda:0'?"),
        ({"device": "cpu:3"}, "Unknown device 'cpu:3'. Did you mean 'cpu'?"),
        ({"seeds": 0}, "Parameter seeds = 0"),
        ({"seeds": "some"}, "Parameter seeds = 'some'"),
        ({"seeds": 1.5}, "Parameter seeds = 1.5"),
        ({"seeds": True}, "Parameter seeds = True"),
        ({"seeds": 100_000_000}, "less than or equal to 1000"),
        ({"workers": True}, "Parameter workers = True"),
        ({"workers": -1}, "Parameter workers = -1"),
        ({"threads": 0}, "Parameter threads = 0"),
        ({"threads": True}, "Parameter threads = True"),
        (
            {"results_dir": ""},
            "'' names no folder: give one to --data-dir, --results-dir or its variable, or",
        ),
        ({"data_dir": "a\0b"}, "names no folder"),
        ({"results_dir": 3}, "Parameter results_dir = 3"),
        ({"scheduler": "localhost"}, "tcp://host:8786"),
        ({"scheduler": "tcp://127.0.0.1"}, "tcp://host:8786"),
        ({"scheduler": "inproc://127.0.0.1/1/2"}, "tcp://host:8786"),
    ],
)
def test_bad_parameters_are_answered_with_the_nearest_good_one(parameters, message):
    with pytest.raises(UserError) as error:
        Settings.check(**parameters)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("seconds", ["abc", "", "-1", "nan", "inf", 400 * "9"])
def test_the_time_between_checkpoints_has_to_be_a_number_of_seconds(monkeypatch, seconds):
    monkeypatch.setenv("CAPSLIB_CHECKPOINT_SECONDS", seconds)
    with pytest.raises(
        UserError,
        match=rf"^\$CAPSLIB_CHECKPOINT_SECONDS is '{seconds}'; it should be a number of",
    ):
        Settings.check()


def test_a_name_far_from_all_others_gets_no_suggestion():
    assert "Did you mean" not in str(unknown("paper", "qqqqqq", ["em_routing"]))


# ------------------------------------------------------------------------------------------
# devices


@pytest.mark.parametrize(
    ("devices", "name", "says"),
    [
        (0, "cuda", "no CUDA device found"),
        (0, "cuda:0", "no CUDA device found"),
        (2, "cuda:2", "cuda:0 to cuda:1 found"),
        (2, "cuda:1", ""),
        (1, "cuda", ""),
        (0, "cpu", ""),
    ],
)
def test_a_cuda_device_has_to_be_there(monkeypatch, devices, name, says):
    monkeypatch.setattr(module, "cuda_devices", lambda: devices)
    if not says:
        return check_device(name)
    with pytest.raises(UserError, match=says):
        check_device(name)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_mps_is_on_apple_machines(monkeypatch, platform):
    monkeypatch.setattr(module.sys, "platform", platform)
    if platform == "darwin":
        return check_device("mps")
    with pytest.raises(UserError, match="only Apple machines"):
        check_device("mps")


@pytest.mark.parametrize("visible", ["", "-1"])
def test_devices_that_are_hidden_are_not_there(monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("the driver was asked"))
    assert module.cuda_devices() == 0


def test_the_driver_is_believed_only_if_it_starts(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    class Driver:
        def __init__(self, status: int):
            self.status = status

        def cuInit(self, flags):
            return self.status

        def cuDeviceGetCount(self, pointer):
            pointer._obj.value = 3
            return 0

    for status, count in ((0, 3), (100, 0)):
        monkeypatch.setattr(ctypes, "CDLL", lambda name, status=status: Driver(status))
        assert module.cuda_devices() == count

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert module.cuda_devices() == 0


# ------------------------------------------------------------------------------------------
# name=value


def test_values_are_json_where_they_are_and_else_text():
    pairs = [
        "a=1",
        "b=0.5",
        "c=true",
        "d=False",
        "e=null",
        "f=None",
        "g=cpu",
        "h=[1, 2]",
        "i=x=y",
        "j=",
        "k=tcp://h:1",
        'l="1"',
    ]
    assert parse(pairs) == dict(
        a=1,
        b=0.5,
        c=True,
        d=False,
        e=None,
        f=None,
        g="cpu",
        h=[1, 2],
        i="x=y",
        j="",
        k="tcp://h:1",
        l="1",
    )


@pytest.mark.parametrize("pair", ["scale", "=cpu", ""])
def test_a_pair_without_a_name_or_a_sign_is_refused(pair):
    with pytest.raises(UserError, match="should look like name=value"):
        parse([pair])


def test_a_name_has_one_value():
    with pytest.raises(UserError, match="Field 'seed' is given twice"):
        parse(["seed=0", "data=mnist", "seed=1"], "field")

"""Where and how to run: the parameters of every notebook and of the command line.

They are checked before anything starts, without torch.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from capslib.config import Model
from capslib.errors import UserError, check_name, unknown
from capslib.files import as_folder
from capslib.papers.experiment import SCALES, Scale

Folder = Annotated[
    Path, BeforeValidator(lambda name: str(as_folder(name)) if isinstance(name, str) else name)
]


class Settings(Model):
    """The parameters of a notebook, in the order of its ``parameters`` cell."""

    scale: Scale = Field(
        "smoke",
        description=(
            "smoke: stand-in data, seconds; cpu: real data, reduced; paper: the paper's setting"
        ),
    )
    device: str = Field("cpu", description="cpu, cuda, cuda:0 …, or mps")
    seeds: int | None = Field(
        None,
        ge=1,
        le=1000,
        strict=True,
        description="replicates from seed 0 on; default: the experiment's",
    )
    workers: int = Field(
        0,
        ge=0,
        le=1024,
        strict=True,
        description="processes; 0: as many as fit; 1: this one runs the trials",
    )
    threads: int = Field(
        1,
        ge=1,
        le=1024,
        strict=True,
        description="threads of each trial on the CPU; their number changes the last digits",
    )
    scheduler: str | None = Field(
        None, description="address of a dask scheduler, tcp://host:port"
    )
    data_dir: Folder | None = Field(
        None, description="prepared data sets; default: $CAPSLIB_DATA, else the user's cache"
    )
    results_dir: Folder | None = Field(
        None,
        description="records; default: $CAPSLIB_RESULTS, else results/ of the book",
    )

    @field_validator("scheduler")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value and not re.fullmatch(r"[a-z]+://\S+:[0-9]{1,5}", value):
            raise ValueError("a scheduler's address looks like tcp://host:8786")
        return value or None

    @classmethod
    def check(cls, parameters: Mapping[str, Any], *, elsewhere: bool = False) -> Settings:
        """Return the settings with these parameters.

        With ``elsewhere`` a machine without any CUDA device need not have the one that is
        named: a plan may be for another machine. Raises UserError, which names the nearest
        valid parameter, scale or device.
        """
        for name in parameters:
            check_name("parameter", name, cls.model_fields)
        check_name("scale", str(parameters.get("scale", "smoke")), SCALES)
        try:
            settings = cls.model_validate(parameters)
        except ValidationError as error:
            first = error.errors()[0]
            value = f"{first['loc'][0]} = {first['input']!r}"
            raise UserError(f"Parameter {value}: {first['msg']}.") from None
        planned = elsewhere and cuda_devices() == 0
        check_device(settings.device, here=settings.scheduler is None and not planned)
        seconds = os.environ.get("CAPSLIB_CHECKPOINT_SECONDS", "60")
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?", seconds):
            raise UserError(
                f"$CAPSLIB_CHECKPOINT_SECONDS is {seconds!r}; "
                "it should be a number of seconds, such as 60."
            )
        return settings


def check_device(device: str, *, here: bool = True) -> None:
    """Raise UserError for a device that nobody has, or, with ``here``, that this machine lacks.

    Asks the driver, and reads a file of torch: both are faster than importing torch.
    """
    match = re.fullmatch(r"(cpu|mps|cuda)|cuda:([0-9]{1,4})", device)
    if match is None and "gpu" in device.lower():
        raise UserError(
            f"Unknown device {device!r}. "
            "A GPU of NVIDIA is cuda, or cuda:0; one of Apple is mps."
        )
    if match is None:
        raise unknown("device", device, ("cpu", "cuda", "cuda:0", "mps"))
    if not here or device == "cpu":
        return
    if device == "mps":
        if sys.platform != "darwin":
            raise UserError(
                "There is no mps device here: only Apple machines have one. Use device cpu."
            )
        return
    count = cuda_devices()
    if int(match[2] or 0) >= count:
        devices = f"cuda:0 to cuda:{count - 1}" if count else "no CUDA device"
        raise UserError(
            f"There is no {device} here: {devices} found. "
            "Use device cpu, or a machine with an NVIDIA driver."
        )
    if not built_for_cuda():
        raise UserError(
            f"The PyTorch here was built without CUDA, so it cannot use {device}. "
            "Install one with CUDA, as https://pytorch.org/get-started says, or use device cpu."
        )


def built_for_cuda() -> bool:
    """Return whether the PyTorch here was built for CUDA, as far as its files tell."""
    version = Path(importlib.util.find_spec("torch").origin).with_name("version.py")
    if not version.exists():
        return True
    return not re.search(r"^cuda\b.*= None$", version.read_text(encoding="utf-8"), re.MULTILINE)


def cuda_devices() -> int:
    """Return the number of CUDA devices that a process started here would see."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return 0
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    ready = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if ready else 0


def parse(pairs: list[str], noun: str = "parameter") -> dict[str, Any]:
    """Return ``["scale=cpu", "seeds=3"]`` as a mapping.

    A value that is JSON is read as JSON, any other as text. Raises UserError, which calls a
    pair a ``noun``, for one without a name, or with a name that is given twice.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UserError(f"{noun.capitalize()} {pair!r} should look like name=value.")
        if name in values:
            raise UserError(f"{noun.capitalize()} {name!r} is given twice: give it one value.")
        try:
            values[name] = _value(text)
        except (ValueError, RecursionError):
            problem = "its value is too long, too deep, or no Unicode text"
            raise UserError(f"{noun.capitalize()} {name!r}: {problem}.") from None
    return values


def _value(text: str) -> Any:
    """Return what JSON makes of a text, or the text itself.

    Raises ValueError or RecursionError for what cannot be a value.
    """
    words = {"True": "true", "False": "false", "None": "null"}
    try:
        value = json.loads(words.get(text, text))
    except json.JSONDecodeError:
        value = text
    # A UnicodeError, for half of a surrogate pair, is a ValueError.
    json.dumps(value, ensure_ascii=False).encode()
    return value

"""Where and how to run: the parameters of every notebook and of the command line, checked before anything starts, without torch."""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from capslib.config import Model
from capslib.errors import UserError, check_name, unknown
from capslib.files import folder
from capslib.papers.experiment import SCALES, Scale

Folder = Annotated[
    Path, BeforeValidator(lambda name: str(folder(name)) if isinstance(name, str) else name)
]


class Settings(Model):
    """The parameters of a notebook, in the order of its ``parameters`` cell."""

    scale: Scale = Field(
        "smoke",
        description="smoke: stand-in data, seconds; cpu: real data, reduced; paper: the paper's setting",
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
        None, description="records; default: $CAPSLIB_RESULTS, else results/ of the book"
    )

    @field_validator("scheduler")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value and not re.fullmatch(r"[a-z]+://\S+:[0-9]{1,5}", value):
            raise ValueError("a scheduler's address looks like tcp://host:8786")
        return value or None

    @classmethod
    def check(cls, *, elsewhere: bool = False, **parameters: Any) -> Settings:
        """Validate parameters. Raises :class:`UserError`, which names the nearest valid parameter, scale or device.

        With ``elsewhere`` a machine without any CUDA device need not have the one that is named: a plan may be for another machine.
        """
        for name in parameters:
            check_name("parameter", name, cls.model_fields)
        check_name("scale", str(parameters.get("scale", "smoke")), SCALES)
        try:
            settings = cls.model_validate(parameters)
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(
                f"Parameter {first['loc'][0]} = {first['input']!r}: {first['msg']}."
            ) from None
        check_device(
            settings.device,
            here=settings.scheduler is None and not (elsewhere and cuda_devices() == 0),
        )
        wait = os.environ.get("CAPSLIB_CHECKPOINT_SECONDS", "60")
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?", wait):
            raise UserError(
                f"$CAPSLIB_CHECKPOINT_SECONDS is {wait!r}; it should be a number of seconds, such as 60."
            )
        return settings


def check_device(device: str, *, here: bool = True) -> None:
    """Raise :class:`UserError` for a device that this machine lacks, or, with ``here=False``, that no machine has.

    Asks the driver, which answers faster than torch.
    """
    match = re.fullmatch(r"(cpu|mps|cuda(?::([0-9]{1,4}))?)", device)
    if match is None:
        if "gpu" in device.lower():
            raise UserError(
                f"Unknown device {device!r}. A GPU of NVIDIA is cuda, or cuda:0; one of Apple is mps."
            )
        raise unknown("device", device, ("cpu", "cuda", "cuda:0", "mps"))
    kind, index = match[1].partition(":")[0], int(match[2] or 0)
    if not here:
        return
    if kind == "cuda" and index >= (count := cuda_devices()):
        there = f"cuda:0 to cuda:{count - 1}" if count else "no CUDA device"
        raise UserError(
            f"There is no {device} here: {there} found. Use device cpu, or a machine with an NVIDIA driver."
        )
    if kind == "mps" and sys.platform != "darwin":
        raise UserError(
            "There is no mps device here: only Apple machines have one. Use device cpu."
        )


def cuda_devices() -> int:
    """The number of CUDA devices that a process started here would see."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return 0
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    ready = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if ready else 0


def parse(pairs: list[str], what: str = "parameter") -> dict[str, Any]:
    """Turn ``["scale=cpu", "seeds=3"]`` into a mapping. A value that is JSON is read as JSON, any other as text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UserError(f"{what.capitalize()} {pair!r} should look like name=value.")
        if name in values:
            raise UserError(f"{what.capitalize()} {name!r} is given twice: give it one value.")
        try:
            values[name] = _value(text)
        except (ValueError, RecursionError):
            raise UserError(
                f"{what.capitalize()} {name!r}: its value is too long, too deep, or no Unicode text."
            ) from None
    return values


def _value(text: str) -> Any:
    """Return what JSON makes of a text, or the text itself. Raises ValueError or RecursionError for what cannot be a value."""
    try:
        value = json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except json.JSONDecodeError:
        value = text
    json.dumps(
        value, ensure_ascii=False
    ).encode()  # a UnicodeError for half of a surrogate pair
    return value

"""The peak of a process's memory, and memory that a step finds again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from capslib.errors import UserError
from capslib.lab.memory import PeakMemory


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_peak_memory_is_known_without_the_resource_module(monkeypatch, platform):
    """Windows has none, and on a Mac it counts in another unit."""
    assert psutil  # it asks for the platform once, when it is imported
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setitem(sys.modules, "resource", None)  # an import of it raises
    with PeakMemory("cpu") as memory:
        pass
    assert 2**20 < memory.bytes < 2**45


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_kernel_that_keeps_no_peak_costs_no_finished_trial(monkeypatch):
    """The /proc/self/status of gVisor has none."""
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "VmRSS:\t    1024 kB\n")
    with PeakMemory("cpu") as memory:
        pass
    assert 2**20 < memory.bytes < 2**45


def test_cuda_starts_before_its_count_is_set_back(monkeypatch):
    """A device with a number had no count before, and every trial on it failed."""
    calls = []
    for name in ("synchronize", "reset_peak_memory_stats", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda *call, name=name: calls.append(name))
    with PeakMemory("cuda:1"):
        pass
    assert calls == ["synchronize", "reset_peak_memory_stats", "max_memory_allocated"]


@pytest.mark.parametrize(
    "error",
    [AssertionError("Torch not compiled with CUDA"), RuntimeError("CUDA error: full\nmore")],
)
def test_a_device_that_torch_cannot_use_is_a_user_error(monkeypatch, error):
    def fail(device):
        raise error

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    message = f"^PyTorch cannot use cuda:1: {str(error).splitlines()[0]}. Free memory of the"
    with pytest.raises(UserError, match=message), PeakMemory("cuda:1"):
        pass


STEPS = """
import resource, torch
from capslib.lab.memory import PeakMemory, keep_memory

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

"""The memory of a process and of a card: its peak, and how glibc keeps it."""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from pathlib import Path
from typing import Self

from capslib.errors import UserError


def keep_memory() -> None:
    """Have glibc keep freed memory for the rest of this process.

    By default glibc returns the large blocks of a training step to the system, and in a dask
    worker the small ones, too. Every step then faults its pages in again, and a step of an LSTM
    routing takes 1.1 times as long, in a dask worker 2.8 times. What is free before the first
    step is returned. Other C libraries stay as they are.
    """
    # AttributeError: musl or a Mac. OSError: no dynamic linker. TypeError: Windows.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        glibc = ctypes.CDLL(None)
        glibc.malloc_trim(0)
        glibc.mallopt(-4, 0)  # M_MMAP_MAX
        glibc.mallopt(-1, -1)  # M_TRIM_THRESHOLD
        glibc.mallopt(-2, 2**26)  # M_TOP_PAD


def start_cuda(device: str) -> None:
    """Start CUDA in this process, on a device.

    Raises UserError where this PyTorch has no CUDA, or the card no memory for its context.
    """
    import torch

    try:
        torch.cuda.synchronize(device)
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
        raise unusable(device, str(error)) from None


def unusable(device: str, reason: str) -> UserError:
    """Return the error for a CUDA device that PyTorch cannot use.

    It quotes the first line of PyTorch's reason.
    """
    first_line = (reason.splitlines() or ["it gives no reason"])[0].rstrip(".")
    return UserError(
        f"PyTorch cannot use {device}: {first_line}. Free memory of the card, "
        "install a PyTorch that was built for CUDA and this driver, or use device cpu."
    )


class PeakMemory:
    """The most memory that was held meanwhile, in ``bytes``.

    On CUDA it is the device's own count, on the CPU the resident memory of this process.
    Raises UserError for a CUDA device that PyTorch cannot use.
    """

    bytes: int

    def __init__(self, device: str):
        self.device = device

    def __enter__(self) -> Self:
        if self.device.startswith("cuda"):
            import torch

            start_cuda(self.device)  # without it, a device with a number has no count
            torch.cuda.reset_peak_memory_stats(self.device)
        elif sys.platform == "linux":
            # Some containers forbid it; the mark of the whole process has to do there.
            with contextlib.suppress(OSError):
                # Sets the mark back to what is held now.
                Path("/proc/self/clear_refs").write_bytes(b"5")
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.startswith("cuda"):
            import torch

            self.bytes = torch.cuda.max_memory_allocated(self.device)
            return
        mark = None
        if sys.platform == "linux":
            status = Path("/proc/self/status").read_text(encoding="utf-8")
            mark = re.search(r"VmHWM:\s*(\d+)", status)
        if mark:
            self.bytes = int(mark[1]) * 1024
            return
        import psutil

        memory = psutil.Process().memory_info()
        # Windows keeps a peak; a Mac and gVisor tell what is held now.
        self.bytes = getattr(memory, "peak_wset", memory.rss)

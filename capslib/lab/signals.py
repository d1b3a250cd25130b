"""Stop a run: on Ctrl-C or SIGTERM, at a deadline, and at the end of a budget."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any, Self

AT_CHECKPOINT = "running trials write a checkpoint first"


class StopRequest:
    """Callable that is true once Ctrl-C, SIGTERM or the deadline has come.

    The first time that it is true, it says so with ``say``. The first signal restores the
    former handlers, so a second one ends the process at once.
    """

    signal: int | None = None

    def __init__(
        self, deadline: float = math.inf, say: Callable[[str], None] | None = None
    ) -> None:
        self.deadline = deadline
        self.say = say
        self.handlers: dict[int, Any] = {}

    def __call__(self) -> bool:
        if self.signal is not None:
            self._say_once(f"Stopping: {AT_CHECKPOINT}. A second signal stops them at once.")
            return True
        if time.monotonic() >= self.deadline:
            self._say_once(f"The time is nearly over: {AT_CHECKPOINT}.")
            return True
        return False

    def _say_once(self, text: str) -> None:
        if self.say is not None:
            self.say(text)
            self.say = None

    def __enter__(self) -> Self:
        # No other thread may ask for signals.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, _: object) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)


class TimeIsUp(KeyboardInterrupt):
    """The end of a budget has come, and something still runs."""


@contextlib.contextmanager
def time_limit(end: float) -> Iterator[None]:
    """Break off what still runs at ``end``, by the monotonic clock, where the system can."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not hasattr(signal, "setitimer"):  # Windows
        yield
        return

    def ring(*_: object) -> None:
        raise TimeIsUp

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, end - time.monotonic()))
    try:
        with contextlib.suppress(TimeIsUp):
            try:
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)  # it may still ring here
    finally:
        signal.signal(signal.SIGALRM, previous)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Have threads and processes that start meanwhile leave Ctrl-C and SIGTERM to this thread.

    A Ctrl-C at the terminal, and the SIGTERM of Slurm, go to all processes. Those that start
    here inherit the blocked signals. This thread gets its own when the block ends.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # started later, it would let the signals through again
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

"""What stops a run: signals, and the end of a time."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from capslib.lab.signals import Signals, time_limit


def test_a_second_signal_of_either_kind_is_obeyed_at_once():
    """After a Ctrl-C it took two of Slurm's SIGTERM."""
    obeyed = []
    earlier = signal.signal(signal.SIGTERM, lambda number, _: obeyed.append(number))
    try:
        with contextlib.suppress(KeyboardInterrupt), Signals() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert (stop(), obeyed) == (True, [])
            os.kill(os.getpid(), signal.SIGTERM)
            assert obeyed == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, earlier)


def test_what_does_not_stop_is_broken_off_at_the_end():
    started = time.monotonic()
    with time_limit(started + 0.2):
        time.sleep(60)
        raise AssertionError("nothing broke it off")
    assert time.monotonic() - started < 30
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)

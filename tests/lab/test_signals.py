"""What stops a run: signals, and the end of a time."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from capslib.lab.signals import StopRequest, TimeIsUp, time_limit


def test_a_second_signal_of_either_kind_is_obeyed_at_once():
    """One SIGTERM after a Ctrl-C is enough."""
    obeyed = []
    earlier = signal.signal(signal.SIGTERM, lambda number, _: obeyed.append(number))
    try:
        with contextlib.suppress(KeyboardInterrupt), StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert (stop(), obeyed) == (True, [])
            os.kill(os.getpid(), signal.SIGTERM)
            assert obeyed == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, earlier)


def test_the_end_of_a_time_is_said_once():
    lines = []
    with StopRequest(time.monotonic(), lines.append) as stop:
        assert stop()
        assert stop()
    assert lines == ["The time is nearly over: running trials write a checkpoint first."]


def test_what_does_not_stop_is_broken_off_at_the_end():
    started = time.monotonic()
    with time_limit(started + 0.2):
        time.sleep(60)
        raise AssertionError("nothing broke it off")
    assert time.monotonic() - started < 30
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_an_alarm_while_it_is_switched_off_breaks_nothing_off(monkeypatch):
    set_timer, former = signal.setitimer, signal.getsignal(signal.SIGALRM)

    def set_late(which: int, seconds: float) -> None:
        set_timer(which, seconds)
        if not seconds:
            os.kill(os.getpid(), signal.SIGALRM)

    monkeypatch.setattr(signal, "setitimer", set_late)
    try:
        with time_limit(time.monotonic() + 60):
            pass
    except TimeIsUp:  # pytest would stop at it
        pytest.fail("it broke off what came after")
    assert signal.getsignal(signal.SIGALRM) == former

"""Errors that mean something to a user of the command line: a message, or a status of their own, instead of a traceback."""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Iterable

__all__ = ["Interrupted", "NotFinite", "UserError", "check_name", "notify", "unknown"]


class UserError(Exception):
    """Bad input. The message says what is wrong and names the fix; the command line prints it and exits with status 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that is none of ``known``, with the nearest valid one suggested first."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UserError(f"Unknown {kind} {name!r}.{hint} Valid: {', '.join(known)}.")


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise :func:`unknown` unless the name is one of ``known``."""
    if name not in known:
        raise unknown(kind, name, known)


@functools.cache  # a record is read many times
def notify(message: str) -> None:
    """Tell the user, once in a process, of something that stops nothing: the logger ``capslib`` logs it as a warning."""
    logging.getLogger("capslib").warning(message)


class NotFinite(ArithmeticError):
    """Training met a NaN or an infinity. The message names the first layer or parameter that held one, and the step."""


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, and did, with its checkpoints written. ``signal`` is what asked."""

    def __init__(self, signal: int = 2):
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal

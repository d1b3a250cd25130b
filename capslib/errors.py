"""Errors of capslib: bad input, numbers that are not finite, and an interruption."""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Iterable

__all__ = ["Interrupted", "NotFinite", "UserError", "check_name", "notify", "unknown"]


class UserError(Exception):
    """Bad input: the message says what is wrong and names the fix.

    The command line prints the message and exits with status 2.
    """


def unknown(kind: str, name: str, valid: Iterable[str]) -> UserError:
    """Return the error for a name that is not ``valid``; it suggests the nearest valid name.

    >>> print(unknown("colour", "gren", ["green", "blue"]))
    Unknown colour 'gren'. Did you mean 'green'? Valid: green, blue.
    """
    valid = list(valid)
    nearest = difflib.get_close_matches(str(name), valid, n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return UserError(f"Unknown {kind} {name!r}.{hint} Valid: {', '.join(valid)}.")


def check_name(kind: str, name: str, valid: Iterable[str]) -> None:
    """Raise the UserError of :func:`unknown` unless the name is one of ``valid``.

    >>> check_name("colour", "green", ["green", "blue"])
    """
    if name not in valid:
        raise unknown(kind, name, valid)


@functools.cache  # a damaged record is read many times, and warned about once
def notify(message: str) -> None:
    """Log a warning to the logger ``capslib``, at most once in a process for each message."""
    logging.getLogger("capslib").warning(message)


class NotFinite(ArithmeticError):
    """Training met a NaN or an infinity.

    The message names the first layer or parameter that held one, and the step.
    """


class Interrupted(KeyboardInterrupt):
    """A run stopped at a ``signal``, with its checkpoints written."""

    def __init__(self, signal: int = 2):
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal

"""Start the command line, or say what it lacks.

``pip install capslib`` brings the library alone.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run ``capslib``. Exit with status 2 where a package of the extra ``lab`` is missing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as by >&-
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nowhere, "w", encoding="utf-8"))
    try:
        from capslib.lab import cli

        cli.main()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("capslib"):
            raise
        advice = f"needs {error.name}: pip install 'capslib[lab]' brings it."
        print(f"capslib: the command line {advice}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()

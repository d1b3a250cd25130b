"""Take runs to a machine without a network, and bring back what they leave.

A pack is a folder with ``run.sh`` and an archive in parts: a clone of this checkout, the
prepared data that its trials need, and wheels of packages that the other machine lacks.
"""

from __future__ import annotations

import contextlib
import io
import lzma
import math
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from filelock import Timeout

from capslib import data, papers
from capslib.data.registry import SETS
from capslib.errors import UserError, check_name, notify
from capslib.files import locked, write_atomically
from capslib.lab.budget import read_checkpoint, waiting_for
from capslib.lab.provenance import ROOT, checkout, complaint, git
from capslib.lab.store import Store
from capslib.papers.experiment import SCALES, Scale, Trial

ARCHIVE = "pack.tar.xz"
"""The name of the archive; its parts end in ``.001`` and so on."""
MOST_PARTS = 999
"""With more parts, the shell would not name them in their order."""
UNPACKED = "unpacked"
"""The folder beside ``run.sh`` that the archive is unpacked to."""
PRESET = 0
"""How hard xz tries: preset 4 takes three times as long, and saves 7 % of the size."""
NEEDED = (
    *("einops", "pydantic", "scikit-learn", "pillow", "pooch", "requests", "tqdm", "filelock"),
    *("urllib3", "scipy", "joblib", "psutil", "typer", "rich", "dask", "distributed"),
)
"""Packages that a run needs beside PyTorch and numpy."""
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
RUN = """\
#!/bin/sh
# Runs trials at {scale} scale of: {stems}.
# Needs Python 3.11 or newer with PyTorch, git, and a tar that reads xz. Needs no network.
#
#   sh run.sh --device cuda --max-steps 20   rehearse
#   sh run.sh --device cuda --budget 15m     run what decides most claims in that time
#   sh run.sh --device cuda                  run all trials that have no record
#
# Without --device cuda it runs on the CPU.
#
# After a kill the same command goes on from the last checkpoints. Then bring this folder back:
#
#   capslib unpack FOLDER
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${{PYTHON:-python3}}
if [ ! -e "$here/{unpacked}/ready" ]; then
  mkdir -p "$here/{unpacked}"
  cat "$here"/{archive}.* | tar -xJf - -C "$here/{unpacked}"
  if [ -d "$here/{unpacked}/wheels" ]; then
    "$python" -m pip install --quiet --no-index --no-deps --target "$here/{unpacked}/site" \\
      "$here"/{unpacked}/wheels/*.whl
  fi
  touch "$here/{unpacked}/ready"
fi
export PYTHONPATH="$here/{unpacked}/capsules:$here/{unpacked}/site"
export CAPSLIB_DATA="$here/{unpacked}/data"
cd "$here/{unpacked}/capsules"
"$python" - {needed} <<'END'
import sys
from importlib.metadata import PackageNotFoundError, version

missing = []
for name in sys.argv[1:]:
    try:
        version(name)
    except PackageNotFoundError:
        missing.append(name)
if missing:
    number = "%d.%d" % sys.version_info[:2]
    print("run.sh: Python", number, "lacks", ", ".join(missing), file=sys.stderr)
    print("Install them, or pack again: --all-wheels --python", number, file=sys.stderr)
    sys.exit(2)
END
exec "$python" -m capslib run {stems} --scale {scale} "$@"
"""


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``60M``: K, M and G are powers of 1000.

    Raises UserError for another text.

    >>> parse_size("1.5M")
    1500000
    """
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([KMG]?)B?", text.strip(), re.IGNORECASE)
    size = round(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise UserError(f"{text!r} is no size: write bytes, or such as 500K, 60M, 2G.")
    return size


# --------------------------------------------------------------------------------------- pack


def pack(
    stems: Sequence[str],
    to: Path,
    *,
    scale: Scale,
    data_dir: Path | None = None,
    wheels: Sequence[str] = (),
    python: str | None = None,
    part_size: int | None = None,
) -> list[Path]:
    """Write a pack into a folder, and return the parts of its archive.

    ``wheels`` are packages to take along, with what they need; ``python`` is the version of the
    other machine's Python, such as ``3.12``, if it is another one. No part has more than
    ``part_size`` bytes.

    Raises UserError for an unknown scale, a folder that is not empty, code with uncommitted
    changes, data that are not there, and wheels that pip cannot get.
    """
    if to.exists() and any(to.iterdir()):
        raise UserError(f"{to} is not empty: name a new folder.")
    check_name("scale", scale, SCALES)
    objection = checkout().objection
    if objection:
        raise UserError(f"Records of this code would prove nothing: {objection}.")
    folders = [data.prepared_folder(name, data_dir) for name in real_sets(stems, scale)]
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.") as name:
        content, packed = Path(name, "content"), Path(name, "pack")
        clone(stems, content / "capsules")
        if wheels:
            download(wheels, content / "wheels", python)
        packed.mkdir()
        with (
            Parts(packed / ARCHIVE, part_size) as parts,
            lzma.open(parts, "wb", preset=PRESET) as compressed,
            tarfile.open(fileobj=compressed, mode="w|") as archive,
        ):
            for path in sorted(content.iterdir()):
                archive.add(path, path.name)
            for folder in folders:
                archive.add(folder, f"data/{folder.name}")
        names = {"stems": " ".join(stems), "unpacked": UNPACKED, "archive": ARCHIVE}
        names["needed"] = " ".join(["torch", "numpy", *NEEDED])
        script = RUN.format(scale=scale, **names)
        (packed / "run.sh").write_text(script, encoding="utf-8")
        packed.replace(to)  # whole, or not at all
    return [to / path.name for path in parts.paths]


def real_sets(stems: Sequence[str], scale: Scale) -> list[str]:
    """Return the data sets of what may run, less embedded stand-ins.

    These are trials that have no record yet, and longer ones that claims wait for.
    """
    store = Store()
    trials: list[Trial] = []
    for stem in stems:
        for experiment in papers.experiments(stem).values():
            trials += [t for t in experiment.trials(scale) if store.ended(t) is None]
    trials += waiting_for(stems, scale, store).trials.values()
    return [name for name in papers.data_sets(trials) if not SETS[name].stand_in]


def clone(stems: Sequence[str], to: Path) -> None:
    """Clone the last commit of this checkout, with the records of these papers alone."""
    patterns = ["/*", "!/results/*", *(f"/results/{stem}/" for stem in stems)]
    commands = [
        (ROOT, "clone", "--quiet", "--depth=1", "--no-checkout", ROOT.as_uri(), str(to)),
        (to, "remote", "remove", "origin"),
        (to, "sparse-checkout", "set", "--no-cone", *patterns),
        (to, "checkout", "--quiet"),
    ]
    for folder, *words in commands:
        answer = git(*words, folder=folder)
        if answer.returncode:
            raise UserError(f"The code cannot be packed: {complaint(answer)}.")


def download(wheels: Sequence[str], to: Path, python: str | None) -> None:
    """Download wheels and their requirements.

    They are for this platform, or with ``python`` for Linux on x86-64.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    command += ["--dest", str(to), *wheels]
    if python is not None:
        command += ["--python-version", python, "--implementation", "cp"]
        for version in ("2_28", "2_27", "2_17"):
            command += ["--platform", f"manylinux_{version}_x86_64"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        reason = (answer.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise UserError(f"These wheels cannot be had: {' '.join(wheels)}. {reason}")


class Parts(io.RawIOBase):
    """A file that is written as parts, ``NAME.001``, ``NAME.002``, of at most ``size`` bytes.

    Without a size it has one part. Raises UserError for more than ``MOST_PARTS``.
    """

    def __init__(self, path: Path, size: int | None):
        self.path = path
        self.size = sys.maxsize if size is None else size
        self.paths: list[Path] = []
        self._part: io.BufferedWriter | None = None
        self._free = 0

    def writable(self) -> bool:
        return True

    def write(self, content: bytes) -> int:
        remainder = memoryview(content)
        while remainder:
            if self._part is None or self._free == 0:
                self._next()
            length = min(self._free, len(remainder))
            self._part.write(remainder[:length])
            self._free -= length
            remainder = remainder[length:]
        return len(content)

    def _next(self) -> None:
        """Begin the next part."""
        if self._part is not None:
            self._part.close()
        if len(self.paths) == MOST_PARTS:
            raise UserError(
                f"The pack has more than {MOST_PARTS} parts of {self.size:,} bytes: "
                "give a larger --max-size."
            )
        path = self.path.with_name(f"{self.path.name}.{len(self.paths) + 1:03}")
        self._part = path.open("wb")
        self._free = self.size
        self.paths.append(path)

    def close(self) -> None:
        if self._part is not None:
            self._part.close()
        super().close()


# ------------------------------------------------------------------------------------- unpack


class Unpacked(NamedTuple):
    """How many records were copied, and how many files of trainings.

    ``present`` counts the records that were here already.
    """

    records: int
    present: int
    checkpoints: int


def unpack(source: Path, store: Store, *, checkpoints: bool = False) -> Unpacked:
    """Copy the sound records of a pack that has run, or of a folder of records, into a store.

    ``source`` may be a tar archive of such a folder. A trial that has a record here keeps it,
    unless that one is of an interrupted run or a rehearsal. Damaged files are left out, with a
    warning. ``checkpoints`` copies the trainings, too, which then go on here. Of two
    checkpoints the one that is further along stays.

    Raises UserError where no records are found.
    """
    store.check_writable()
    with opened(source) as folder:
        brought = Store(folder)
        records, present = 0, 0
        for path, record in brought.files():
            if store.ended(record.trial) is not None:
                present += 1
                continue
            store.copy(path, record.trial)
            records += 1
        copied = copy_trainings(brought, store) if checkpoints else 0
    return Unpacked(records, present, copied)


DAMAGE = (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error)
"""What reading a damaged archive raises."""


@contextlib.contextmanager
def opened(source: Path) -> Iterator[Path]:
    """Yield the folder of records in a pack, a folder, or a tar archive of one."""
    if not source.is_file():
        yield results_in(source)
        return
    with tempfile.TemporaryDirectory() as name:
        try:
            with tarfile.open(source) as archive:
                archive.extractall(name, filter="data")
        except DAMAGE as error:
            raise UserError(f"{source} is no sound tar archive: {error}.") from None
        yield results_in(Path(name))


def results_in(folder: Path) -> Path:
    """Return the folder of records of a pack, or of a folder around one.

    Raises UserError if there are no records.
    """
    below = sorted(path for path in folder.glob("*") if path.is_dir())
    for parent in (folder, *below):
        for name in (f"{UNPACKED}/capsules/results", "results", ""):
            results = parent / name
            if any(any(results.glob(f"{stem}/*/*.json")) for stem in papers.WITH_TRIALS):
                return results
    raise UserError(f"There are no records in {folder}: name the folder that run.sh is in.")


def copy_trainings(brought: Store, store: Store) -> int:
    """Copy checkpoints that are further along than those here, and later rehearsals.

    Return how many files were copied. A training that runs here keeps its checkpoint.
    """
    count = 0
    for path in sorted(brought.trainings.rglob("*.pt")):
        target = store.trainings / path.relative_to(brought.trainings)
        try:
            with locked(target.with_suffix(".lock"), blocking=False):
                if is_further(path, target):
                    copy_file(path, target)
                    count += 1
        except Timeout:
            notify(f"{target} stays: its training runs here.")
    for path in sorted(brought.trainings.rglob("*.json")):
        target = store.trainings / path.relative_to(brought.trainings)
        if is_later(path, target):
            copy_file(path, target)
            count += 1
    return count


def is_further(path: Path, target: Path) -> bool:
    """Return whether a checkpoint is further along than another, or as far and later.

    A damaged one is no checkpoint, and not copied.
    """
    brought, here = read_checkpoint(path), read_checkpoint(target)
    if brought is None:
        notify(f"{path} is damaged and was not copied.")
        return False
    if here is None:
        return True
    step, step_here = (math.inf if c.finished else c.step for c in (brought, here))
    return is_later(path, target) if step == step_here else step > step_here


def is_later(path: Path, target: Path) -> bool:
    """Return whether a file was written after another, which need not be there."""
    return not target.exists() or path.stat().st_mtime > target.stat().st_mtime


def copy_file(path: Path, target: Path) -> None:
    """Copy a file whole or not at all, with the time at which it was written."""
    write_atomically(target, path.read_bytes())
    times = path.stat()
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))

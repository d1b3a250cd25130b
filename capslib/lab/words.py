"""The words of verdicts, and the weight that each carries."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from capslib.lab.ledger import Claim
from capslib.papers.experiment import Scale

Status = str
"""The word of a verdict, such as ``reproduced``."""
Group = str
"""The weight of a word. Verdicts of one group are never added to those of another."""

CAPSULES = "capsule networks at the papers’ own size"
BASELINES = "the papers’ baselines at their own size"
REDUCED = "in a reduced setting"
EXACT = "theorems and counts"
ERRATA = "errata of the papers"
NOT_RUN = "not run"

NONE_TRAINED = "no capsule network of this paper has been trained at its size"
"""What a total says of a paper whose capsule networks are all reduced."""
OTHER_DATA = "on other data than the paper's"
"""Why a run at paper scale may still be one of a reduced setting."""
SIZES: dict[Scale, str] = {
    "smoke": "stand-ins",
    "cpu": "small networks",
    "paper": "full size",
}
"""What readers call the networks and data of a scale."""
IN_PART = ("holds in part", "fails in part")
"""Words for a claim of several parts; :attr:`Verdict.word` says how many of them."""
_OWN_SIZE = (
    "reproduced",
    "better",
    "not reproduced",
    "contradicted",
    *IN_PART,
    "inconclusive",
)
GROUPS = {
    CAPSULES: _OWN_SIZE,
    BASELINES: _OWN_SIZE,
    EXACT: ("holds", "fails", *IN_PART, "undecided"),
    REDUCED: ("same order", "opposite order", *IN_PART, "undecided", "measured"),
    ERRATA: ("erratum",),
    NOT_RUN: ("waiting", "quoted", "not to be had"),
}
"""The words of each group."""
STATUSES = tuple(dict.fromkeys(itertools.chain(*GROUPS.values())))
"""Every word once."""

_OWN_SIZE_WORDS = {
    "for": "reproduced",
    "against": "contradicted",
    "open": "inconclusive",
}
WORDS = {
    CAPSULES: _OWN_SIZE_WORDS,
    BASELINES: _OWN_SIZE_WORDS,
    REDUCED: {"for": "same order", "against": "opposite order", "open": "undecided"},
    EXACT: {"for": "holds", "against": "fails", "open": "undecided"},
}
"""The word of each decision."""
HELD = ("reproduced", "same order", "holds")
AGAINST = ("contradicted", "opposite order", "fails")
OPEN = ("inconclusive", "undecided")


@dataclass(frozen=True)
class Verdict:
    """What the records say about a claim. Raises ValueError for a word that its group lacks.

    ``ours`` is our value in ``unit``: the mean of a ``value`` claim, what ``measures`` says for
    a comparison (percentages in points; a lead is that of the side that the claim puts first),
    and the worst record for a property. ``interval`` is its 95 % interval. Where a run failed
    or a network did not learn, ``by_seed`` has the values seed by seed instead of a mean. ``n``
    counts replicates: seeds, or the runs of a property. ``reason`` explains the status in one
    sentence.

    ``records`` holds the keys of the records used, and ``shares`` the other claims that use
    some of them. ``derived`` says how their data differ from the originals; ``partial`` data
    are a part of the paper's, or stand in for them. ``baseline`` runs train no capsule network.
    ``exact`` marks a theorem or a count.

    ``parts`` holds the verdicts, by ``name``, behind a claim of several parts, which is
    ``lost`` if too many of them fail for it to hold.
    """

    claim: Claim
    status: Status
    reason: str
    ours: float | None = None
    interval: tuple[float, float] | None = None
    quantity: str = ""  # what `ours` is: "lead in accuracy (a − b)"
    asked: str = ""  # where its interval has to lie: "above 0.05"
    is_lead: bool = False  # whether `ours` is a difference of arms
    by_seed: tuple[float, ...] = ()
    unit: str = ""
    n: int = 0
    scale: Scale | None = None
    records: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    partial: bool = False
    baseline: bool = False
    exact: bool = False
    parts: tuple[Verdict, ...] = ()
    lost: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if self.status not in GROUPS[self.group]:
            raise ValueError(
                f"{self.claim.id}: {self.status!r} cannot be said of scale {self.scale}, "
                f"{self.group}."
            )

    @property
    def group(self) -> Group:
        """The weight of its word."""
        if self.status in GROUPS[NOT_RUN]:
            return NOT_RUN
        if self.status in GROUPS[ERRATA]:
            return ERRATA
        return self.setting

    @property
    def setting(self) -> Group:
        """The group whose words its runs may have."""
        if self.exact:
            return EXACT
        if self.scale != "paper" or self.partial:
            return REDUCED
        return BASELINES if self.baseline else CAPSULES

    @property
    def measures(self) -> str:
        """What ``ours`` is, and where it has to lie; empty for a value or a theorem."""
        return f"{self.quantity}, {self.asked} for the claim" if self.asked else ""

    @property
    def word(self) -> str:
        """The status as a reader sees it: ``reproduced``, ``holds in part (6 of 18)``."""
        if self.status == "holds in part":
            number = number_of(HELD, self.parts)
        elif self.status == "fails in part":
            number = number_failing(self.parts)
        else:
            return self.status
        return f"{self.status} ({number} of {len(self.parts)})"

    @property
    def fails(self) -> bool:
        """Whether it speaks against a claim that it is a part of."""
        return self.lost or self.status in AGAINST


def number_failing(verdicts: Iterable[Verdict]) -> int:
    """Return how many of these verdicts speak against the claim that they are parts of."""
    return sum(verdict.fails for verdict in verdicts)


def number_of(words: Sequence[Status], verdicts: Iterable[Verdict]) -> int:
    """Return how many of these verdicts have one of these words."""
    return sum(verdict.status in words for verdict in verdicts)


def tally(parts: Sequence[Verdict]) -> str:
    """Return how many parts of a claim hold, fail, are open and are not run.

    For example ``2 of 4 parts hold, 1 fails, 1 is undecided``, or ``both parts hold``.
    """
    total = len(parts)
    held = number_of(HELD, parts)
    failed = number_failing(parts)
    waiting = number_of(GROUPS[NOT_RUN], parts)
    counts_and_verbs = (
        (held, "holds", "hold"),
        (failed, "fails", "fail"),
        (total - held - failed - waiting, "is undecided", "are undecided"),
        (waiting, "is not run", "are not run"),
    )
    phrases = []
    for count, singular, plural in counts_and_verbs:
        if not count:
            continue
        if count == total:
            subject = {1: "its only part", 2: "both parts"}.get(total, f"all {total} parts")
        else:
            subject = f"{count}" if phrases else f"{count} of {total} parts"
        phrases.append(f"{subject} {singular if count == 1 else plural}")
    return ", ".join(phrases)


def first_names(names: Sequence[str], most: int = 4, separator: str = "; ") -> str:
    """Return the first of some names, and how many more there are.

    >>> first_names(["one", "two", "three"], most=2)
    'one; two; and 1 more'
    """
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return separator.join([*names[:most], *more])


def count_text(verdicts: Iterable[Verdict], group: Group, status: Status) -> str:
    """Return how many verdicts of a group have a word, and how many of them are unprinted.

    For example ``44``, or ``44 (23 only in the authors’ notebooks)``.
    """
    chosen = [v for v in verdicts if v.group == group and v.status == status]
    unprinted = sum(verdict.claim.unprinted for verdict in chosen)
    if unprinted and status in ("reproduced", "better", "not reproduced"):
        return f"{len(chosen)} ({unprinted} only in the authors’ notebooks)"
    return str(len(chosen))


def counts(verdicts: Iterable[Verdict]) -> dict[Group, dict[Status, int]]:
    """Count the verdicts of each group and word, in the order of :data:`GROUPS`."""
    counter = Counter((verdict.group, verdict.status) for verdict in verdicts)
    numbers = {}
    for group, words in GROUPS.items():
        numbers[group] = {word: counter[group, word] for word in words}
    return numbers

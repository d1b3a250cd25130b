"""The words of verdicts, and the weight that each carries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from capslib.lab.ledger import Claim
from capslib.papers.experiment import Scale
from capslib.papers.query import Decision

Status = str
Group = str

CAPSULES: Group = "capsule networks at the papers’ own size"
BASELINES: Group = "the papers’ baselines at their own size"
REDUCED: Group = "in a reduced setting"
EXACT: Group = "theorems and counts"
ERRATA: Group = "errata of the papers"
NOT_RUN: Group = "not run"

NONE_TRAINED = "no capsule network of this paper has been trained at its size"
"""What a total says of a paper whose capsule networks are all reduced."""
OTHER_DATA = "on data that are a part of the paper's or stand in for them"
"""Why a run at paper scale may still be one of a reduced setting."""
IN_PART: tuple[Status, ...] = ("holds in part", "fails in part")
"""Of a claim of several parts, in the group of its runs; :attr:`Verdict.word` says how many."""
_OWN_SIZE: tuple[Status, ...] = (
    "reproduced",
    "better",
    "not reproduced",
    "contradicted",
    *IN_PART,
    "inconclusive",
)
GROUPS: Mapping[Group, tuple[Status, ...]] = {
    CAPSULES: _OWN_SIZE,
    BASELINES: _OWN_SIZE,
    EXACT: ("holds", "fails", *IN_PART, "undecided"),
    REDUCED: ("same order", "opposite order", *IN_PART, "undecided", "measured"),
    ERRATA: ("erratum",),
    NOT_RUN: ("waiting", "quoted", "not to be had"),
}
"""The words of each group. Verdicts of one group are never added to those of another."""
STATUSES: tuple[Status, ...] = tuple(
    dict.fromkeys(word for words in GROUPS.values() for word in words)
)

_OWN_SIZE_WORDS: Mapping[Decision, Status] = {
    "for": "reproduced",
    "against": "contradicted",
    "open": "inconclusive",
}
WORDS: Mapping[Group, Mapping[Decision, Status]] = {
    CAPSULES: _OWN_SIZE_WORDS,
    BASELINES: _OWN_SIZE_WORDS,
    REDUCED: {"for": "same order", "against": "opposite order", "open": "undecided"},
    EXACT: {"for": "holds", "against": "fails", "open": "undecided"},
}
"""The word of each decision."""
HELD: tuple[Status, ...] = ("reproduced", "same order", "holds")
AGAINST: tuple[Status, ...] = ("contradicted", "opposite order", "fails")
OPEN: tuple[Status, ...] = ("inconclusive", "undecided")


@dataclass(frozen=True)
class Verdict:
    """What the records say about a claim.

    ``ours`` and ``interval`` are in ``unit``: for a value the mean, for a comparison what ``measures`` says (of percentages in
    points; a lead is that of the side that the claim puts first), for a property the worst record. ``listed`` has the values seed
    by seed in the place of a mean, where a network did not learn. ``n`` counts replicates (seeds; for a property runs). ``reason``
    explains the status in one sentence. ``records`` holds the keys of the records used, ``shares`` the other claims that use some
    of them; ``derived`` says how their data differ from the originals. ``partial`` data are a part of the paper's, or stand in for
    them. ``baseline`` runs train no capsule network. An ``exact`` question is one of a theorem or a count. ``parts`` holds the
    named decisions behind a claim of several parts; it is ``lost`` if too many of them fail for it to hold. Raises :class:`ValueError` for a word that the :attr:`group` does not have.
    """

    claim: Claim
    status: Status
    reason: str
    ours: float | None = None
    interval: tuple[float, float] | None = None
    measures: str = ""
    listed: tuple[float, ...] = ()
    unit: str = ""
    n: int = 0
    scale: Scale | None = None
    records: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    derived: str = ""
    partial: bool = False
    baseline: bool = False
    exact: bool = False
    parts: tuple[Verdict, ...] = ()
    lost: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if self.status not in GROUPS[self.group]:
            raise ValueError(
                f"{self.claim.id}: {self.status!r} cannot be said of scale {self.scale}, {self.group}."
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
    def word(self) -> str:
        """The status as a reader sees it: ``reproduced``, ``holds in part (6 of 18)``."""
        if self.status not in IN_PART:
            return self.status
        count = (
            number_of(HELD, self.parts)
            if self.status == "holds in part"
            else number_failing(self.parts)
        )
        return f"{self.status} ({count} of {len(self.parts)})"

    @property
    def fails(self) -> bool:
        """Whether it speaks against a claim that it is a part of."""
        return self.lost or self.status in AGAINST


def number_failing(parts: Iterable[Verdict]) -> int:
    """Return how many of these verdicts speak against the claim that they are parts of."""
    return sum(part.fails for part in parts)


def number_of(words: Sequence[Status], parts: Iterable[Verdict]) -> int:
    """Return how many of these verdicts have one of these words."""
    return sum(part.status in words for part in parts)


def tally(parts: Sequence[Verdict]) -> str:
    """Return how many parts of a claim hold, fail and are open: ``2 of 4 parts hold, 1 fails, 1 is undecided``."""
    total, held, failed = len(parts), number_of(HELD, parts), number_failing(parts)
    waiting = number_of(GROUPS[NOT_RUN], parts)
    if held == total:
        return "its only part holds" if total == 1 else f"all {total} parts hold"
    pieces = {
        "hold": held,
        "fail": failed,
        "undecided": total - held - failed - waiting,
        "not run": waiting,
    }
    told: list[str] = []
    for verb, count in pieces.items():
        if not count:
            continue
        one = count == 1
        subject = str(count) if told else f"{count} of {total} parts"
        if verb in ("hold", "fail"):
            told.append(f"{subject} {verb}{'s' if one else ''}")
        else:
            told.append(f"{subject} {'is' if one else 'are'} {verb}")
    return ", ".join(told)


def count_text(found: Iterable[Verdict], group: Group, status: Status) -> str:
    """Return how many verdicts of a group have a word: ``44``, ``44 (23 only in the authors’ notebooks)``."""
    chosen = [
        verdict for verdict in found if (verdict.group, verdict.status) == (group, status)
    ]
    unprinted = sum(verdict.claim.unprinted for verdict in chosen)
    beside = status in ("reproduced", "better", "not reproduced") and unprinted
    return (
        f"{len(chosen)} ({unprinted} only in the authors’ notebooks)"
        if beside
        else str(len(chosen))
    )


def counts(found: Iterable[Verdict]) -> dict[Group, dict[Status, int]]:
    """Count the verdicts of each word in each group, all groups and words in their fixed order."""
    counted = Counter((v.group, v.status) for v in found)
    return {
        group: {word: counted[group, word] for word in words} for group, words in GROUPS.items()
    }

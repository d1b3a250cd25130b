"""Numbers in prose: of claims and of arms, from the records, when the book is built.

======================================  ========================================================
``{ours}`EM-T1-cnn```                   our value, ``5.21 %``; of several parts, a tally
``{interval}`EM-T1-cnn```               its 95 % interval, ``[5.02, 5.40]``
``{theirs}`EM-T1-cnn```                 the paper's value, as printed
``{verdict}`EM-T1-cnn```                the verdict, in a word
``{measured}`EXPERIMENT:ARM:METRIC```   the mean of a metric over seeds, at cpu scale
``{interval}`EXPERIMENT:ARM:METRIC```   its 95 % interval
``{count}`claims```                     how many, see :func:`count`
``{answer}`which_routing```             what the study of routings answers, in a sentence or two
``{leading}`turned by 30 degrees```     which network of the study has the highest mean there
======================================  ========================================================

``EXPERIMENT@paper`` stands for another scale, ``STEM/EXPERIMENT`` for another paper than the
chapter's: ``negation_limitation/sign@paper:dynamic/bias:train_accuracy``. ``ARM - ARM`` in the
place of an arm is the difference of two, paired by seed: ``18.3 points``. ``ARM/twice`` is the
arm with twice its budget. Roles work in
captions and in the alt texts of figures, too. A sentence whose number is not there yet is not
shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

from capsbook.book import Links, chapter_of
from capsbook.rounding import ends, our_interval, our_value, rounded
from capslib.errors import UserError, check_name
from capslib.lab import claims
from capslib.lab.ledger import grouped
from capslib.lab.study import QUESTIONS
from capslib.lab.words import REDUCED, Verdict, counts
from capslib.papers import PAPERS, STUDIES

if TYPE_CHECKING:
    from sphinx.application import Sphinx

    from capsbook.book import Book
    from capsbook.evidence import Measured

logger = logging.getLogger(__name__)
SCORES = ("auroc_", "ap_")
"""How metrics begin that are written as fractions. Other fractions are written in percent."""
IN_PERCENT = {"fraction": "percent", "difference of fractions": "points"}
"""The units of fractions and of their differences, if these are written in percent."""
MISSING_CLASS = "missing-number"

# -------------------------------------------------------------------- what each role stands for


def ours(book: Book, target: str, paper: str) -> str | None:
    """Return our value of a claim, with its unit."""
    return our_value(verdict_on(book, target)) or None


def theirs(book: Book, target: str, paper: str) -> str | None:
    """Return the paper's value of a claim, as printed, with its unit."""
    verdict = verdict_on(book, target)
    return None if verdict.claim.value is None else claims.theirs(verdict)


def word(book: Book, target: str, paper: str) -> str | None:
    """Return the verdict on a claim, unless it waits for a run."""
    verdict = verdict_on(book, target)
    return None if verdict.status == "waiting" else verdict.word


def interval(book: Book, target: str, paper: str) -> str | None:
    """Return the 95 % interval of our value of a claim, or of an arm."""
    if ":" not in target:
        return our_interval(verdict_on(book, target))
    mean = _measured(book, target, paper)
    return mean and ends(mean.interval, mean.value)


def measured(book: Book, target: str, paper: str) -> str | None:
    """Return the mean of a metric over the seeds of an arm, with its unit."""
    mean = _measured(book, target, paper)
    return mean and claims.with_unit(rounded(mean.value), mean.unit)


def count(book: Book, target: str, paper: str) -> str:
    """Return how many there are of ``claims``, ``papers``, ``records`` or ``measured`` claims.

    ``measured`` are claims of values that small networks have a number for.
    """
    verdicts = book.evidence.verdicts_of()
    totals = {
        "claims": len(verdicts),
        "papers": len(PAPERS),
        "records": len(book.evidence.cited()),
        "measured": counts(verdicts)[REDUCED]["measured"],
    }
    check_name("thing to count", target, totals)
    return grouped(str(totals[target]))


def answer(book: Book, target: str, paper: str) -> str:
    """Return what a study of our own answers."""
    check_name("study", target, STUDIES)
    return book.evidence.study.answer()


def leading(book: Book, target: str, paper: str) -> str | None:
    """Return which network has the highest mean in a question of the study, by data set."""
    check_name("question", target, QUESTIONS)
    return book.evidence.study.highest(QUESTIONS[target]) or None


def verdict_on(book: Book, claim: str) -> Verdict:
    """Return the verdict on a claim. Raises UserError for an unknown one."""
    try:
        return book.evidence.verdicts[claim]
    except KeyError:
        raise UserError(f"the ledger has no claim {claim!r}") from None


def _measured(book: Book, target: str, paper: str) -> Measured | None:
    """Return what ``STEM/EXPERIMENT@SCALE:ARM:METRIC`` names, fractions in percent."""
    source, colon, names = target.partition(":")
    arm, second, metric = names.rpartition(":")
    experiment, _, scale = source.partition("@")
    if "/" in experiment:
        paper, _, experiment = experiment.partition("/")
    if not (colon and second and paper):
        raise UserError(f"{target!r} should look like EXPERIMENT:ARM:METRIC")
    mean = book.evidence.measured(paper, experiment, arm, scale or "cpu", metric)
    if mean is None or mean.unit not in IN_PERCENT or metric.startswith(SCORES):
        return mean
    percent = mean.interval and tuple(100 * end for end in mean.interval)
    return mean._replace(value=100 * mean.value, interval=percent, unit=IN_PERCENT[mean.unit])


NUMBERS: dict[str, Callable[[Book, str, str], str | None]] = {
    "ours": ours,
    "theirs": theirs,
    "verdict": word,
    "interval": interval,
    "measured": measured,
    "count": count,
    "answer": answer,
    "leading": leading,
}
NUMBER_ROLE = re.compile(rf"\{{({'|'.join(NUMBERS)})\}}`([^`]+)`")
"""Such a role in a text: its name, and its target."""

# ------------------------------------------------------------------------------ roles of Sphinx


class NumberRole(SphinxRole):
    """A number that one of ``NUMBERS`` computes. One of a claim leads to the claim."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        book, page = self.env.capsbook, self.env.docname
        book.pages.add(page)
        try:
            text = NUMBERS[self.name](book, self.text, chapter_of(page))
        except UserError as error:
            logger.warning(
                f"{self.name}: {error}", location=self.get_location(), type="capsbook"
            )
            return [], []
        if text is None:
            return [nodes.inline("", "not run yet", classes=[MISSING_CLASS])], []
        classes = ["number", self.name]
        verdict = book.evidence.verdicts.get(self.text)
        address = verdict and Links(self.env.app, page).row(verdict.claim)
        if address:
            return [nodes.reference("", text, refuri=address, classes=classes)], []
        return [nodes.inline("", text, classes=classes)], []


class ClaimRole(SphinxRole):
    """``{claim}`ID```: the id beside the square of its verdict, linked to its row."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        book, page = self.env.capsbook, self.env.docname
        book.pages.add(page)
        try:
            verdict = verdict_on(book, self.text)
        except UserError as error:
            logger.warning(f"claim: {error}", location=self.get_location(), type="capsbook")
            return [nodes.literal(self.rawtext, self.text)], []
        address = Links(self.env.app, page).row(verdict.claim)
        seal = claims.seal(verdict, address, with_id=True)
        return [nodes.raw("", seal, format="html")], []


class RepositoryRole(SphinxRole):
    """``{repository}`text```: a button that leads to the repository."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        address = self.env.capsbook.repository
        return [nodes.reference("", self.text, refuri=address, classes=["launch"])], []


ROLES = dict.fromkeys(NUMBERS, NumberRole) | {"claim": ClaimRole, "repository": RepositoryRole}

# ------------------------------------------------------ alt texts, and numbers that are missing


def in_text(text: str, book: Book, paper: str) -> str | None:
    """Return a text with numbers in the places of their roles; None if one is missing."""
    numbers = {}
    for role, target in NUMBER_ROLE.findall(text):
        numbers[role, target] = NUMBERS[role](book, target, paper)
    if None in numbers.values():
        return None
    return NUMBER_ROLE.sub(lambda match: numbers[match.groups()], text)


SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s)")


def without_gaps(text: str, book: Book, paper: str) -> str:
    """Return a text with its numbers, without the sentences whose number is missing."""
    filled = [in_text(sentence, book, paper) for sentence in SENTENCE_END.split(text)]
    return "".join(sentence for sentence in filled if sentence is not None).strip()


def write_alt_texts(app: Sphinx, doctree: nodes.document) -> None:
    """Put the numbers into the alt texts of a page's images."""
    page = app.env.docname
    for image in doctree.findall(nodes.image):
        text = image.get("alt", "")
        if NUMBER_ROLE.search(text):
            app.env.capsbook.pages.add(page)
            try:
                image["alt"] = without_gaps(text, app.env.capsbook, chapter_of(page))
            except UserError as error:
                logger.warning(f"alt text: {error}", location=image, type="capsbook")


def leave_out_sentences(app: Sphinx, doctree: nodes.document) -> None:
    """Leave out every sentence of a page in which a number is missing."""
    gap = next(doctree.findall(_is_gap), None)
    while gap is not None:
        while isinstance(gap.parent, nodes.Inline):
            gap = gap.parent
        block = gap.parent
        head = _joined(block[: block.index(gap)])
        tail = _joined(block[block.index(gap) + 1 :])
        del block[:]
        block += [*_whole_before(head), *_whole_after(tail)]
        if not block.astext().strip():
            block.parent.remove(block)
        gap = next(doctree.findall(_is_gap), None)


def _is_gap(node: nodes.Node) -> bool:
    return isinstance(node, nodes.inline) and MISSING_CLASS in node["classes"]


def _joined(children: list[nodes.Node]) -> list[nodes.Node]:
    """Return nodes with neighbouring texts as one: each line of a paragraph is a text."""
    joined: list[nodes.Node] = []
    for node in children:
        previous = joined[-1] if joined else None
        if isinstance(node, nodes.Text) and isinstance(previous, nodes.Text):
            joined[-1] = nodes.Text(previous.astext() + node.astext())
        else:
            joined.append(node)
    return joined


def _whole_before(children: list[nodes.Node]) -> list[nodes.Node]:
    """Return what stands before the sentence that these nodes end in."""
    for index in reversed(range(len(children))):
        node = children[index]
        sentences = SENTENCE_END.split(node.astext()) if isinstance(node, nodes.Text) else []
        if len(sentences) > 1:
            return [*children[:index], nodes.Text("".join(sentences[:-1]))]
    return []


def _whole_after(children: list[nodes.Node]) -> list[nodes.Node]:
    """Return what stands behind the sentence that these nodes begin in."""
    for index, node in enumerate(children):
        sentences = SENTENCE_END.split(node.astext()) if isinstance(node, nodes.Text) else []
        if len(sentences) > 1:
            return [nodes.Text("".join(sentences[1:])), *children[index + 1 :]]
    return []

"""From answers to a corrector: what is fitted on some prompts is judged on others."""

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pomona.workers.speculation.answers import Answer, Depth, follow, reached_pairs, shares, windows
from pomona.workers.speculation.corrector import Account, Correction, Corrector, Kind, accepted_drafts
from pomona.workers.speculation.fit import fit
from pomona.workers.speculation.mtp_head import MtpHead

KINDS: tuple[Kind, ...] = ("c0", "c1", "c2", "c1+c2")
BLENDS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
TRAIN = 0.75
"""Share of the prompts that are fitted on, about."""
WINDOWS = 64
"""Places of one answer from which guesses are followed, at most."""

Report = Callable[[str], None]
"""Told what is being done."""


class Split(NamedTuple):
    train: list[Answer]
    held_out: list[Answer]


def split(answers: Sequence[Answer]) -> Split:
    """By the prompts themselves, so that the same prompts are always split alike; neither side is empty.

    Raises ValueError for fewer than two different prompts.
    """
    rank = {_place(answer): answer for answer in answers}
    if len(rank) < 2:
        raise ValueError(f"{len(rank)} prompts cannot be split into some to fit on and others to judge by")
    train = [answer for answer in answers if _place(answer) < TRAIN]
    held_out = [answer for answer in answers if _place(answer) >= TRAIN]
    if not held_out:
        highest = max(rank)
        train = [answer for answer in answers if _place(answer) != highest]
        held_out = [answer for answer in answers if _place(answer) == highest]
    elif not train:
        lowest = min(rank)
        train = [answer for answer in answers if _place(answer) == lowest]
        held_out = [answer for answer in answers if _place(answer) != lowest]
    return Split(train, held_out)


def _place(answer: Answer) -> float:
    """0 to 1, by the prompt alone."""
    prompt = answer.tokens[: answer.begin]
    return int.from_bytes(hashlib.sha256(struct.pack(f"<{len(prompt)}I", *prompt)).digest()[:4], "little") / 2**32


class Fitting:
    """Fits of one head's corrector for rounds of `depth` drafts, 2 or more."""

    def __init__(self, head: MtpHead, answers: Sequence[Answer], depth: int, rank: int) -> None:
        """Raises ValueError where there is too little to fit on, or to judge by."""
        self._head = head
        self._depth = depth
        self._rank = rank
        usable = [answer for answer in answers if windows(answer, depth, WINDOWS)]
        self._train, self._held_out = split(usable)

    def run(self, kinds: Sequence[Kind], report: Report = lambda text: None) -> Corrector:
        """The kind and the blend that do best on what they were fitted on, with an account of all the other prompts."""
        before = shares(self._follow(self._held_out, None))
        fitted: dict[Kind, list[Correction]] = {}
        for kind in kinds:
            report(f"fitting {kind}")
            fitted[kind] = self._fit(kind)
        report("choosing")
        scores = {kind: self._score(corrections) for kind, corrections in fitted.items()}
        kind = max(scores, key=lambda each: scores[each])
        blends = {blend: self._score(_blended(fitted[kind], blend)) for blend in BLENDS}
        blend = max(blends, key=lambda each: blends[each])
        chosen = self._corrector(_blended(fitted[kind], blend), kind, blend)
        after = shares(self._follow(self._held_out, chosen))
        return self._corrector(list(chosen.corrections), kind, blend, before, after)

    def _fit(self, kind: Kind) -> list[Correction]:
        """Depth by depth: each on guesses that were made from corrected ones."""
        corrections: list[Correction] = []
        for depth in range(1, self._depth):
            found = self._follow(self._train, self._corrector(corrections, kind), depth)
            guessed, true = reached_pairs([depths[-1] for depths in found])
            corrections.append(fit(kind, guessed, true, self._rank))
        return corrections

    def _score(self, corrections: list[Correction]) -> float:
        return accepted_drafts(shares(self._follow(self._train, self._corrector(corrections, "c0"))))

    def _follow(
        self, answers: Sequence[Answer], corrector: Corrector | None, depth: int | None = None
    ) -> list[list[Depth]]:
        deepest = depth or self._depth
        return [
            follow(self._head, answer, windows(answer, self._depth, WINDOWS), deepest, corrector) for answer in answers
        ]

    def _corrector(
        self,
        corrections: list[Correction],
        kind: Kind,
        blend: float = 1.0,
        before: tuple[float, ...] = (),
        after: tuple[float, ...] = (),
    ) -> Corrector:
        size = self._head.norm.weight.shape[0]
        rank = self._rank if "c2" in kind else 0
        return Corrector(
            corrections,
            Account(
                kind=kind,
                hidden=self._head.contract.hidden,
                size=size,
                rank=rank,
                blend=blend,
                before=before,
                after=after,
            ),
        )


def _blended(corrections: Sequence[Correction], share: float) -> list[Correction]:
    return [each.blended(share) for each in corrections]

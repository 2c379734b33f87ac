"""Aligned text as stages of a job: one side of pairs, of which rules leave out some, and its different sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.inference.distinct import Distinct, SearchedSide
from xrep.inference.encoding import Encode, HeldEncoder, Read
from xrep.jobs.plan import Advance, Stage
from xrep.store.vectors import Origin
from xrep.text.cleaning import NO_KEY, CleaningOptions, drop_reason, sentence_hash
from xrep.text.examples import read_pairs
from xrep.text.find import Bitext
from xrep.text.sides import SIDES


class ReadAligned(Read):
    """Copy one side of pairs, and further text in its language. A unit is some pairs, of which those that a rule drops
    become empty lines, or a file.

    Args:
        rules: Those of cleaning; None: pairs without a word on a side are dropped, and sentences with the same words
            are equal.
        name: That of the stage, unless it is of the side.
    """

    def __init__(
        self,
        side: int,
        aligned: Sequence[Bitext],
        background: Sequence[str],
        rules: CleaningOptions | None,
        name: str | None = None,
    ) -> None:
        files = [*(bitext.paths[side and -1] for bitext in aligned), *background]
        self.aligned, self.lang, self._side, self._rules = aligned, aligned[0].languages[side], side, rules
        super().__init__(name or SIDES[side], files, self.lang, "stripped")
        if rules is None:
            self._hash_of = sentence_hash

    @cached_property
    def units(self) -> Sequence[Any]:
        return [*self.aligned, *self.files[len(self.aligned) :]]

    def run(self, unit: Bitext | str, folder: Path, advance: Advance) -> dict[str, Any]:
        if isinstance(unit, str):
            return super().run(unit, folder, advance)
        dropped = Counter[str]()

        def kept() -> Iterator[tuple[int, str]]:
            for number, *pair in read_pairs(unit):
                hashes = [sentence_hash(text) for text in pair]
                rule = drop_reason(pair[0], pair[1], hashes, self._rules) if self._rules else None
                rule = "empty" if self._rules is None and NO_KEY in hashes else rule
                dropped.update([rule] if rule else [])
                yield number, "" if rule else pair[self._side]

        rows = self.copy(folder, kept())
        if rows - sum(dropped.values()) < (1 if unit == self.aligned[0] else 2):  # trusted pairs exchange their targets
            left_out = ", ".join(f"{count:,} {rule}" for rule, count in dropped.items()) or "none"
            cure = "give more" + (", or change the rules" if self._rules else "")
            raise UserError(f"too few pairs (left out: {left_out})", path=unit.paths[0], cure=cure)
        return {"rows": rows, "dropped": dropped}


class PairedSide(SearchedSide):
    """One side of the pairs as stages: its text is read, its different sentences are numbered, and they are encoded."""

    def __init__(self, read: ReadAligned, encoder: HeldEncoder, origin: Origin, k: int) -> None:
        self.read, name = read, read.name.removeprefix("read-")
        more = "give more pairs, or further sentences by `background`"
        self.distinct = Distinct(name, read, max(1, k), numbered=True, more=more)
        encode = Encode(name, self.distinct, encoder, origin)
        self.stages: list[Stage] = [read, self.distinct, encode]
        super().__init__(encode, k)

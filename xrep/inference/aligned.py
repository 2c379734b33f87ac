"""Aligned text as a stage of a job: one side of pairs of which rules leave out some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.inference.encoding import Read, write_hashed
from xrep.jobs.plan import Advance
from xrep.text.cleaning import CleaningOptions, drop_reason, sentence_hash
from xrep.text.examples import read_pairs
from xrep.text.find import Bitext


class ReadAligned(Read):
    """Copy one side of pairs, and further text in its language. A unit is some pairs, of which those that a rule drops
    become empty lines, or a file; ``name`` is that of the stage, unless it is of the side."""

    def __init__(
        self,
        side: int,
        aligned: Sequence[Bitext],
        background: Sequence[str],
        rules: CleaningOptions,
        name: str | None = None,
    ) -> None:
        files = [*(bitext.paths[side and -1] for bitext in aligned), *background]
        self.aligned, self.lang, self._side, self._rules = aligned, aligned[0].languages[side], side, rules
        super().__init__(name or ("source", "target")[side], files, self.lang, "stripped")

    @cached_property
    def units(self) -> Sequence[Any]:
        return [*self.aligned, *self.files[len(self.aligned) :]]

    def run(self, unit: Bitext | str, folder: Path, advance: Advance) -> dict[str, Any]:
        if isinstance(unit, str):
            return super().run(unit, folder, advance)
        dropped = Counter[str]()

        def kept() -> Iterator[tuple[int, str]]:
            for number, source, target in read_pairs(unit):
                rule = drop_reason(source, target, [sentence_hash(source), sentence_hash(target)], self._rules)
                dropped.update([rule] if rule else [])
                yield number, "" if rule else (source, target)[self._side]

        rows = write_hashed(folder, kept())
        if rows - sum(dropped.values()) < (1 if unit == self.aligned[0] else 2):  # trusted pairs exchange their targets
            left_out = ", ".join(f"{count:,} {rule}" for rule, count in dropped.items()) or "none"
            problem, cure = f"too few pairs (left out: {left_out})", "give more, or change the rules"
            raise UserError(problem, path=unit.paths[0], cure=cure)
        return {"rows": rows, "dropped": dropped}

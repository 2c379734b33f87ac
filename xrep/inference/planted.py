"""Trusted pairs as stages of mining: they are read, encoded and searched in both texts."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xrep.errors import UserError
from xrep.inference.aligned import ReadAligned
from xrep.inference.distinct import SearchedSide
from xrep.inference.encoding import Encode, HeldEncoder
from xrep.inference.judging import Neighbourhood, plant
from xrep.inference.nearest import FoundNeighbours, SearchAll
from xrep.inference.settings import MiningOptions
from xrep.inference.text_sides import TextSide
from xrep.jobs.plan import Advance, Remade, Stage
from xrep.metrics.mined import Planted
from xrep.retrieval.topk import pair_similarities
from xrep.store.texts import HASHES
from xrep.store.vectors import Origin
from xrep.text.cleaning import CleaningOptions
from xrep.text.find import Bitext

_FEWEST = 30
"""Number of trusted pairs that are needed."""


class CheckTrusted(Stage):
    """Check that enough of the trusted pairs can be used, before anything is encoded. It is one unit."""

    name = "check-trusted"

    def __init__(self, trusted: TrustedPairs) -> None:
        self._trusted = trusted

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        self._trusted.check()
        return {}


class TrustedPairs(Remade):
    """The trusted pairs of a text, the stages that read them when the texts are read, and those that find their
    neighbours in the texts, which are encoded then. The search is exact."""

    def __init__(
        self, trusted: Bitext, texts: tuple[TextSide, TextSide], encoder: HeldEncoder, options: MiningOptions,
        origins: tuple[Origin, Origin],
    ) -> None:  # fmt: skip
        self._trusted, self._texts, self._options = trusted, texts, options
        rules = CleaningOptions()
        self._read = [ReadAligned(side, [trusted], [], rules, f"trusted-{texts[side].name}") for side in (0, 1)]
        self._encode = [
            Encode(f"trusted-{text.name}", read, encoder, origin)
            for text, read, origin in zip(texts, self._read, origins, strict=True)
        ]
        self._search = [
            SearchAll(SearchedSide(encode, options.neighbours), text.searched(0), options.device)
            for encode, text in zip(self._encode, texts[::-1], strict=True)
        ]
        for text, search in zip(texts, self._search, strict=True):
            search.name = f"search-trusted-{text.name}"
        self.reading: list[Stage] = [*self._read, CheckTrusted(self)]
        self.searching: list[Stage] = [*self._encode, *self._search]

    @cached_property
    def counts(self) -> dict[str, int]:
        """The numbers of trusted pairs that are used, and of those that are not because a sentence is in the texts."""
        kept, usable = (int(some.sum()) for some in self._usable)
        return {"trusted": usable, "trusted_in_text": kept - usable}

    @cached_property
    def _usable(self) -> tuple[np.ndarray, np.ndarray]:
        """Which rows have a pair that the rules keep, and which of these are not in the texts, bool [rows] each."""
        rows = self._read[0].results[0].facts["rows"]
        kept, there = np.zeros(rows, bool), np.zeros(rows, bool)
        for read, text in zip(self._read, self._texts, strict=True):
            hashes = read.results[0].array(HASHES).read(slice(None))
            places = hashes[:, 1].astype(np.int64)
            kept[places] = True
            there[places] |= text.has(hashes[:, 0])
        return kept, kept & ~there

    def check(self) -> None:
        """Raise a UserError if they are too few."""
        if self.counts["trusted"] < _FEWEST:
            known = self.counts["trusted_in_text"]
            problem = f"{self.counts['trusted']} trusted pairs"
            problem += f", beside {known:,} of which a sentence is in the text that is mined" if known else ""
            cure = f"give {_FEWEST} or more that are not in that text"
            raise UserError(problem, path=self._trusted.paths[0], cure=cure)

    def planted(self, x: FoundNeighbours, y: FoundNeighbours) -> Planted:
        """Return which pairs they would be in, given the neighbours of the sentences of both texts; a UserError says
        that none would be found."""
        rows = np.flatnonzero(self._usable[1])
        one, other = (torch.from_numpy(encode.vectors.read(rows)) for encode in self._encode)
        numbers, options = torch.arange(len(rows)), self._options
        cosine = pair_similarities(one, other, numbers, numbers).numpy()
        found = [search.layers("x")[0].take(rows) for search in self._search]
        sources, targets = Neighbourhood.of(found[0], x, y), Neighbourhood.of(found[1], y, x)
        planted = plant(cosine, sources, targets, options.margin, options.retrieval, options.one_to_one)
        if not planted.is_right.any():
            problem, cure = "none of the trusted pairs would be found", "check the languages, and measure the encoder"
            raise UserError(problem, path=self._trusted.paths[0], cure=cure)
        return planted

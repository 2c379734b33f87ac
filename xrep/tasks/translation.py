"""The translation task: pairs of sentences, of which one side is read and the other is generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from xrep.config.fields import Count, Share
from xrep.data.table import Column, Table
from xrep.errors import UserError
from xrep.tasks.bitext import BitextTask, T
from xrep.text.sides import SHARED

OTHER_SIDE = {"source": "target", "target": "source"}


class TranslationTask(BitextTask):
    """Pairs of sentences in one or several language pairs, whose source is to be translated into their target.

    It is like ``BitextTask``, but either side of a pair may be the source, or each in turn, and batches hold as many
    pairs as fit into a number of tokens. Source and target may have separate vocabularies.

    Raises:
        UserError: anything that ``BitextTask`` raises; both directions, if the sides have separate vocabularies.
    """

    default_model = "translation"

    @dataclass(kw_only=True)
    class Config(BitextTask.Config):
        direction: Literal["forward", "reverse", "both"] = "forward"
        """Direction of translation. forward: into English if that is one of the two languages, also where the pair is
        named en-de, or else from the first language of the name into the second. reverse: the opposite, for example to
        translate from English. both: every pair in both directions, at two different places of an epoch."""
        max_tokens: Count | None = 4096
        """Maximum number of tokens in a batch of one rank, counted for each side, special tokens included; a batch
        takes as many of the next pairs as fit. Padding does not count (fairseq counts it), but pairs that would be
        padded to more than three times as many tokens go into different batches. none: batches have batch_size
        pairs."""
        # The base class reads it only without a token budget, and then ``problems`` requires a number.
        batch_size: Count | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
        """Maximum number of pairs in a batch. none: as many as max_tokens allows. Without max_tokens: the number of
        pairs in each batch."""
        max_length: Annotated[int, "[3, inf)"] = 256
        """Maximum length of a sentence of either side in subwords, with special tokens; longer ones are cut."""
        sampling_alpha: Share = 1.0
        """Language pairs, by direction, are drawn with p proportional to n ** sampling_alpha, where n is their number
        of pairs; it equals 1/T for a sampling temperature T. 1 takes every pair once per epoch; smaller values repeat
        small corpora."""

        def problems(self) -> list[str]:
            problems = list[str]()
            if self.max_tokens is None and self.batch_size is None:
                problems.append("batch_size must be given where max_tokens is none")
            if self.source_prompt or self.target_prompt:
                problems.append(
                    "source_prompt and target_prompt are for encoders; no text is put in front of sentences"
                )
            return problems

    config: Config

    def __init__(self, config: Config, seed: int, tokenizers: Mapping[str, str] | None = None) -> None:
        super().__init__(config, seed, tokenizers, config.max_tokens)
        if config.direction == "both" and SHARED not in self.tokenizers:
            raise UserError(
                "source and target have vocabularies of their own, so a pair cannot be read both ways",
                path=self.place,
                cure="set `direction` to forward or reverse, or preprocess the text with one vocabulary",
            )

    def fingerprint(self) -> str:
        direction = self.config.direction
        return super().fingerprint() + ("" if direction == "forward" else f" {direction}")

    def _by_side(self, given: Mapping[str, T]) -> Mapping[str, T]:
        if self.config.direction == "reverse":
            return {OTHER_SIDE.get(side, side): each for side, each in given.items()}
        return given

    def _pairs(self, tables: list[Table]) -> list[Table]:
        turned = [_turned(pair) for pair in tables]
        return {"forward": tables, "reverse": turned, "both": tables + turned}[self.config.direction]


def _turned(pair: Table) -> Table:
    columns = {"source": pair["target"], "target": pair["source"], "hashes": Column(pair.hashes[:, ::-1])}
    languages = pair.languages[::-1]
    return Table("-".join(languages), columns, {**pair.facts, "languages": languages}, pair.salt)

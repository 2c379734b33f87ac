"""Sentence encoder with one shared tower, or one tower for each side of a language pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from xrep.data.batching import TextSpec, TokenBatch
from xrep.errors import UserError
from xrep.nn.encoder import TransformerEncoder
from xrep.nn.layers import Linear
from xrep.nn.pooling import pool


class DualEncoder(nn.Module):
    """Transformer tower(s), pooling, optional projection, L2 normalisation.

    With ``towers: separate`` every source language shares the tower ``source`` and every target language the tower
    ``target`` (dual momentum contrast has one BERT for each of two languages); with ``towers: shared`` all languages,
    also ones never seen in training, go through one tower.

    Raises:
        UserError: sentences may be longer than the position table; a language is on both sides of separate towers.
    """

    @dataclass(kw_only=True)
    class Config:
        towers: Literal["shared", "separate"] = "separate"
        """One encoder for all languages, or one for the source and one for the target languages."""
        layers: int = 6
        """Transformer layers."""
        hidden_size: int = 512
        """Width of the token vectors."""
        heads: int = 8
        """Attention heads."""
        feedforward_size: int = 2048
        """Width of the feed-forward networks."""
        dropout: float = 0.1
        """Dropout of embeddings and sublayer outputs."""
        attention_dropout: float = 0.1
        """Dropout of attention weights."""
        norm: Literal["post", "pre"] = "post"
        """Layer normalisation after each sublayer (BERT) or before it."""
        max_positions: int = 512
        """Longest sentence in subwords, special tokens included."""
        pooling: Literal["mean", "max", "cls"] = "mean"
        """How token vectors become a sentence vector; padding never counts."""
        projection_size: int | None = None
        """Width of a linear projection after pooling; none: the pooled vector is the sentence vector."""
        normalize: bool = True
        """L2-normalise sentence vectors, so that dot product is cosine."""

        def problems(self) -> list[str]:
            sizes = ("layers", "hidden_size", "heads", "feedforward_size", "max_positions", "projection_size")
            given = {name: value for name in sizes if (value := getattr(self, name)) is not None}
            found = [f"{name} must be at least 1, not {value}" for name, value in given.items() if value < 1]
            if not found and self.hidden_size % self.heads:
                found.append(f"hidden_size {self.hidden_size} is not divisible by heads {self.heads}")
            rates = {name: getattr(self, name) for name in ("dropout", "attention_dropout")}
            return found + [f"{name} must lie in [0, 1), not {x}" for name, x in rates.items() if not 0 <= x < 1]

    def __init__(self, config: Config, text: TextSpec) -> None:
        super().__init__()
        if text.max_length > config.max_positions:
            raise UserError(
                f"sentences may have {text.max_length} subwords, the model has {config.max_positions} positions",
                cure="lower --max-length or raise --max-positions",
            )
        self.config, self._text = config, text
        both = sorted(set(text.source_languages) & set(text.target_languages))
        if config.towers == "separate" and both:
            raise UserError(f"{', '.join(both)}: both a source and a target language", cure="use --towers shared")
        names = ["shared"] if config.towers == "shared" else ["source", "target"]
        self.encoders = nn.ModuleDict({name: _encoder(config, text) for name in names})
        size = config.projection_size
        self.projections = nn.ModuleDict({name: Linear(config.hidden_size, size) for name in names} if size else {})

    @property
    def output_size(self) -> int:
        """D, the width of sentence vectors."""
        return self.config.projection_size or self.config.hidden_size

    @property
    def languages(self) -> list[str]:
        return sorted({*self._text.source_languages, *self._text.target_languages})

    def tower(self, language: str | None) -> str:
        """Name of the tower that encodes a language.

        Raises:
            UserError: towers are separate and the language was not trained, or none is given.
        """
        if self.config.towers == "shared":
            return "shared"
        if language in self._text.source_languages:
            return "source"
        if language in self._text.target_languages:
            return "target"
        raise UserError(
            "this encoder has a tower for each side and no language was named"
            if language is None
            else f"this encoder has no tower for the language {language!r}",
            cure="known: " + ", ".join(self.languages),
        )

    def encode(self, tower: str, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Sentence vectors [B, D] (of length 1 if ``normalize``) and token vectors [B, T, H]."""
        tokens = self.encoders[tower](batch)
        sentence = pool(tokens, batch.mask, self.config.pooling)
        if self.projections:
            sentence = self.projections[tower](sentence)
        if self.config.normalize:
            sentence = F.normalize(sentence, dim=-1)
        return sentence, tokens

    def encode_pair(self, source: TokenBatch, target: TokenBatch) -> tuple[Tensor, Tensor]:
        """Sentence vectors of both sides of pairs, [B, D] each; a shared tower reads both in one pass."""
        if self.config.towers == "separate":
            return self.encode("source", source)[0], self.encode("target", target)[0]
        both = self.encode("shared", source.followed_by(target, self._text.pad_id))[0]
        return both[: len(source)], both[len(source) :]


def _encoder(config: DualEncoder.Config, text: TextSpec) -> TransformerEncoder:
    return TransformerEncoder(
        vocabulary_size=text.vocabulary_size,
        pad_id=text.pad_id,
        max_positions=config.max_positions,
        hidden_size=config.hidden_size,
        layers=config.layers,
        heads=config.heads,
        feedforward_size=config.feedforward_size,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        norm=config.norm,
    )

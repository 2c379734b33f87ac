"""Options of mining and of exports, which the help of commands shows without waiting for torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from xrep.config.fields import Count, CountOrZero, Positive, check_options
from xrep.errors import UserError
from xrep.nn.pooling import Pooling
from xrep.retrieval.margins import Margin, Retrieval

PROBES = 32
"""Number of cells of an inverted file that are searched for each query, unless the user wants another."""
PART_GIGABYTES = 2.0
"""Gigabytes of an index and of the vectors in it that are held at a time, unless the user wants another number."""
Number = Annotated[int, "[1, 2147483647]"]
ScoreBound = Annotated[float, "[-1e9, 1e9]"]


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of every search for neighbours.

    Raises:
        UserError: A value is out of range.
    """

    index: str = "flat"
    """flat is exact search. Others may miss neighbours and are faster for millions of sentences: ivf, an inverted file
    of faiss for the number of sentences, or a string of faiss's own factory, such as IVF4096,SQ8 or
    IVF4096,PQ192x4fs."""
    probes: Number = PROBES
    """Number of cells of an inverted file that are searched for each sentence."""
    index_gigabytes: Positive = PART_GIGABYTES
    """Memory of the part of an index that a worker holds, and of the vectors in it, in GB. All sentences are read
    and searched for once for each part, and larger parts are fewer."""
    batch_tokens: Number = 4096
    """Number of subwords per batch of the encoder."""
    device: str = "cpu"
    """Device on which the exact search computes its products."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class MarginOptions(SearchOptions):
    """How pairs are scored."""

    margin: Margin = "ratio"
    """Score of a pair: its cosine; its cosine minus the mean cosine of both sides with their neighbours; or divided by
    it."""
    neighbours: Count = 4
    """Number of neighbours in each direction, which the margin averages. Mining searches translations among them."""


@dataclass(frozen=True, kw_only=True)
class MiningOptions(MarginOptions):
    """Options of ``mine``."""

    retrieval: Retrieval = "max"
    """Candidates: the best target of each source; the best source of each target; pairs that are both; pairs that are
    either."""
    threshold: float | None = None
    """Leave out pairs with a lower score. Hardly any score is below 0, so 0 keeps nearly all pairs. None: the threshold
    with the best F1 is chosen, by trusted pairs or else by the scores alone."""
    least_precision: Annotated[float, "(0, 1]"] | None = None
    """Choose the lowest threshold from which on this share of the pairs is probably right."""
    one_to_one: bool = False
    """Use each target only once, in its best pair. (Each source is in at most one pair anyway.)"""

    def problems(self) -> list[str]:
        both = self.threshold is not None and self.least_precision is not None
        return ["`threshold` and `least_precision` both choose the pairs; give one of them"] * both


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(MarginOptions):
    """Options of ``score_pairs``: of ``keep``, ``threshold`` and trusted pairs one may choose what is written.

    Raises:
        UserError: A value is out of range, or two of them choose.
    """

    keep: Annotated[float, "(0, 1]"] | None = None
    """Write this share of all pairs that were read, the best ones. Of scores that are equal to four decimals, all
    are written."""
    threshold: float | None = None
    """Write the pairs with this score or more."""
    least_precision: Annotated[float, "(0, 1]"] | None = None
    """With trusted pairs: of the thresholds from which on at least this share is right, take the one that keeps most;
    none: the one with the best F1."""

    def problems(self) -> list[str]:
        both = self.keep is not None and self.threshold is not None
        return ["keep and `threshold` both choose the pairs; give one of them"] * both


@dataclass(frozen=True, kw_only=True)
class NegativeOptions(SearchOptions):
    """Options of ``mine_negatives``; most have the names of sentence-transformers' ``mine_hard_negatives``.

    Raises:
        UserError: A value is out of range.
    """

    num_negatives: Number = 3
    """Maximum number of negatives of each pair."""
    range_min: Annotated[int, "[0, 2147483647]"] = 0
    """Skip this number of the nearest candidates that are no known translations."""
    range_max: Number = 50
    """Take none beyond this rank."""
    absolute_margin: ScoreBound | None = None
    """Leave out candidates whose score is above that of the true translation minus this value."""
    relative_margin: ScoreBound | None = 0.05
    """Leave out candidates whose score is above (1 - relative_margin) times that of the true translation: they may be
    translations, too. A negative value allows higher scores than that of the true translation."""
    max_score: ScoreBound | None = None
    """Leave out candidates whose score is above this value."""
    min_score: ScoreBound | None = None
    """Leave out candidates whose score is below this value: they would be too easy."""
    sampling_strategy: Literal["top", "random"] = "top"
    """Which of the remaining candidates are taken: the nearest, or any of them at random."""
    seed: CountOrZero = 1
    """Random seed of the sampling strategy random."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.range_min >= self.range_max:
            raise UserError(f"`range_min` {self.range_min} is not below `range_max` {self.range_max}")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What an export writes, and what it changes of the model."""

    format: Literal["sentence-transformers", "hf", "onnx", "openvino", "xrep", "int8", "ctranslate2", "static"] = (
        "sentence-transformers"
    )
    """hf: the transformer alone, without pooling and projection, also the encoder of a translation model; onnx,
    openvino: a graph from tokens to vectors for ONNX Runtime or OpenVINO (extra of that name); xrep: a checkpoint of
    any model, without what training alone needs; int8: one with the weights of transformer layers in int8, for CPUs,
    also of a pretrained encoder; ctranslate2: a translator for CTranslate2 (extra of that name); static: one vector for
    each subword, of which sentence vectors are means, for sentence-transformers and xrep."""
    precision: Literal["float32", "int8"] = "float32"
    """Type of the weights that --format ctranslate2 writes."""
    vocabulary_from: list[str] = field(default_factory=list)
    """Files of text of which the encoder keeps the vocabulary: the subwords that they use, special tokens, and single
    characters or bytes, so that other text can be read. Vectors of their sentences do not change."""
    keep: Count | None = None
    """Number of subwords of the text in vocabulary_from to keep, the most frequent; none: all of them."""
    static_size: Count | None = None
    """Numbers in a vector of the format static, principal components of the encoder's vectors; none: 256, or all if
    the encoder's have fewer."""
    average: Count | None = None
    """The mean of the weights of the N newest checkpoints of the run, which was trained with --keep-last N."""
    pooling: Pooling | None = None
    """Another pooling than it was trained with."""
    no_projection: bool = False
    """Leave out the projection behind the pooling, as in frozen_source (table 8, '[CLS] without MLP')."""
    layer: int | None = None
    """Pool the token vectors of this layer, and leave out the layers above."""
    license: str | None = None
    """Licence of the model, for the model card: apache-2.0, cc-by-4.0, other and so on."""
    results: list[str] = field(default_factory=list)
    """Results for the model card, files that xrep-eval --json wrote for this model."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.keep is not None and not self.vocabulary_from:
            raise UserError("`keep` needs `vocabulary_from`", cure="name the text whose subwords it counts")
        if self.static_size is not None and self.format != "static":
            raise UserError("`static_size` is for the format static", cure="set `format` to static, or leave it out")

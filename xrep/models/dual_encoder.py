"""Sentence encoder with one shared tower, or one tower for each side of a language pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from xrep.data.batching import TextSpec, TokenBatch, Vocabulary
from xrep.errors import UserError
from xrep.models.projection import Projection, ProjectionShape, make_projection
from xrep.models.start import Start, find_start
from xrep.nn.containers import ModuleDict
from xrep.nn.encoder import EncoderShape, TransformerEncoder
from xrep.nn.pooling import Pooling, pool

SHARED, SIDES = "shared", ("source", "target")


class DualEncoder(nn.Module):
    """Transformer tower(s), pooling, optional projection, L2 normalisation.

    With ``towers: separate`` every source language shares the tower ``source`` and every target language the tower
    ``target`` (dual momentum contrast has one BERT for each of two languages); with ``towers: shared`` all languages,
    also ones never seen in training, go through one tower. Towers start from random weights or from directories of
    pretrained encoders, each with a vocabulary and a width of its own.

    Args:
        architecture: what ``architecture`` of a saved model said, to build it again without its pretrained directories;
            None: as the configuration says, with the weights of those directories.

    Attributes:
        notes: what a user should know of the pretrained weights.
        new_projections: towers whose projection has random weights.

    Raises:
        UserError: sentences may be longer than the position table; a language is on both sides of separate towers; a
            pretrained directory cannot be read or does not fit the text.
    """

    @dataclass(kw_only=True)
    class Config:
        towers: Literal["shared", "separate"] = "separate"
        """One encoder for all languages, or one for the source and one for the target languages."""
        encoder: str | None = None
        """Pretrained encoder that the towers start from: a directory of Hugging Face or sentence-transformers (BERT,
        RoBERTa, XLM-R), a name in the local Hugging Face cache, or a tower of a run: RUN/best, or RUN/best/target where
        each side has one. Its sizes and its tokenizer are taken over."""
        source_encoder: str | None = None
        """The same for the source tower alone. A tower without one has the sizes below and random weights; if the other
        one brings a tokenizer, its own is trained on the text of its side."""
        target_encoder: str | None = None
        """The same for the target tower alone."""
        pretrained_layers: int | None = None
        """First layers of pretrained encoders to take; none: all."""
        layers: int = 6
        """Transformer layers (of towers that are not pretrained, as the sizes below)."""
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
        pooling: Literal["auto", "mean", "max", "cls"] = "auto"
        """How token vectors become a sentence vector; padding never counts. auto: as the tower's pretrained directory
        says, else as the other tower's, else mean."""
        source_pooling: Literal["auto", "mean", "max", "cls"] = "auto"
        """The same for the source tower alone. auto: as pooling says."""
        target_pooling: Literal["auto", "mean", "max", "cls"] = "auto"
        """The same for the target tower alone. auto: as pooling says."""
        pooled_layer: int | None = None
        """Layer whose token vectors are pooled: 0 is the embeddings; none: the last."""
        projection_size: int | None = None
        """Width of a new projection after pooling, in every tower. none: a pretrained encoder keeps its own, if it has
        one, and one of two towers may be projected to the width of the other (projected_side)."""
        projection: Literal["auto", "linear", "tanh", "spaces"] = "auto"
        """What a new projection is: linear; linear and tanh (with pooling cls SimCSE's '[CLS] with an MLP'; xrep-export
        can leave it out); or spaces, the mean of the vectors that CMLM predicts from (see projection_spaces). auto:
        linear, but without projection_size only if the towers differ in width."""
        projection_spaces: int = 15
        """N of the projection spaces: the pooled vector itself and N - 1 perceptrons of it, which the criterion cmlm
        trains."""
        projected_side: Literal["auto", "source", "target"] = "auto"
        """The tower that is projected to the width of the other one, without projection_size. auto: the one that is not
        pretrained where the other is, else the target tower."""
        normalize: bool = True
        """L2-normalise sentence vectors, so that dot product is cosine."""

        def problems(self) -> list[str]:
            sizes = ("layers", "hidden_size", "heads", "feedforward_size", "max_positions")
            sizes = (*sizes, "projection_size", "projection_spaces")
            given = {name: value for name in sizes if (value := getattr(self, name)) is not None}
            found = [f"{name} must be at least 1, not {value}" for name, value in given.items() if value < 1]
            if not found and self.hidden_size % self.heads:
                found.append(f"hidden_size {self.hidden_size} is not divisible by heads {self.heads}")
            rates = {name: getattr(self, name) for name in ("dropout", "attention_dropout")}
            found += [f"{name} must lie in [0, 1), not {x}" for name, x in rates.items() if not 0 <= x < 1]
            if self.pretrained_layers is not None and self.pretrained_layers < 1:
                found.append(f"pretrained_layers must be at least 1, not {self.pretrained_layers}")
            if self.pooled_layer is not None and self.pooled_layer < 0:
                found.append(f"pooled_layer must be at least 0, not {self.pooled_layer}")
            of_sides = [side for side in SIDES if getattr(self, f"{side}_encoder")]
            if self.towers == "shared" and of_sides:
                found.append(f"{of_sides[0]}_encoder needs towers: separate; a shared tower has --encoder")
            for name in ("source_pooling", "target_pooling", "projected_side"):
                if getattr(self, name) != "auto" and self.towers == "shared":
                    found.append(f"{name} needs towers: separate")
            if self.projected_side != "auto" and self.projection_size is not None:
                found.append("projected_side is for one tower, projection_size for both; give one of them")
            if self.projection == "spaces" and (self.projection_size is not None or self.projected_side != "auto"):
                found.append("projection spaces are in all towers, as wide as they: no projection_size, projected_side")
            return found

        def pretrained(self) -> dict[str, str]:
            """Directory or name of each tower's pretrained encoder; empty if there is none."""
            names = (SHARED,) if self.towers == "shared" else SIDES
            named = {name: getattr(self, f"{name}_encoder", None) or self.encoder for name in names}
            return {name: path for name, path in named.items() if path}

        def tokenizers(self) -> dict[str, str]:
            """Folders of the tokenizers that the towers bring, by side; empty if the text has its own.

            Raises:
                UserError: a pretrained encoder is not there.
            """
            return {name: str(find_start(path).tokenizer) for name, path in self.pretrained().items()}

    def __init__(self, config: Config, text: TextSpec, architecture: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.config, self._text, self.notes = config, text, list[str]()
        both = sorted(set(text.source_languages) & set(text.target_languages))
        if config.towers == "separate" and both:
            raise UserError(f"{', '.join(both)}: both a source and a target language", cure="use --towers shared")
        if config.towers == "shared" and SHARED not in text.vocabularies:
            raise UserError("the sides of this text have vocabularies of their own", cure="use --towers separate")
        fresh = architecture is None
        pretrained = {name: find_start(path) for name, path in config.pretrained().items()} if fresh else {}
        if architecture is None:
            architecture = _architecture(config, text, pretrained)
        self.pooling: dict[str, Pooling] = architecture["pooling"]
        """Of each tower."""
        shapes = {name: EncoderShape(**values) for name, values in architecture["towers"].items()}
        for name, shape in shapes.items():
            _check(name, shape, text.vocabulary(name), text.max_length, config)
        rates = {"dropout": config.dropout, "attention_dropout": config.attention_dropout}
        self.encoders = ModuleDict({name: TransformerEncoder(shape, **rates) for name, shape in shapes.items()})
        projections = {name: ProjectionShape(**values) for name, values in architecture["projections"].items()}
        self.projections = ModuleDict({name: make_projection(shape) for name, shape in projections.items()})
        self._architecture = architecture
        brought = [n for n, start in pretrained.items() if start.projection and config.projection_size is None]
        self.new_projections = [name for name in projections if fresh and name not in brought]
        self.output_size = self.width(next(iter(shapes)))
        """D, the width of sentence vectors."""
        pooled = config.pooled_layer
        self.idle_parameters = pooled is not None and any(pooled < shape.layers for shape in shapes.values())
        """Whether some parameters stand above the pooled layer, so that sentence vectors give them no gradient."""
        for name, source in pretrained.items():
            self._load(name, source)

    def architecture(self) -> dict[str, Any]:
        """Sizes of towers and projections, and pooling, as plain data: saved beside the weights."""
        return self._architecture

    def _load(self, name: str, source: Start) -> None:
        state, unused = source.state(self.config.pretrained_layers)
        self.encoders[name].load_state_dict(state)
        kept = f"tower {name}: {len(state)} tensors of {source.path}"
        self.notes.append(f"{kept}; not used: {_listed(unused)}" if unused else kept)
        if source.projection is not None and self.config.projection_size is None:
            projection = self.projections[name]
            assert isinstance(projection, Projection)
            projection.load(source.projection)

    def width(self, tower: str) -> int:
        """Of the tower's sentence vectors."""
        if tower in self.projections:
            return self.projections[tower].shape.output_size
        return self.encoders[tower].shape.hidden_size

    @property
    def languages(self) -> list[str]:
        return self._text.languages

    def tower(self, language: str | None) -> str:
        """Name of the tower that encodes a language.

        Raises:
            UserError: towers are separate and the language was not trained, or none is given.
        """
        if self.config.towers == "shared":
            return SHARED
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
        """Sentence vectors [B, D] (of length 1 if ``normalize``) and token vectors [B, T, H] of the pooled layer."""
        sentence, tokens = self.pooled(tower, batch)
        if tower in self.projections:
            sentence = self.projections[tower](sentence)
        if self.config.normalize:
            sentence = F.normalize(sentence, dim=-1)
        return sentence, tokens

    def pooled(self, tower: str, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """What a projection and normalisation make the sentence vectors from, [B, H]; and token vectors [B, T, H]."""
        tokens = self.encoders[tower](batch, self.config.pooled_layer)
        return pool(tokens, batch.mask, self.pooling[tower]), tokens

    def encode_pair(self, source: TokenBatch, target: TokenBatch) -> tuple[Tensor, Tensor]:
        """Sentence vectors of both sides of pairs, [B, D] each; a shared tower reads both in one pass."""
        if self.config.towers == "separate":
            return self.encode("source", source)[0], self.encode("target", target)[0]
        both = self.encode(SHARED, source.followed_by(target, self._text.vocabulary(SHARED).pad_id))[0]
        return both[: len(source)], both[len(source) :]


def _architecture(config: DualEncoder.Config, text: TextSpec, pretrained: dict[str, Start]) -> dict[str, Any]:
    names = (SHARED,) if config.towers == "shared" else SIDES
    shapes = {
        name: pretrained[name].cut(config.pretrained_layers)
        if name in pretrained
        else _shape(config, text.vocabulary(name))
        for name in names
    }
    return {
        "towers": {name: shape.as_dict() for name, shape in shapes.items()},
        "pooling": _pooling(config, names, pretrained),
        "projections": {name: shape.as_dict() for name, shape in _projections(config, shapes, pretrained).items()},
    }


def _pooling(config: DualEncoder.Config, names: tuple[str, ...], pretrained: dict[str, Start]) -> dict[str, Pooling]:
    own: dict[str, Pooling] = {n: source.pooling for n, source in pretrained.items() if source.pooling is not None}
    default: Pooling = next(iter(own.values())) if own else "mean"
    general = config.pooling
    given: dict[str, Literal["auto"] | Pooling] = {"source": config.source_pooling, "target": config.target_pooling}
    kinds: dict[str, Pooling] = {n: own.get(n, default) if general == "auto" else general for n in names}
    sides: dict[str, Pooling] = {side: kind for side, kind in given.items() if kind != "auto"}
    return {name: sides.get(name, kind) for name, kind in kinds.items()}


def _projections(
    config: DualEncoder.Config, shapes: dict[str, EncoderShape], pretrained: dict[str, Start]
) -> dict[str, ProjectionShape]:
    widths = {name: shape.hidden_size for name, shape in shapes.items()}
    activation: Literal["none", "tanh"] = "tanh" if config.projection == "tanh" else "none"
    if config.projection_size is not None:
        size = config.projection_size
        return {n: ProjectionShape(input_size=w, output_size=size, activation=activation) for n, w in widths.items()}
    found = {
        name: ProjectionShape.of(source.projection)
        for name, source in pretrained.items()
        if source.projection is not None
    }
    if config.projection == "spaces":
        if found:
            problem = f"{', '.join(found)}: the pretrained encoder brings a projection"
            raise UserError(problem, cure="leave out --projection spaces, or take its transformer alone")
        n = config.projection_spaces
        return {name: ProjectionShape(input_size=w, output_size=w, spaces=n) for name, w in widths.items()}
    outputs = {name: found[name].output_size if name in found else width for name, width in widths.items()}
    if config.projection == "auto" and len(set(outputs.values())) == 1:
        return found
    side = _projected(config, pretrained)
    if side in found:
        problem = f"the {side} encoder brings a projection; the towers give vectors of {outputs}"
        raise UserError(problem, cure="choose a --projection-size for all, or another --projected-side")
    size = next((size for name, size in outputs.items() if name != side), widths[side])
    return {**found, side: ProjectionShape(input_size=widths[side], output_size=size, activation=activation)}


def _projected(config: DualEncoder.Config, pretrained: dict[str, Start]) -> str:
    """The tower that is projected if one is."""
    if config.towers == "shared":
        return SHARED
    if config.projected_side != "auto":
        return config.projected_side
    return "source" if list(pretrained) == ["target"] else "target"


def _shape(config: DualEncoder.Config, vocabulary: Vocabulary) -> EncoderShape:
    return EncoderShape(
        vocabulary_size=vocabulary.size,
        pad_id=vocabulary.pad_id,
        max_positions=config.max_positions,
        hidden_size=config.hidden_size,
        layers=config.layers,
        heads=config.heads,
        feedforward_size=config.feedforward_size,
        norm=config.norm,
    )


def _check(name: str, shape: EncoderShape, vocabulary: Vocabulary, max_length: int, config: DualEncoder.Config) -> None:
    if max_length > shape.max_positions:
        raise UserError(
            f"sentences may have {max_length} subwords, the model has {shape.max_positions} positions",
            cure="lower --max-length" if config.pretrained() else "lower --max-length or raise --max-positions",
        )
    if vocabulary.size > shape.vocabulary_size or vocabulary.pad_id != shape.pad_id:
        raise UserError(
            f"the tokenizer of the {name} tower has {vocabulary.size} subwords and pad id {vocabulary.pad_id}, its "
            f"embeddings {shape.vocabulary_size} and pad id {shape.pad_id}",
            cure="use the tokenizer that belongs to the encoder",
        )
    if config.pooled_layer is not None and config.pooled_layer > shape.layers:
        raise UserError(
            f"the {name} tower has {shape.layers} layers", cure=f"lower --pooled-layer {config.pooled_layer}"
        )


def _listed(names: list[str]) -> str:
    """A few names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

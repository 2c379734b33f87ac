"""Sentence encoder with one shared tower, or one tower for each side of a language pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from xrep.data.batching import TextSpec, TokenBatch, Vocabulary
from xrep.errors import ConfigError, UserError
from xrep.models.model import SentenceModel
from xrep.models.projection import Projection, ProjectionShape, make_projection
from xrep.models.start import Start, check_vocabulary, encoder_shape, find_start, shape_from
from xrep.nn.containers import ModuleDict
from xrep.nn.encoder import Encoder
from xrep.nn.layers import Norm
from xrep.nn.pooling import Pooling, pool
from xrep.nn.shape import EncoderSizes

SHARED, SIDES = "shared", ("source", "target")


class DualEncoder(SentenceModel):
    """Sentence encoder: tower(s), pooling, optional projection, and L2 normalisation.

    With ``towers: separate`` all source languages share the tower ``source`` and all target languages share the tower
    ``target`` (dual momentum contrast has one BERT for each of two languages). With ``towers: shared`` one tower reads
    all languages, including languages not seen in training. Towers start from random weights or from directories of
    pretrained encoders, each of which has its own vocabulary and width.

    Args:
        architecture: The result of ``architecture`` of a saved model, to build it again without its pretrained
            directories; None to follow the configuration and load the weights of those directories.

    Attributes:
        notes: Information about the pretrained weights for the user.
        new_projections: Towers whose projection has random weights.

    Raises:
        UserError: Sentences may be longer than the position table; a language is on both sides of separate towers; or a
            pretrained directory cannot be read or does not fit the text.
    """

    @dataclass(kw_only=True)
    class Config:
        towers: Literal["shared", "separate"] = "separate"
        """One encoder for all languages (shared), or one for the source and one for the target languages (separate)."""
        encoder: str | None = None
        """Pretrained encoder that the towers start from: a directory of Hugging Face or sentence-transformers, a name
        in the local Hugging Face cache, or a tower of a run: RUN/best, or RUN/best/target if each side has one. The
        towers use its sizes and its tokenizer."""
        encoder_type: str = "auto"
        """Implementation of the encoders. transformer: xrep's own, which reads BERT, RoBERTa and XLM-R. transformers:
        the library of that name (pip install 'xrep[hf]'), for any other encoder (ModernBERT, DeBERTa, T5 and more).
        auto: xrep's own if it can compute the pretrained encoder, otherwise the library. A plugin can add others."""
        source_encoder: str | None = None
        """Pretrained encoder for the source tower only. A tower without a pretrained encoder has the sizes below and
        random weights; if the other tower is pretrained, a tokenizer is trained on the text of its side."""
        target_encoder: str | None = None
        """Pretrained encoder for the target tower only; see source_encoder."""
        pretrained_layers: int | None = None
        """Number of first layers of pretrained encoders to use; none: all."""
        layers: int = 6
        """Number of transformer layers. This and the sizes below apply only to towers that are not pretrained."""
        hidden_size: int = 512
        """Width of the token vectors."""
        heads: int = 8
        """Number of attention heads."""
        feedforward_size: int = 2048
        """Width of the feed-forward networks."""
        dropout: float = 0.1
        """Dropout rate of embeddings and sublayer outputs."""
        attention_dropout: float = 0.1
        """Dropout rate of attention weights."""
        norm: Norm = "post"
        """Position of layer normalisation: after each sublayer (post, as in BERT) or before it (pre)."""
        max_positions: int = 512
        """Maximum length of a sentence in subwords, including special tokens."""
        pooling: Literal["auto"] | Pooling = "auto"
        """How token vectors are combined into a sentence vector; padding is ignored. auto: the pooling of the tower's
        pretrained directory if it has one, otherwise that of the other tower's directory, otherwise mean."""
        source_pooling: Literal["auto"] | Pooling = "auto"
        """Pooling of the source tower only. auto: the value of pooling."""
        target_pooling: Literal["auto"] | Pooling = "auto"
        """Pooling of the target tower only. auto: the value of pooling."""
        pooled_layer: int | None = None
        """Layer whose token vectors are pooled; 0: the embeddings; none: the last layer."""
        projection_size: int | None = None
        """Output width of a new projection after pooling, in every tower. none: a pretrained encoder keeps its own
        projection if it has one, and one of two towers may be projected to the width of the other (projected_side)."""
        projection: Literal["auto", "linear", "tanh", "spaces"] = "auto"
        """Kind of a new projection. linear: a linear layer. tanh: a linear layer and tanh (with pooling cls this is
        SimCSE's '[CLS] with an MLP'; xrep-export can leave it out). spaces: the mean of the vectors that CMLM predicts
        from (see projection_spaces). auto: linear, but without projection_size only if the widths of the towers
        differ."""
        projection_spaces: int = 15
        """Number N of vectors in the projection spaces: the pooled vector itself and the outputs of N - 1 perceptrons,
        which the criterion cmlm trains."""
        projected_side: Literal["auto", "source", "target"] = "auto"
        """Tower that is projected to the width of the other one if there is no projection_size. auto: the tower that is
        not pretrained if the other one is, otherwise the target tower."""
        normalize: bool = True
        """L2-normalise sentence vectors, so that their dot product is the cosine."""

        def problems(self) -> list[str]:
            sizes = ("layers", "hidden_size", "heads", "feedforward_size", "max_positions")
            sizes = (*sizes, "projection_size", "projection_spaces")
            given = {name: value for name in sizes if (value := getattr(self, name)) is not None}
            problems = [f"{name} must be at least 1, not {value}" for name, value in given.items() if value < 1]
            if not problems and self.hidden_size % self.heads:
                problems.append(f"hidden_size {self.hidden_size} is not divisible by heads {self.heads}")
            rates = {name: getattr(self, name) for name in ("dropout", "attention_dropout")}
            problems += [f"{name} must lie in [0, 1), not {x}" for name, x in rates.items() if not 0 <= x < 1]
            if self.pretrained_layers is not None and self.pretrained_layers < 1:
                problems.append(f"pretrained_layers must be at least 1, not {self.pretrained_layers}")
            if self.pooled_layer is not None and self.pooled_layer < 0:
                problems.append(f"pooled_layer must be at least 0, not {self.pooled_layer}")
            of_sides = [side for side in SIDES if getattr(self, f"{side}_encoder")]
            if self.towers == "shared" and of_sides:
                problems.append(f"{of_sides[0]}_encoder needs towers: separate; a shared tower has `encoder`")
            for name in ("source_pooling", "target_pooling", "projected_side"):
                if getattr(self, name) != "auto" and self.towers == "shared":
                    problems.append(f"{name} needs towers: separate")
            if self.projected_side != "auto" and self.projection_size is not None:
                problems.append("projected_side is for one tower, projection_size for both; give one of them")
            if self.projection == "spaces" and (self.projection_size is not None or self.projected_side != "auto"):
                problems.append(
                    "projection spaces are in all towers, as wide as they: no projection_size, projected_side"
                )
            return problems

        def pretrained(self) -> dict[str, str]:
            """Return the directory or name of each tower's pretrained encoder; empty if there is none."""
            names = (SHARED,) if self.towers == "shared" else SIDES
            named = {name: getattr(self, f"{name}_encoder", None) or self.encoder for name in names}
            return {name: path for name, path in named.items() if path}

        def tokenizers(self) -> dict[str, str]:
            """Return the folders of the pretrained encoders' tokenizers by side; empty if there are none.

            Raises:
                UserError: A pretrained encoder does not exist.
            """
            starts = {name: find_start(path, self.encoder_type) for name, path in self.pretrained().items()}
            return {name: str(start.tokenizer) for name, start in starts.items()}

    def __init__(self, config: Config, text: TextSpec, architecture: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.config, self._text, self.notes = config, text, list[str]()
        both = sorted(set(text.source_languages) & set(text.target_languages))
        if config.towers == "separate" and both:
            raise UserError(f"{', '.join(both)}: both a source and a target language", cure="set `towers` to shared")
        if config.towers == "shared" and SHARED not in text.vocabularies:
            raise UserError("the sides of this text have vocabularies of their own", cure="set `towers` to separate")
        fresh = architecture is None
        paths = config.pretrained() if fresh else {}
        pretrained = {name: find_start(path, config.encoder_type) for name, path in paths.items()}
        if architecture is None:
            architecture = _architecture(config, text, pretrained)
        self.pooling: dict[str, Pooling] = architecture["pooling"]
        """Pooling of each tower."""
        shapes = {name: shape_from(values) for name, values in architecture["towers"].items()}
        for name, shape in shapes.items():
            _check(name, shape, text.vocabulary(name), text.max_length, config)
        rates = {"dropout": config.dropout, "attention_dropout": config.attention_dropout}
        self.encoders = ModuleDict({name: Encoder.build(shape, **rates) for name, shape in shapes.items()})
        projections = {name: ProjectionShape(**values) for name, values in architecture["projections"].items()}
        self.projections = ModuleDict({name: make_projection(shape) for name, shape in projections.items()})
        self._architecture = architecture
        brought = [n for n, start in pretrained.items() if start.projection and config.projection_size is None]
        self.new_projections = [name for name in projections if fresh and name not in brought]
        self.output_size = self.width(next(iter(shapes)))
        """Width D of the sentence vectors."""
        pooled = config.pooled_layer
        self.idle_parameters = pooled is not None and any(pooled < shape.layers for shape in shapes.values())
        """Whether some parameters are above the pooled layer, so that sentence vectors give them no gradient."""
        for name, source in pretrained.items():
            self._load(name, source)

    def architecture(self) -> dict[str, Any]:
        """Return sizes of towers and projections, and the pooling, as plain data. It is saved beside the weights."""
        return self._architecture

    def _load(self, name: str, source: Start) -> None:
        state, unused = source.state(self.config.pretrained_layers)
        self.encoders[name].load_state_dict(state)
        kept = f"tower {name}: {len(state)} tensors of {source.path}, encoder type {source.shape.type}"
        self.notes.append(f"{kept}; not used: {_listed(unused)}" if unused else kept)
        if source.projection is not None and self.config.projection_size is None:
            projection = self.projections[name]
            assert isinstance(projection, Projection)
            projection.load(source.projection)

    def width(self, tower: str) -> int:
        """Return the width of the tower's sentence vectors."""
        if tower in self.projections:
            return self.projections[tower].shape.output_size
        return self.encoders[tower].shape.hidden_size

    @property
    def languages(self) -> list[str]:
        return self._text.languages

    def tower(self, language: str | None) -> str:
        """Return the name of the tower that encodes a language.

        Raises:
            UserError: Towers are separate, and the language was not trained or is None.
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
        """Return sentence vectors [B, D] (length 1 if ``normalize``) and the pooled layer's token vectors [B, T, H]."""
        sentence, tokens = self.pooled(tower, batch)
        if tower in self.projections:
            sentence = self.projections[tower](sentence)
        if self.config.normalize:
            sentence = F.normalize(sentence, dim=-1)
        return sentence, tokens

    def pooled(self, tower: str, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return pooled vectors before projection and normalisation, [B, H], and token vectors, [B, T, H]."""
        tokens = self.encoders[tower](batch, self.config.pooled_layer)
        return pool(tokens, batch.mask, self.pooling[tower]), tokens

    def encode_pair(self, source: TokenBatch, target: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return sentence vectors of both sides of pairs, [B, D] each; a shared tower encodes both in one pass."""
        if self.config.towers == "separate":
            return self.encode("source", source)[0], self.encode("target", target)[0]
        both = self.encode(SHARED, source.followed_by(target, self._text.vocabulary(SHARED).pad_id))[0]
        return both[: len(source)], both[len(source) :]


def _architecture(config: DualEncoder.Config, text: TextSpec, pretrained: dict[str, Start]) -> dict[str, Any]:
    names = (SHARED,) if config.towers == "shared" else SIDES
    shapes = {name: encoder_shape(config, text.vocabulary(name), pretrained.get(name)) for name in names}
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
    config: DualEncoder.Config, shapes: dict[str, EncoderSizes], pretrained: dict[str, Start]
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
            raise UserError(problem, cure="leave out `projection` spaces, or take its transformer alone")
        n = config.projection_spaces
        return {name: ProjectionShape(input_size=w, output_size=w, spaces=n) for name, w in widths.items()}
    outputs = {name: found[name].output_size if name in found else width for name, width in widths.items()}
    if config.projection == "auto" and len(set(outputs.values())) == 1:
        if config.projected_side != "auto":
            width = f"both towers give {outputs['source']} numbers"
            problem = f"projected_side {config.projected_side} has no effect: {width}"
            raise ConfigError([f"{problem}; leave it out, or choose a --projection"])
        return found
    side = _projected(config, pretrained)
    if side in found:
        problem = f"the {side} encoder brings a projection; the towers give vectors of {outputs}"
        raise UserError(problem, cure="choose a `projection_size` for all, or another `projected_side`")
    size = next((size for name, size in outputs.items() if name != side), widths[side])
    return {**found, side: ProjectionShape(input_size=widths[side], output_size=size, activation=activation)}


def _projected(config: DualEncoder.Config, pretrained: dict[str, Start]) -> str:
    """Return the tower that is projected if one of them is."""
    if config.towers == "shared":
        return SHARED
    if config.projected_side != "auto":
        return config.projected_side
    return "source" if list(pretrained) == ["target"] else "target"


def _check(name: str, shape: EncoderSizes, vocabulary: Vocabulary, max_length: int, config: DualEncoder.Config) -> None:
    if max_length > shape.max_positions:
        raise UserError(
            f"sentences may have {max_length} subwords, the model has {shape.max_positions} positions",
            cure="lower `max_length`" if config.pretrained() else "lower `max_length` or raise `max_positions`",
        )
    check_vocabulary(shape, vocabulary, name)
    if config.pooled_layer is not None and config.pooled_layer > shape.layers:
        raise UserError(
            f"the {name} tower has {shape.layers} layers", cure=f"lower `pooled_layer` from {config.pooled_layer}"
        )


def _listed(names: list[str]) -> str:
    """Return the first three names and the number of the others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

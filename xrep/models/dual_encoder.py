"""Sentence encoder with one shared tower, or one tower for each side of a language pair."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

import torch.nn.functional as F
from torch import Tensor, nn

from xrep.config.fields import Count, CountOrZero
from xrep.data.batch import TextSpec, TokenBatch, Vocabulary
from xrep.errors import ConfigError, UserError
from xrep.interop.pretrained import Start, pooler_of
from xrep.interop.sentence_modules import DenseActivation
from xrep.models.model import EncoderOrigin, SentenceModel
from xrep.models.projection import MeanOfSpaces, Projection, ProjectionShape, make_projection
from xrep.models.start import StartOptions, check_shape, encoder_shape, load_start, shape_from, take_vocabulary
from xrep.nn.encoder import Encoder
from xrep.nn.pooling import Pooling, pool
from xrep.nn.shape import EncoderSizes
from xrep.nn.weights import fitting
from xrep.text.sides import SHARED, SIDES, Tokenizers, tokenizer_of


class DualEncoder(SentenceModel):
    """Sentence encoder: tower(s), pooling, optional projection, and L2 normalisation.

    With ``towers: separate`` all source languages share the tower ``source`` and all target languages share the tower
    ``target`` (dual momentum contrast has one BERT for each of two languages). With ``towers: shared`` one tower reads
    all languages, including languages not seen in training. Towers start from random weights or from directories of
    pretrained encoders, each of which has its own vocabulary and width.

    Attributes:
        new_projections: Towers whose projection has random weights.

    Raises:
        UserError: Sentences may be longer than the position table; a language is on both sides of separate towers; or a
            pretrained directory cannot be read or does not fit the text.
    """

    @dataclass(kw_only=True)
    class Config(StartOptions):
        towers: Literal["shared", "separate"] = "separate"
        """One encoder for all languages (shared), or one for the source and one for the target languages (separate)."""
        source_encoder: str | None = None
        """Pretrained encoder for the source tower only. A tower without a pretrained encoder has the sizes given by
        options and random weights; if the other tower is pretrained, a tokenizer is trained on the text of its side."""
        target_encoder: str | None = None
        """Pretrained encoder for the target tower only; see source_encoder."""
        vocabulary: Literal["pretrained", "text"] = "pretrained"
        """Subwords of a pretrained encoder. pretrained: its own. text: those of the training text, on which a tokenizer
        is trained (task.vocab_size) unless xrep-preprocess was given one: for languages that the encoder does not know.
        A subword that the encoder has starts from its vector, any other from the mean of those that the encoder writes
        it with."""
        pooling: Literal["auto"] | Pooling = "auto"
        """How token vectors are combined into a sentence vector; padding is ignored. auto: the pooling of the tower's
        pretrained directory if it has one, otherwise that of the other tower's directory, otherwise mean."""
        pooled_layer: CountOrZero | None = None
        """Layer whose token vectors are pooled; 0: the embeddings; none: the last layer."""
        projection_size: Count | None = None
        """Output width of a new projection after pooling, in every tower. none: a pretrained encoder keeps its own
        projection if it has one, and one of two towers may be projected to the width of the other (projected_side)."""
        projection: Literal["auto", "linear", "tanh", "spaces"] = "auto"
        """Kind of a new projection. linear: a linear layer. tanh: a linear layer and tanh (with pooling cls this is
        SimCSE's '[CLS] with an MLP'; xrep-export can leave it out). spaces: the mean of the vectors that CMLM predicts
        from (see projection_spaces). auto: linear, if there is a projection_size or the widths of the towers differ,
        otherwise no projection."""
        pooler: Literal["none", "source", "target", "all"] = "none"
        """Towers whose pretrained directory has a layer with tanh after [CLS] (pooler.*) that becomes their projection:
        that of SimCSE was trained for sentence vectors, that of BERT for another task. It needs pooling cls."""
        projection_spaces: Count = 15
        """Number N of vectors in the projection spaces: the pooled vector itself and the outputs of N - 1 perceptrons,
        which the criterion cmlm trains."""
        projected_side: Literal["auto", "source", "target"] = "auto"
        """Tower that is projected to the width of the other one if there is no projection_size. auto: the tower that is
        not pretrained if the other one is, otherwise the target tower."""
        normalize: bool = True
        """L2-normalise sentence vectors, so that their dot product is the cosine."""

        def problems(self) -> list[str]:
            problems = super().problems()
            of_sides = [side for side in SIDES if getattr(self, f"{side}_encoder")]
            if self.towers == "shared" and of_sides:
                problems.append(f"{of_sides[0]}_encoder needs towers: separate; a shared tower has `encoder`")
            if self.projected_side != "auto" and self.towers == "shared":
                problems.append("projected_side needs towers: separate")
            if self.projected_side != "auto" and self.projection_size is not None:
                problems.append("projected_side is for one tower, projection_size for both; give one of them")
            if self.projection == "spaces" and (self.projection_size is not None or self.projected_side != "auto"):
                problems.append(
                    "projection spaces are in all towers, as wide as they: no projection_size, projected_side"
                )
            if self.pooler != "none" and (self.pooling != "cls" or self.projection_size is not None):
                problems.append(f"pooler {self.pooler} needs pooling cls and no projection_size")
            if self.pooler in SIDES and self.towers == "shared":
                problems.append(f"pooler {self.pooler} needs towers: separate; a shared tower has pooler all")
            return problems

        def tokenizers(self) -> dict[str, str]:
            brought = super().tokenizers()
            return brought if self.vocabulary == "pretrained" else {}

        def pretrained(self) -> dict[str, str]:
            names = (SHARED,) if self.towers == "shared" else SIDES
            own = {"source": self.source_encoder, "target": self.target_encoder}
            return {name: path for name in names if (path := own.get(name) or self.encoder)}

    encoders: MutableMapping[str, Encoder]
    projections: MutableMapping[str, Projection | MeanOfSpaces]

    def __init__(self, config: Config, text: TextSpec, architecture: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.config, self._text, self.origins = config, text, dict[str, EncoderOrigin]()
        both = sorted(set(text.source_languages) & set(text.target_languages))
        if config.towers == "separate" and both:
            raise UserError(f"{', '.join(both)}: both a source and a target language", cure="set `towers` to shared")
        if config.towers == "shared" and SHARED not in text.vocabularies:
            raise UserError("the sides of this text have vocabularies of their own", cure="set `towers` to separate")
        starts = dict(config.starts) if architecture is None else {}
        for name, start in starts.items():
            if config.pooler in (name, "all"):
                starts[name] = replace(start, projection=pooler_of(start))
        self._architecture = architecture or _architecture(config, text, starts)
        self.pooling: dict[str, Pooling] = self._architecture["pooling"]
        """Pooling of each tower."""
        shapes = {name: shape_from(values) for name, values in self._architecture["towers"].items()}
        projections = {name: ProjectionShape(**values) for name, values in self._architecture["projections"].items()}
        for name, shape in shapes.items():
            vocabulary = text.vocabulary(name)
            if config.vocabulary == "text" and name in starts:  # until start_embeddings is called
                vocabulary = replace(vocabulary, size=shape.vocabulary_size, pad_id=shape.pad_id)
            _check(name, shape, vocabulary, text.max_length, config)
            _check_pooling(shape, self.pooling[name])
        encoders = {name: Encoder.build(shape, **config.rates) for name, shape in shapes.items()}
        self.encoders = cast(Any, nn.ModuleDict(encoders))
        self.projections = cast(Any, nn.ModuleDict({name: make_projection(own) for name, own in projections.items()}))
        kept = {name: start.projection for name, start in starts.items() if config.projection_size is None}
        self.new_projections = [name for name in projections if architecture is None and kept.get(name) is None]
        self.output_size = self.width(next(iter(shapes)))
        """Width D of the sentence vectors."""
        pooled = config.pooled_layer
        self.idle_parameters = pooled is not None and any(pooled < shape.layers for shape in shapes.values())
        """Whether some parameters are above the pooled layer, so that sentence vectors give them no gradient."""
        for name, start in starts.items():
            self.origins[f"encoders.{name}"] = load_start(self.encoders[name], start, config.pretrained_layers)
            if (dense := kept.get(name)) is not None:
                with fitting(start.path):
                    self.projections[name].load_state_dict(dense.tensors())

    def start_embeddings(self, tokenizers: Tokenizers) -> None:
        for name, start in self.config.starts.items() if self.config.vocabulary == "text" else ():
            origin, encoder = self.origins[f"encoders.{name}"], self.encoders[name]
            note = take_vocabulary(encoder, start, tokenizer_of(tokenizers, name))
            self._architecture["towers"][name] = encoder.shape.as_dict()
            self.origins[f"encoders.{name}"] = replace(origin, details=f"{origin.details}; {note}")

    @property
    def new_embeddings(self) -> set[str]:
        towers = self.config.pretrained() if self.config.vocabulary == "text" else {}
        return {f"encoders.{tower}.token_embedding.weight" for tower in towers}

    def architecture(self) -> dict[str, Any]:
        return self._architecture

    def width(self, tower: str) -> int:
        """Return the width of the tower's sentence vectors."""
        if tower in self.projections:
            return self.projections[tower].shape.output_size
        return self.encoders[tower].shape.hidden_size

    @property
    def languages(self) -> list[str]:
        return self._text.languages

    def tower(self, language: str | None) -> str:
        if self.config.towers == "shared":
            return SHARED
        if language in self._text.source_languages:
            return "source"
        if language in self._text.target_languages:
            return "target"
        problem = f"this encoder has no tower for the language {language!r}"
        if language is None:
            problem = "this encoder has a tower for each side and no language was named"
        raise UserError(problem, cure="known: " + ", ".join(self.languages))

    def use_pooling(self, pooling: Pooling) -> None:
        """Pool token vectors this way from now on. Raises UserError if a tower cannot."""
        for encoder in self.encoders.values():
            _check_pooling(encoder.shape, pooling)
        self.pooling = dict.fromkeys(self.pooling, pooling)
        self._architecture = {**self._architecture, "pooling": self.pooling}

    def leave_out_projections(self) -> None:
        """Give pooled vectors without their projections from now on."""
        self.projections.clear()
        self._architecture = {**self._architecture, "projections": {}}
        self.output_size = self.width(next(iter(self.encoders)))

    def use_layer(self, layer: int) -> None:
        """Pool the token vectors of this layer from now on. Raises UserError if a tower has fewer layers, or a
        projection that was trained for another layer."""
        fewest = min(encoder.shape.layers for encoder in self.encoders.values())
        if not 0 <= layer <= fewest:
            raise UserError(f"`layer` {layer} of an encoder of {fewest} layers", cure=f"choose one of 0 to {fewest}")
        if self.projections and layer != (fewest if self.config.pooled_layer is None else self.config.pooled_layer):
            problem = f"`layer` {layer} of an encoder whose projection was trained for another layer"
            raise UserError(problem, cure="export it with `no_projection` first")
        self.config = replace(self.config, pooled_layer=layer)

    def encode(self, tower: str, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        sentence, tokens = self.before_projection(tower, batch)
        if tower in self.projections:
            sentence = self.projections[tower](sentence)
        if self.config.normalize:
            sentence = F.normalize(sentence, dim=-1)
        return sentence, tokens

    def before_projection(self, tower: str, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return pooled vectors before projection and normalisation, [B, H], and token vectors [B, T, H]."""
        tokens = self.encoders[tower](batch, self.config.pooled_layer)
        return pool(tokens, batch.mask, self.pooling[tower]), tokens

    def encode_pair(self, source: TokenBatch, target: TokenBatch) -> tuple[Tensor, Tensor]:
        if self.config.towers == "separate":
            return self.encode("source", source)[0], self.encode("target", target)[0]
        both = self.encode(SHARED, source.followed_by(target, self._text.vocabulary(SHARED).pad_id))[0]
        return both[: len(source)], both[len(source) :]


def _architecture(config: DualEncoder.Config, text: TextSpec, starts: dict[str, Start]) -> dict[str, Any]:
    names = (SHARED,) if config.towers == "shared" else SIDES
    shapes = {name: encoder_shape(config, text.vocabulary(name), starts.get(name)) for name in names}
    own = {name: start.pooling for name, start in starts.items() if start.pooling is not None}
    default = next(iter(own.values()), "mean")
    return {
        "towers": {name: shape.as_dict() for name, shape in shapes.items()},
        "pooling": {name: own.get(name, default) if config.pooling == "auto" else config.pooling for name in names},
        "projections": {name: asdict(shape) for name, shape in _projections(config, shapes, starts).items()},
    }


def _projections(
    config: DualEncoder.Config, shapes: dict[str, EncoderSizes], starts: dict[str, Start]
) -> dict[str, ProjectionShape]:
    widths = {name: shape.hidden_size for name, shape in shapes.items()}
    activation: DenseActivation = "tanh" if config.projection == "tanh" else "none"
    if config.projection_size is not None:
        size = config.projection_size
        return {n: ProjectionShape(input_size=w, output_size=size, activation=activation) for n, w in widths.items()}
    own = {n: ProjectionShape.of(start.projection, widths[n]) for n, start in starts.items() if start.projection}
    if config.projection == "spaces":
        if own:
            problem = f"{', '.join(own)}: the pretrained encoder brings a projection"
            raise UserError(problem, cure="leave out `projection` spaces, or take its transformer alone")
        n = config.projection_spaces
        return {name: ProjectionShape(input_size=w, output_size=w, spaces=n) for name, w in widths.items()}
    outputs = widths | {name: shape.output_size for name, shape in own.items()}
    if config.projection == "auto" and len(set(outputs.values())) == 1:
        if config.projected_side != "auto":
            width = f"both towers give {outputs['source']} numbers"
            problem = f"projected_side {config.projected_side} has no effect: {width}"
            raise ConfigError([f"{problem}; leave it out, or choose a `projection`"])
        return own
    side = _projected(config, starts)
    if side in own:
        problem = f"the {side} encoder brings a projection; the towers give vectors of {outputs}"
        raise UserError(problem, cure="choose a `projection_size` for all, or another `projected_side`")
    size = next((size for name, size in outputs.items() if name != side), widths[side])
    return {**own, side: ProjectionShape(input_size=widths[side], output_size=size, activation=activation)}


def _projected(config: DualEncoder.Config, starts: dict[str, Start]) -> str:
    """Return the tower that is projected if one of them is."""
    if config.towers == "shared":
        return SHARED
    if config.projected_side != "auto":
        return config.projected_side
    return "source" if list(starts) == ["target"] else "target"


def _check_pooling(shape: EncoderSizes, pooling: Pooling) -> None:
    if shape.type == "static" and pooling != "mean":
        raise UserError(f"a static encoder is pooled by the mean, not by {pooling}", cure="leave `pooling` out")


def _check(name: str, shape: EncoderSizes, vocabulary: Vocabulary, max_length: int, config: DualEncoder.Config) -> None:
    check_shape(shape, config, vocabulary, max_length, name)
    if config.pooled_layer is not None and config.pooled_layer > shape.layers:
        cure = f"lower `pooled_layer` from {config.pooled_layer}"
        raise UserError(f"the {name} tower has {shape.layers} layers", cure=cure)

"""Trained encoders that a tower can start from: the directory of a pretrained encoder, or a tower of a checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from xrep.config.fields import Count
from xrep.data.batch import TextSpec, Vocabulary
from xrep.errors import UserError
from xrep.interop.pretrained import AUTO, Start, State, find_pretrained, read_pretrained
from xrep.interop.sentence_modules import DenseSpec
from xrep.models.directory import CRITERION, MANIFEST, Checkpoint, open_checkpoint
from xrep.models.kinds import PRETRAINED, expect, model_name
from xrep.models.model import EncoderOrigin
from xrep.nn.encoder import Encoder, TransformerEncoder
from xrep.nn.shape import EncoderSizes, Norm
from xrep.nn.weights import fitting, some
from xrep.registry import ENCODERS
from xrep.text.shared_pieces import rows_of_pieces
from xrep.text.sides import SHARED, open_tokenizer
from xrep.text.tokenizer import Tokenizer

Rate = Annotated[float, "[0, 1)"]


@dataclass(kw_only=True)
class StartOptions:
    """The options of every model that has encoders."""

    usual_tower: ClassVar[str | None] = None
    """The tower from which the encoder starts if it is named by a run that has one for each side; None: say which."""
    encoder: str | None = None
    """Pretrained encoder to start from: a Hugging Face or sentence-transformers directory, a name in the local Hugging
    Face cache, or a tower of a run: RUN/best, or RUN/best/target if each side has one. The model uses its sizes and its
    tokenizer."""
    encoder_type: str = "auto"
    """Implementation of the encoders. transformer: xrep's own, which reads BERT, RoBERTa and XLM-R. transformers: the
    library of that name (pip install 'xrep[hf]'), for any other encoder (ModernBERT, DeBERTa, T5; of decoders Qwen3,
    Mistral, Llama, Gemma; and more). static: a table of subword vectors, which xrep-export --format static writes, or a
    new one of `hidden_size`. auto: the one that can compute the pretrained encoder. A plugin can add others."""
    pretrained_layers: Count | None = None
    """Number of first layers of pretrained encoders to use; none: all."""
    layers: Count = 12
    """Number of transformer layers. This and the next three depend on `size`, and apply only to encoders that are not
    pretrained."""
    hidden_size: Count = 768
    """Width of the token vectors (see `size`; Transformer base: 512, big: 1024)."""
    heads: Count = 12
    """Number of attention heads (see `size`; Transformer base: 8, big: 16)."""
    feedforward_size: Count = 3072
    """Width of the feed-forward networks (see `size`; Transformer base: 2048, big: 4096)."""
    norm: Norm = "post"
    """Position of layer normalisation: after each sublayer (post, as in BERT) or before it (pre). A decoder has it,
    too."""
    max_positions: Count = 512
    """Maximum length of a sentence in subwords, including special tokens. A decoder has it, too."""
    dropout: Rate = 0.1
    """Dropout rate of embeddings and sublayer outputs."""
    attention_dropout: Rate = 0.1
    """Dropout rate of attention weights."""

    @property
    def rates(self) -> dict[str, float]:
        return {"dropout": self.dropout, "attention_dropout": self.attention_dropout}

    def problems(self) -> list[str]:
        problems = []
        if not self.encoder and self.heads and self.hidden_size % self.heads:
            problems.append(f"hidden_size {self.hidden_size} is not divisible by heads {self.heads}")
        if self.pretrained_layers is not None and not self.pretrained():
            problems.append("pretrained_layers needs a pretrained encoder; a new one has `layers`")
        return problems

    def pretrained(self) -> dict[str, str]:
        """Return the directory or name of each pretrained encoder, by tower or side; empty if there is none."""
        return {SHARED: self.encoder} if self.encoder else {}

    @cached_property
    def starts(self) -> dict[str, Start]:
        """The pretrained encoders by tower or side, each opened once. Raises UserError if one does not exist."""
        names = self.pretrained()
        usual = self.usual_tower
        opened = {path: find_start(path, self.encoder_type, usual) for path in dict.fromkeys(names.values())}
        return {name: opened[path] for name, path in names.items()}

    def tokenizers(self) -> dict[str, str]:
        """Return the folders of the pretrained encoders' tokenizers by tower or side; empty if there are none. Raises
        UserError if a pretrained encoder does not exist."""
        return {name: str(start.tokenizer) for name, start in self.starts.items()}


def shape_from(values: dict[str, Any]) -> EncoderSizes:
    """Return the shape that ``EncoderSizes.as_dict`` made into plain data. Raises UserError if there is no encoder of
    this type."""
    return ENCODERS.load(values["type"]).Shape(**values)


def encoder_shape(config: StartOptions, vocabulary: Vocabulary, start: Start | None) -> EncoderSizes:
    """Return the shape of an encoder that begins at ``start``, or of a new one with the sizes in a model's options.
    Raises UserError if ``start`` has too few layers."""
    if start is not None:
        return start.shape.first_layers(config.pretrained_layers, start.path)
    encoder_class = ENCODERS.load("transformer" if config.encoder_type == AUTO else config.encoder_type)
    return encoder_class.new_shape(
        vocabulary_size=vocabulary.size,
        pad_id=vocabulary.pad_id,
        hidden_size=config.hidden_size,
        layers=config.layers,
        heads=config.heads,
        feedforward_size=config.feedforward_size,
        max_positions=config.max_positions,
        norm=config.norm,
    )


@torch.no_grad()
def take_vocabulary(encoder: Encoder, start: Start, tokenizer: Tokenizer) -> str:
    """Give an encoder that begins at ``start`` an embedding for the subwords of another tokenizer; return a note on it.

    Each row is the mean of those that the same text has at the start (``rows_of_pieces``), or else the mean of all.

    Raises:
        UserError: Its embedding cannot be replaced, because the encoder is none of xrep's own transformers.
    """
    if not isinstance(encoder, TransformerEncoder):
        problem, cure = f"encoders of type {encoder.shape.type} keep their vocabulary", "set `vocabulary` to pretrained"
        raise UserError(problem, path=start.path, cure=f"{cure}, or start from BERT, RoBERTa or XLM-R")
    words, rows = encoder.token_embedding.weight, rows_of_pieces(tokenizer, open_tokenizer(start.tokenizer))
    mean = words.mean(dim=0)
    table = torch.stack([words[places].mean(dim=0) if places else mean for places in rows])
    positions = encoder.position_embedding.weight[encoder.shape.position_offset :].clone()  # RoBERTa's begin at 2
    encoder.shape = replace(encoder.shape, vocabulary_size=len(rows), pad_id=tokenizer.pad_id, position_offset=0)
    encoder.token_embedding = nn.Embedding.from_pretrained(table, freeze=False, padding_idx=tokenizer.pad_id)
    encoder.position_embedding = nn.Embedding.from_pretrained(positions, freeze=False)
    return (
        f"{len(rows):,} subwords of the text, {sum(len(places) == 1 for places in rows):,} of which had a vector there"
    )


def load_start(encoder: Encoder, start: Start, layers: int | None) -> EncoderOrigin:
    """Load the weights of a trained encoder into one of its shape, and return where they come from."""
    with fitting(start.path):
        state, unused = start.state(layers)
        encoder.load_state_dict(state)
    left = f"; not used: {some(unused, 3)}" if unused else ""
    prompt = f"; training does not add its prompt {start.prompts.text!r}" if start.prompts.text else ""
    details = f"{len(state)} tensors, encoder type {start.shape.type}{left}{prompt}"
    return EncoderOrigin(path=start.path, languages=start.languages, details=details)


def build_encoder(
    config: StartOptions, text: TextSpec, side: str, saved: dict[str, Any] | None
) -> tuple[Encoder, dict[str, EncoderOrigin]]:
    """Return the only encoder of a model, and where its weights come from.

    Args:
        side: The side of the text that it reads.
        saved: ``shape.as_dict()`` of a saved encoder that is to be built again without its weights. None: the encoder
            is new, or begins at the pretrained one.

    Raises:
        UserError: There is no such pretrained encoder, or it does not fit the text.
    """
    start = next(iter(config.starts.values()), None) if saved is None else None
    shape = encoder_shape(config, text.vocabulary(side), start) if saved is None else shape_from(saved)
    check_shape(shape, config, text.vocabulary(side), text.max_length, side)
    encoder = Encoder.build(shape, **config.rates)
    return encoder, {"encoder": load_start(encoder, start, config.pretrained_layers)} if start else {}


def check_shape(shape: EncoderSizes, config: StartOptions, vocabulary: Vocabulary, max_length: int, tower: str) -> None:
    """Raise a UserError if text may be longer than an encoder's positions, or it cannot read a tokenizer's ids."""
    if max_length > shape.max_positions:
        problem = f"sentences may have {max_length} subwords, the model has {shape.max_positions} positions"
        cure = "lower `max_length`" if config.pretrained() else "lower `max_length` or raise `max_positions`"
        raise UserError(problem, cure=cure)
    if vocabulary.size > shape.vocabulary_size or shape.pad_id not in (None, vocabulary.pad_id):
        problem = (
            f"the tokenizer of the {tower} tower has {vocabulary.size} subwords and pad id {vocabulary.pad_id}, its "
            f"embeddings {shape.vocabulary_size} and pad id {shape.pad_id}"
        )
        raise UserError(problem, cure="use the tokenizer that belongs to the encoder")


def find_start(name_or_path: str, encoder_type: str = AUTO, usual_tower: str | None = None) -> Start:
    """Find a trained tower by name or path.

    This may be a directory of Hugging Face or sentence-transformers, a name in the local Hugging Face cache,
    ``RUN/best`` of a run with one tower or of a translation model (whose encoder is used), or ``RUN/best/target`` of a
    run with one tower for each side.

    Args:
        encoder_type: As for ``read_pretrained``; a tower of a checkpoint keeps its type.
        usual_tower: The tower of a run with several that is taken if none is named.

    Raises:
        UserError: It is none of these, or it is damaged.
    """
    path = Path(name_or_path)
    if (path / MANIFEST).is_file():
        return _of_checkpoint(open_checkpoint(path), None, usual_tower)
    if model_name(path.parent) is not None and not path.is_file():
        return _of_checkpoint(open_checkpoint(path.parent), path.name, usual_tower)
    expect(path, None, *PRETRAINED)
    return read_pretrained(find_pretrained(name_or_path), encoder_type)


def _of_checkpoint(checkpoint: Checkpoint, tower: str | None, usual: str | None) -> Start:
    path, architecture = checkpoint.path, checkpoint.manifest["architecture"]
    if "towers" in architecture:
        several = len(architecture["towers"]) > 1
        return _of_tower(checkpoint, tower or (usual if several else None))
    if tower is not None:
        raise UserError(f"no tower {tower!r}", path=path, cure=f"name {path}")
    if "encoder" not in architecture:
        raise UserError("its model has no encoder to start from", path=path, cure="start from another run")
    return Start(
        path=path,
        tokenizer=_tokenizer(checkpoint, "source"),
        shape=shape_from(architecture["encoder"]),
        read=partial(_state, checkpoint, "encoder."),
        languages=checkpoint.text.source_languages,
    )


def _of_tower(checkpoint: Checkpoint, tower: str | None) -> Start:
    path, architecture = checkpoint.path, checkpoint.manifest["architecture"]
    names = list(architecture["towers"])
    if tower is None and len(names) == 1:
        tower = names[0]
    if tower is None or tower not in names:
        cures = " or ".join(str(path / name) for name in names)
        raise UserError("which of its towers?" if tower is None else f"no tower {tower!r}", path=path, cure=cures)
    if (pooled := checkpoint.model_options.get("pooled_layer")) is not None:
        raise UserError(f"its vectors are of layer {pooled}, not of the last", path=path, cure="start from another run")
    projection = architecture["projections"].get(tower)
    if projection and projection["spaces"] is not None:
        problem = "its vectors are means of projection spaces, which are not carried over"
        raise UserError(problem, path=path, cure="start from it as a whole, by `init`")
    if projection:
        kept = {name: projection[name] for name in ("output_size", "bias", "activation")}
        projection = DenseSpec(**kept, tensors=partial(checkpoint.tensors, prefix=f"projections.{tower}."))
    return Start(
        path=path / tower,
        tokenizer=_tokenizer(checkpoint, tower),
        shape=shape_from(architecture["towers"][tower]),
        read=partial(_state, checkpoint, f"encoders.{tower}."),
        head=partial(_head, checkpoint, tower),
        pooling=architecture["pooling"][tower],
        projection=projection,
        languages=checkpoint.text.languages_of(tower),
    )


def _tokenizer(checkpoint: Checkpoint, side: str) -> Path:
    """Return the folder of the tokenizer of a side, which may be one that both sides share."""
    own = checkpoint.tokenizer / side
    return own if own.is_dir() else own.parent


def _state(checkpoint: Checkpoint, prefix: str, shape: EncoderSizes) -> State:
    tensors = checkpoint.tensors(prefix=prefix)
    numbers = {name: re.match(r"layers\.(\d+)\.", name) for name in tensors}
    above = [name for name, number in numbers.items() if number and int(number[1]) >= shape.layers]
    return {name: tensor for name, tensor in tensors.items() if name not in above}, above


def _head(checkpoint: Checkpoint, tower: str) -> dict[str, Tensor] | None:
    """Return the state of the head that the criterion of a run trained for a tower: of several, the last by name."""
    own = f"masked_lm.heads.{tower}."
    tensors = checkpoint.tensors(CRITERION)
    return {name.partition(own)[2]: tensor for name, tensor in tensors.items() if own in name} or None

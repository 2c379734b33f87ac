"""Trained encoders that a tower can start from: the directory of a pretrained encoder, or a tower of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from xrep.data.batching import Vocabulary
from xrep.errors import UserError
from xrep.interop.pretrained import AUTO, encoder_state, find_pretrained, read_pretrained
from xrep.interop.sentence_modules import DenseSpec
from xrep.models.directory import MANIFEST, TOKENIZER, Checkpoint, open_checkpoint
from xrep.nn.pooling import Pooling
from xrep.nn.shape import EncoderSizes
from xrep.registry import ENCODERS


@dataclass(frozen=True, kw_only=True, eq=False)
class Start:
    """Sizes and weights of a trained tower.

    Attributes:
        path: Path of the tower.
        tokenizer: Folder of the tokenizer that belongs to it.
        shape: Sizes of the encoder.
        pooling: Pooling that belongs to it; None if it is not specified.
        projection: Dense layer after the pooling; None if there is none.
        state: Function that takes a number of first layers (None for all) and returns their tensors by name, and the
            names of the tensors that are not used.
    """

    path: Path
    tokenizer: Path
    shape: EncoderSizes
    pooling: Pooling | None
    projection: DenseSpec | None
    state: Callable[[int | None], tuple[dict[str, Tensor], list[str]]]


def shape_from(values: dict[str, Any]) -> EncoderSizes:
    """Return the shape that ``EncoderSizes.as_dict`` made into plain data."""
    return ENCODERS.load(values["type"]).Shape(**values)


def encoder_shape(config: Any, vocabulary: Vocabulary, start: Start | None) -> EncoderSizes:
    """Return the shape of an encoder that begins at ``start``, or of a new one with the sizes in a model's options."""
    if start is not None:
        return start.shape.first_layers(config.pretrained_layers, start.path)
    encoder_class = ENCODERS.load("transformer" if config.encoder_type == AUTO else config.encoder_type)
    sizes = ("hidden_size", "layers", "heads", "feedforward_size", "max_positions", "norm")
    given = {name: getattr(config, name) for name in sizes}
    return encoder_class.new_shape(vocabulary_size=vocabulary.size, pad_id=vocabulary.pad_id, **given)


def check_vocabulary(shape: EncoderSizes, vocabulary: Vocabulary, tower: str) -> None:
    """Raise a UserError if an encoder cannot read the ids of a tokenizer."""
    if vocabulary.size > shape.vocabulary_size or shape.pad_id not in (None, vocabulary.pad_id):
        problem = (
            f"the tokenizer of the {tower} tower has {vocabulary.size} subwords and pad id {vocabulary.pad_id}, its "
            f"embeddings {shape.vocabulary_size} and pad id {shape.pad_id}"
        )
        raise UserError(problem, cure="use the tokenizer that belongs to the encoder")


def find_start(name_or_path: str, encoder_type: str = AUTO) -> Start:
    """Find a trained tower by name or path.

    This may be a directory of Hugging Face or sentence-transformers, a name in the local Hugging Face cache,
    ``RUN/best`` of a run with one tower or of a translation model (whose encoder is used), or ``RUN/best/target`` of a
    run with one tower for each side.

    Args:
        encoder_type: As for ``read_pretrained``; a tower of a checkpoint keeps its type.

    Raises:
        UserError: It is none of these, or it is damaged.
    """
    path = Path(name_or_path)
    for checkpoint, tower in ((path, None), (path.parent, path.name)):
        if (checkpoint / MANIFEST).is_file() and not path.is_file():
            return _of_checkpoint(open_checkpoint(checkpoint), tower)
    source = read_pretrained(find_pretrained(name_or_path), encoder_type)
    return Start(
        path=source.path,
        tokenizer=source.path,
        shape=source.shape,
        pooling=source.pooling,
        projection=source.projection,
        state=lambda layers: encoder_state(source, layers),
    )


def _of_checkpoint(checkpoint: Checkpoint, tower: str | None) -> Start:
    path, architecture = checkpoint.path, checkpoint.manifest["architecture"]
    if "towers" in architecture:
        return _tower(checkpoint, tower)
    if tower is not None:
        raise UserError(f"no tower {tower!r}", path=path, cure=f"name {path}")
    if "encoder" not in architecture:
        raise UserError("its model has no encoder to start from", path=path, cure="start from another run")
    state = _below("encoder.", checkpoint.tensors())
    return Start(
        path=path,
        tokenizer=_tokenizer(path, "source"),
        shape=shape_from(architecture["encoder"]),
        pooling=None,
        projection=None,
        state=lambda layers: _first_layers(state, layers),
    )


def _tower(checkpoint: Checkpoint, tower: str | None) -> Start:
    path, architecture = checkpoint.path, checkpoint.manifest["architecture"]
    names = list(architecture["towers"])
    if tower is None and len(names) == 1:
        tower = names[0]
    if tower not in names:
        cures = " or ".join(str(path / name) for name in names)
        raise UserError("which of its towers?" if tower is None else f"no tower {tower!r}", path=path, cure=cures)
    assert tower is not None
    if (pooled := checkpoint.config["model"].get("pooled_layer")) is not None:
        raise UserError(f"its vectors are of layer {pooled}, not of the last", path=path, cure="start from another run")
    tensors = checkpoint.tensors()
    projection = architecture["projections"].get(tower)
    if projection and projection["spaces"] is not None:
        problem = "its vectors are means of projection spaces, which are not carried over"
        raise UserError(problem, path=path, cure="start from it as a whole, by `init`")
    dense = projection and DenseSpec(
        weight=tensors[f"projections.{tower}.weight"],
        bias=tensors.get(f"projections.{tower}.bias"),
        activation=projection["activation"],
    )
    state = _below(f"encoders.{tower}.", tensors)
    return Start(
        path=path / tower,
        tokenizer=_tokenizer(path, tower),
        shape=shape_from(architecture["towers"][tower]),
        pooling=architecture["pooling"][tower],
        projection=dense,
        state=lambda layers: _first_layers(state, layers),
    )


def _tokenizer(checkpoint: Path, side: str) -> Path:
    """Return the folder of the tokenizer of a side, which may be one that both sides share."""
    own = checkpoint / TOKENIZER / side
    return own if own.is_dir() else own.parent


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _first_layers(state: dict[str, Tensor], layers: int | None) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors of the first layers (None for all), and the names of the tensors of the layers above."""
    numbers = {name: re.match(r"layers\.(\d+)\.", name) for name in state}
    above = [name for name, number in numbers.items() if number and layers is not None and int(number[1]) >= layers]
    return {name: tensor for name, tensor in state.items() if name not in above}, above

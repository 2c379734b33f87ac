"""Encoders, which map token ids to one vector per token: the contract of all of them, and our transformer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xrep.data.batch import TokenBatch
from xrep.errors import UserError
from xrep.kernels.attention import packs_attention
from xrep.nn import bert
from xrep.nn.half import Stack, half_type, in_half
from xrep.nn.layers import Dropout, EncoderLayer, EqualLengths, Layout, Masking, Sentences, layout_of
from xrep.nn.shape import EncoderShape, EncoderSizes, Norm
from xrep.registry import ENCODERS


class Encoder(nn.Module, ABC):
    """Base class of encoders. A subclass is registered in ``ENCODERS``, and is built by ``Encoder.build``.

    Attributes:
        Shape: Class of the encoder's shape.
        shape: Plain data that determines the tensors and the computation, except dropout.
        token_embedding: Input embeddings, with ``weight`` [V, H].
        layers: The layers, the lowest first. Patterns for freezing and learning rates rely on this name.
        library_class: Name of the class of transformers that loads the files of ``to_huggingface``.
    """

    Shape: ClassVar[type[EncoderSizes]]
    shape: EncoderSizes
    token_embedding: nn.Embedding
    layers: Sequence[Any]
    library_class: str = "AutoModel"

    @staticmethod
    def build(shape: EncoderSizes, *, dropout: float, attention_dropout: float) -> Encoder:
        """Return a new encoder with random weights: ``Class(shape, dropout=..., attention_dropout=...)``."""
        return ENCODERS.load(shape.type)(shape, dropout=dropout, attention_dropout=attention_dropout)

    @abstractmethod
    def forward(self, batch: TokenBatch, hidden_layer: int | None = None) -> Tensor:
        """Return the hidden states of a layer, [B, T, H], with zeros at padding.

        Args:
            hidden_layer: Number k in [0, layers] of the layer whose output is returned; 0 means the embeddings, None
                the last layer.

        Raises:
            ValueError: The encoder has no such layer.
        """

    def set_activation_checkpointing(self, on: bool) -> None:
        """Set whether, in training, only the input of each layer is kept, and the layer is computed again."""
        if on:
            raise UserError(f"encoders of type {self.shape.type} have no activation checkpointing", cure="turn it off")

    @classmethod
    def new_shape(cls, *, norm: Norm, **sizes: Any) -> EncoderSizes:
        """Return the shape of an encoder that is not pretrained, from the options of the model."""
        problem = "this type of encoder takes its sizes from a pretrained encoder"
        raise UserError(problem, cure="name a pretrained encoder, or leave out `encoder_type`")

    @classmethod
    def read_shape(cls, directory: Path) -> EncoderSizes:
        """Read the shape of the pretrained encoder in a directory.

        Raises:
            UserError: The directory has no encoder of this type, or a file is damaged.
        """
        raise UserError("this type of encoder cannot be read from a directory", path=directory)

    @classmethod
    def read_state(cls, directory: Path, shape: EncoderSizes) -> tuple[dict[str, Tensor], list[str]]:
        """Read the state as ``Start.state`` does; the encoder in the directory may have more layers."""
        raise UserError("this type of encoder cannot be read from a directory", path=directory)

    def to_huggingface(self, layers: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the ``config.json`` and the float32 tensors of the first layers, for transformers.

        Raises:
            UserError: Transformers has no counterpart.
        """
        raise UserError(f"encoders of type {self.shape.type} have no counterpart among Hugging Face's models")


class TransformerEncoder(Encoder, Stack):
    """The transformer of BERT and RoBERTa, and its pre-norm variant.

    Post-norm is BERT's arrangement, which normalises the embeddings first. Pre-norm normalises the input of each
    sublayer and the final output instead.

    Args:
        initializer_range: standard deviation of the normal initialisation of all matrices.

    Attributes:
        compiled: Whether ``compile_layers`` has compiled its layers, which get batches in a few layouts only then.
    """

    Shape = EncoderShape
    shape: EncoderShape
    layers: Sequence[EncoderLayer]

    def __init__(
        self, shape: EncoderShape, *, dropout: float, attention_dropout: float, initializer_range: float = 0.02
    ) -> None:
        super().__init__()
        self.shape = shape  # pyright: ignore[reportIncompatibleVariableOverride]
        hidden_size, epsilon = shape.hidden_size, shape.norm_epsilon
        self.token_embedding = nn.Embedding(shape.vocabulary_size, hidden_size, padding_idx=shape.pad_id)
        self.position_embedding = nn.Embedding(shape.max_positions + shape.position_offset, hidden_size)
        types = shape.type_vocabulary_size
        self.type_embedding = nn.Embedding(types, hidden_size) if types else None
        self.norm = nn.LayerNorm(hidden_size, eps=epsilon)
        self.dropout = Dropout(dropout)
        layers = nn.ModuleList(EncoderLayer(shape, dropout, attention_dropout) for _ in range(shape.layers))
        self.layers = cast(Any, layers)
        self.norm_first = shape.norm == "pre"
        self.activation_checkpointing = False
        self.compiled = False
        self.apply(lambda module: initialise(module, initializer_range))

    def forward(
        self,
        batch: TokenBatch,
        hidden_layer: int | None = None,
        *,
        vectors: Tensor | None = None,
        first_only: bool = False,
    ) -> Tensor:
        """As ``Encoder.forward``; layers above ``hidden_layer`` are not computed.

        A post-norm encoder normalises the embeddings; a pre-norm one normalises only the output of its last layer.

        Args:
            vectors: [B, T, H], what the first layer reads in place of the embedded tokens (see ``embed``).
            first_only: Return the states of the first token of each row alone, [B, 1, H]. The highest of the layers is
                computed for these tokens alone, which saves most of its work.
        """
        last = len(self.layers)
        count = last if hidden_layer is None else hidden_layer
        if not 0 <= count <= last:
            raise ValueError(f"hidden_layer must lie in [0, {last}], not {hidden_layer}")
        layout = self._layout_of(batch)
        if vectors is None:
            places = torch.arange(batch.tokens.size(1), device=batch.tokens.device).expand_as(batch.tokens)
            tokens, positions = layout.pack(batch.tokens), layout.pack(places)
            types = None if batch.types is None else layout.pack(batch.types)
            x = self.embed(self.token_embedding(tokens), positions, types)
        else:
            x = layout.pack(vectors)
        again = self.activation_checkpointing and self.training and torch.is_grad_enabled()
        with in_half(islice(self.layers, count), x, self.casts) as (layers, x):
            for number, layer in enumerate(layers, start=1):
                inputs = (x, layout, True) if first_only and number == count else (x, layout)
                x = checkpoint(layer, *inputs, use_reentrant=False) if again else layer(*inputs)
        x = self.norm(x) if self.norm_first and count == last else x
        if first_only:
            return (x if count else layout.first(x)).unsqueeze(1)
        if isinstance(layout, Masking) and batch.is_padded:
            return x.masked_fill(~batch.mask.unsqueeze(-1), 0.0)
        return layout.pad(x)

    def _layout_of(self, batch: TokenBatch) -> Layout:
        """Return the fastest layout, in which the layers compute attention without padding if they can."""
        device, half = batch.tokens.device, half_type(batch.tokens.device)
        size = self.shape.hidden_size // self.shape.heads
        if half is not None and batch.real_tokens > 0 and packs_attention(device, half, size):
            return Sentences(batch)
        return EqualLengths(batch) if EqualLengths.is_faster(batch) and not self.compiled else layout_of(batch)

    def embed(self, vectors: Tensor, positions: Tensor | None, types: Tensor | None = None) -> Tensor:
        """Return the input of the first layer, [..., H], for embedded tokens, or other vectors in their place.

        Args:
            vectors: [..., H], such as ``token_embedding(tokens)``.
            positions: int64 [...], from 0; None adds none.
            types: Token types, int64 [...]; None means 0. An encoder with a single type does not read them.
        """
        x = vectors
        if self.type_embedding is not None:
            several = types is not None and self.shape.type_vocabulary_size > 1
            x = x + (self.type_embedding(types) if several else self.type_embedding.weight[0])
        if positions is not None:
            x = x + self.position_embedding(positions + self.shape.position_offset)
        return self.dropout(x if self.norm_first else self.norm(x))

    def set_activation_checkpointing(self, on: bool) -> None:
        self.activation_checkpointing = on

    @classmethod
    def new_shape(cls, *, norm: Norm, **sizes: Any) -> EncoderShape:
        return EncoderShape(norm=norm, **sizes)

    @classmethod
    def read_shape(cls, directory: Path) -> EncoderShape:
        return bert.read_shape(directory / bert.HF_CONFIG)

    @classmethod
    def read_state(cls, directory: Path, shape: EncoderSizes) -> tuple[dict[str, Tensor], list[str]]:
        assert isinstance(shape, EncoderShape)
        return bert.read_state(directory, shape)

    def to_huggingface(self, layers: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        shape = replace(self.shape, layers=layers)
        attention_dropout = self.layers[0].attention.dropout if len(self.layers) else 0.0
        config = bert.config_of(shape, self.dropout.p, attention_dropout)
        return config, bert.tensors_of(shape, self.state_dict())


def lacks_types(encoder: Encoder) -> bool:
    """Return whether the encoder has no token types, where its counterpart in transformers has a row of zeros."""
    return isinstance(encoder, TransformerEncoder) and not encoder.shape.type_vocabulary_size


def require_transformer(encoder: Encoder, objective: str) -> TransformerEncoder:
    """Return the encoder of an objective that embeds vectors of its own, which ``TransformerEncoder`` alone can do.

    Raises:
        UserError: The encoder has another type.
    """
    if isinstance(encoder, TransformerEncoder):
        return encoder
    problem = f"{objective} needs encoders of type transformer, this one has the type {encoder.shape.type}"
    raise UserError(problem, cure="start from BERT, RoBERTa or XLM-R, or choose another objective")


def require_words(encoder: Encoder, purpose: str) -> None:
    """Raise UserError if the token vectors of an encoder cannot be compared with its input embeddings, which are
    narrower in ALBERT and ELECTRA."""
    words, vectors = encoder.token_embedding.weight.size(1), encoder.shape.hidden_size
    if words != vectors:
        problem = (
            f"{purpose} needs embeddings as wide as token vectors; the encoder's have {words} and {vectors} numbers"
        )
        raise UserError(problem, cure="choose another encoder")


def set_activation_checkpointing(module: nn.Module, on: bool) -> None:
    """Set the activation checkpointing of every encoder in a module."""
    for part in module.modules():
        if isinstance(part, Encoder):
            part.set_activation_checkpointing(on)


@contextmanager
def counting_sentences(module: nn.Module, count: Callable[[int], object]) -> Iterator[None]:
    """Context manager that calls ``count`` with the number of sentences of each batch that an encoder in a module has
    read."""
    encoders = [part for part in module.modules() if isinstance(part, Encoder)]

    def hook(_: nn.Module, inputs: tuple[Any, ...], __: Any) -> None:
        count(len(inputs[0]))

    hooks = [part.register_forward_hook(hook) for part in encoders]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def initialise(module: nn.Module, initializer_range: float) -> None:
    """Initialise a linear layer or an embedding as BERT does: normal weights, with biases and the pad row zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=initializer_range)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()


def initialise_by_width(module: nn.Module) -> None:
    """Initialise a linear layer or an embedding as ``initialise`` does, with 1/√n as the standard deviation of a matrix
    [m, n] (LeCun et al. 1998, "Efficient BackProp", section 4.6): a translator learns several times as fast from such
    weights as from those of BERT, which are smaller.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        initialise(module, module.weight.size(1) ** -0.5)

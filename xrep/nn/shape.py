"""The sizes of encoders and decoders, as plain data that is saved beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from xrep.errors import UserError

Activation = Literal["gelu", "gelu_tanh", "relu"]
Norm = Literal["post", "pre"]
UNLIMITED = 1 << 20
"""Maximum length of an encoder whose positions have no limit, such as T5's."""


@dataclass(frozen=True, kw_only=True)
class EncoderSizes:
    """The sizes that every encoder has. Subclasses add what else determines the tensors of their encoder.

    The epsilon and the activation are also those of the heads and decoders on top of the encoder.
    """

    type: str
    """Name of the encoder's class in the registry ``ENCODERS``."""
    vocabulary_size: int
    pad_id: int | None
    """Id of the padding token; None if the encoder does not depend on it."""
    hidden_size: int
    layers: int
    heads: int
    feedforward_size: int
    max_positions: int
    """Longest sequence in tokens."""
    norm_epsilon: float = 1e-12
    activation: Activation = "gelu"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def first_layers(self, layers: int | None, path: Path) -> EncoderSizes:
        """Return the shape of the encoder's first ``layers`` layers (None: all).

        Args:
            path: Where the encoder was read from, for the error message.

        Raises:
            UserError: The encoder has fewer layers, or ``layers`` is less than 1.
        """
        if layers is None:
            return self
        if not 1 <= layers <= self.layers:
            cure = f"set `pretrained_layers` to a number up to {self.layers}"
            raise UserError(f"has {self.layers} layers, not {layers}", path=path, cure=cure)
        return replace(self, layers=layers)

    def with_rows(self, rows: Sequence[int]) -> EncoderSizes:
        """Return the shape of the encoder that has only these rows of the embeddings; one of them is the pad row."""
        return replace(self, vocabulary_size=len(rows), pad_id=None if self.pad_id is None else rows.index(self.pad_id))


@dataclass(frozen=True, kw_only=True)
class EncoderShape(EncoderSizes):
    """Everything that determines the tensors of a ``TransformerEncoder`` and its computation, except dropout."""

    type: str = "transformer"
    pad_id: int
    norm: Norm = "post"
    position_offset: int = 0
    """Row of the position table that the first token reads. RoBERTa and XLM-R start at pad id + 1, which is 2. The
    table has ``max_positions + position_offset`` rows."""
    type_vocabulary_size: int = 0
    """Number of rows in BERT's table of segment types; 0 if there is no table. A single sentence has type 0."""


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """Everything that determines a decoder, except dropout. ``max_positions`` includes the end token."""

    hidden_size: int
    layers: int
    heads: int
    feedforward_size: int
    max_positions: int
    source_size: int
    """Width of the encoder's states."""
    norm: Norm = "post"
    norm_epsilon: float = 1e-12
    activation: Activation = "gelu"

"""The sizes of encoders and decoders, as plain data that is saved beside the weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from xrep.errors import UserError

Activation = Literal["gelu", "gelu_tanh", "relu"]
Norm = Literal["post", "pre"]
UNLIMITED = 1 << 20
"""Maximum length of an encoder whose positions have no limit, such as T5's."""


@dataclass(frozen=True, kw_only=True)
class StackSizes:
    """The sizes that every stack of layers has."""

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

    @property
    def parameters(self) -> int:
        """A lower bound of the number of parameters, which is close to it."""
        size, inner = self.hidden_size, self.feedforward_size
        positions = 0 if self.max_positions == UNLIMITED else self.max_positions
        return self.layers * (4 * size * size + 2 * size * inner + inner + 9 * size) + positions * size

    def check(self, whose: str) -> None:
        """Refuse sizes that no encoder or decoder has.

        Raises:
            UserError: A size is too small, or the heads do not divide the width.
        """
        least = {"hidden_size": 1, "layers": 0, "heads": 1, "feedforward_size": 1, "max_positions": 1}
        least |= {"vocabulary_size": 1, "pad_id": 0, "position_offset": 0, "type_vocabulary_size": 0, "source_size": 1}
        sizes = {name: size for name, size in vars(self).items() if name in least and size is not None}
        wrong = [f"{name} {size}" for name, size in sizes.items() if size < least[name]]
        if not wrong and self.hidden_size % self.heads:
            wrong = [f"hidden_size {self.hidden_size} is not divisible by heads {self.heads}"]
        if not 0 < self.norm_epsilon < 1:
            wrong.append(f"norm_epsilon {self.norm_epsilon}")
        if not sizes.get("pad_id", 0) < sizes.get("vocabulary_size", 1):
            wrong.append(f"pad_id {sizes['pad_id']} with vocabulary_size {sizes['vocabulary_size']}")
        if wrong:
            raise UserError(f"the {whose} has impossible sizes: {', '.join(wrong)}", cure="choose other sizes")


@dataclass(frozen=True, kw_only=True)
class LayerShape(StackSizes):
    """Everything that determines the tensors of our own layers and their computation, except dropout."""

    norm: Norm = "post"


@dataclass(frozen=True, kw_only=True)
class DecoderShape(LayerShape):
    """Everything that determines a decoder, except dropout. ``max_positions`` includes the end token."""

    source_size: int
    """Width of the encoder's states."""

    @property
    def parameters(self) -> int:
        return super().parameters + 2 * self.layers * self.hidden_size * (self.hidden_size + self.source_size)


@dataclass(frozen=True, kw_only=True)
class EncoderSizes(StackSizes):
    """The sizes that every encoder has. Subclasses add what else determines the tensors of their encoder.

    The epsilon and the activation are also those of the heads and decoders on top of the encoder.
    """

    type: str
    """Name of the encoder's class in the registry ``ENCODERS``."""
    vocabulary_size: int
    pad_id: int | None
    """Id of the padding token; None if the encoder does not depend on it."""

    @property
    def parameters(self) -> int:
        return super().parameters + self.vocabulary_size * self.hidden_size

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
            cure = f"set `pretrained_layers` to 1 to {self.layers}"
            raise UserError(f"has {self.layers} layers, not {layers}", path=path, cure=cure)
        return replace(self, layers=layers)


@dataclass(frozen=True, kw_only=True)
class EncoderShape(EncoderSizes, LayerShape):
    """Everything that determines the tensors of a ``TransformerEncoder`` and its computation, except dropout."""

    type: str = "transformer"
    pad_id: int
    position_offset: int = 0
    """Row of the position table that the first token reads. RoBERTa and XLM-R start at pad id + 1, which is 2. The
    table has ``max_positions + position_offset`` rows."""
    type_vocabulary_size: int = 0
    """Number of rows in BERT's table of segment types; 0 if there is no table. A single sentence has type 0."""

    @property
    def parameters(self) -> int:
        return super().parameters + (self.position_offset + self.type_vocabulary_size) * self.hidden_size

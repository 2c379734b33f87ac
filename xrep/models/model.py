"""The interfaces of models: what is kept after training, as the trainer, the criteria and the validators use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from xrep.data.batch import Annotation, TextSpec, TokenBatch, Vocabulary


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The trained encoder that a part of a model starts from."""

    path: Path
    languages: list[str]
    """Its languages; empty if they are not known."""
    details: str
    """What a user should know about it, in a few words."""


class Model(nn.Module, ABC):
    """What is kept after training. A model is built as ``Model(config, text, architecture)``.

    Its ``Config`` has a method ``tokenizers()``, which returns the folders of the tokenizers that come with pretrained
    weights, by side.

    Args of the constructor: the configuration; what is known about the text; and ``architecture()`` of the saved model
    that is to be built again, or None for a new model, which may read pretrained weights.

    Attributes:
        kind: What messages call such a model.
        example: Registered name of a model of this kind, for messages.
        default_validation: Name of the validation of a run that names none; None: that of the task.
        idle_parameters: Whether some parameters get no gradient from what the model computes.
        origins: Maps the name of each encoder that starts from a trained one, such as ``encoders.source``, to that one.
    """

    kind: ClassVar[str]
    example: ClassVar[str]
    default_validation: ClassVar[str | None] = None
    idle_parameters: bool = False
    origins: dict[str, Origin]

    @abstractmethod
    def architecture(self) -> dict[str, Any]:
        """Return as plain data what is needed to build the model again; it is saved beside the weights."""

    def carried_over(self, tensors: dict[str, Tensor], text: TextSpec) -> dict[str, Tensor]:
        """Return the tensors of an earlier model of this class, trained on ``text``, as they start this one."""
        return tensors


class SentenceModel(Model):
    """A model that gives every sentence a vector [D]. Each language is encoded by a tower, and towers have names.

    Attributes:
        output_size: D, the width of the sentence vectors.
    """

    kind = "sentence encoder"
    example = "dual_encoder"
    output_size: int

    @property
    @abstractmethod
    def languages(self) -> list[str]:
        """The languages that the model was trained for, sorted."""

    @abstractmethod
    def tower(self, language: str | None) -> str:
        """Return the name of the tower that encodes a language.

        Raises:
            UserError: There are several towers, and the language was not trained or is None.
        """

    @abstractmethod
    def encode(self, tower: str, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return sentence vectors [B, D] and the token vectors [B, T, H] that they are pooled from."""

    @abstractmethod
    def encode_pair(self, source: TokenBatch, target: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return sentence vectors of both sides of pairs, [B, D] each."""


class TranslationModel(Model):
    """A model that predicts each target token from a source sentence and the target tokens before it.

    ``target_languages`` are those it can translate into; their places in the list are the numbers it reads.
    """

    kind = "translation model"
    example = "translation"
    default_validation = "translation"
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary

    @property
    @abstractmethod
    def target_languages(self) -> list[str]: ...

    @property
    @abstractmethod
    def max_target_length(self) -> int:
        """Largest number of tokens in a translation, including eos."""

    @abstractmethod
    def predict(self, source: TokenBatch, target: TokenBatch, languages: Tensor) -> Any:
        """Return what each target token except bos is predicted from (``xrep.models.translation.Predictions``).

        The tokens of all sentences are concatenated.

        Args:
            languages: Numbers of the target languages, int64 [B].
        """

    @abstractmethod
    def begin(self, source: TokenBatch, languages: Tensor) -> Any:
        """Encode sentences, and return the state with which a search for their translations begins."""


class ClassifyingModel(Model):
    """A model that predicts annotations of text: a label of each text, a tag of each word, or the answer to a question.

    Attributes:
        annotation: What it predicts.
    """

    kind = "classifier"
    example = "classifier"
    annotation: Annotation

    @abstractmethod
    def forward(self, tokens: TokenBatch) -> Tensor:
        """Return the logits: [N, labels] of texts, [N, T, tags] of words, or [N, T, 2] of the answers' ends."""

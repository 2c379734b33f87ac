"""The interfaces of models: what is kept after training, as the trainer, the criteria and the validators use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from xrep.data.batch import TextSpec, TokenBatch, Vocabulary
from xrep.text.sides import Tokenizers
from xrep.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class EncoderOrigin:
    """The trained encoder that a part of a model starts from."""

    path: Path
    languages: list[str]
    """Its languages; empty if they are not known."""
    details: str
    """What a user should know about it, in a few words."""


@dataclass(frozen=True, kw_only=True)
class ForTransformers:
    """What a model has written for the library transformers."""

    opening: str
    """Name of the class of transformers that opens it."""
    pipeline: str
    """The Hub's name of what it does."""
    about: str
    """What a reader of its card should know."""
    encoder: Any
    """The encoder that was written (``xrep.nn.encoder.Encoder``)."""
    languages: list[str] = field(default_factory=list)
    """The languages that it reads, if they are to be named beside the line that opens it."""


class Model(nn.Module, ABC):
    """What is kept after training. A model is built as ``Model(config, text, architecture)``.

    Its ``Config`` has a method ``tokenizers()``, which returns the folders of the tokenizers that come with pretrained
    weights, by side.

    Args of the constructor: the configuration; what is known about the text; and ``architecture()`` of the saved model
    that is to be built again, or None for a new model, which may read pretrained weights.

    Attributes:
        kind: What messages call such a model.
        example: Registered name of a model of this kind, for messages.
        use: What can be done with a checkpoint of such a model at ``{path}``, for messages.
        start: How such a model is trained from the encoder of another one at ``{path}``, for messages.
        opening: Line of Python that loads a checkpoint at ``{path}``, a string in quotation marks.
        in_transformers: What ``write_for_transformers`` writes, for messages; None: it writes nothing.
        pipeline: The Hub's name of what the model does.
        default_validation: Name of the validation of a run that names none; None: that of the task.
        idle_parameters: Whether some parameters get no gradient from what the model computes.
        origins: Maps the name of each encoder that starts from a trained one, such as ``encoders.source``, to that one.
    """

    kind: ClassVar[str] = "checkpoint"
    example: ClassVar[str]
    use: ClassVar[str] = "start from it: xrep-train DATA --encoder {path}"
    start: ClassVar[str] = "start from it: xrep-train DATA --encoder {path}"
    opening: ClassVar[str] = (
        "from xrep.models import directory; directory.load_model(directory.open_checkpoint({path}))"
    )
    in_transformers: ClassVar[str | None] = None
    pipeline: str = "feature-extraction"
    default_validation: ClassVar[str | None] = None
    idle_parameters: bool = False
    origins: dict[str, EncoderOrigin]

    def start_embeddings(self, tokenizers: Tokenizers) -> None:
        """Start the embeddings of a new model whose text has other subwords than the encoder that it starts from; see
        ``DualEncoder.Config.vocabulary``. ``tokenizers`` are those of the text."""

    @property
    def new_embeddings(self) -> set[str]:
        """Names of the embeddings of a vocabulary that the encoders did not have when training began."""
        return set()

    @abstractmethod
    def architecture(self) -> dict[str, Any]:
        """Return as plain data what is needed to build the model again; it is saved beside the weights."""

    def write_for_transformers(self, directory: Path, tokenizer: Tokenizer, max_length: int) -> ForTransformers:
        """Write configuration, weights and tokenizer into an empty directory, for the library transformers. A model
        without ``in_transformers`` needs no such method.

        Args:
            max_length: Longest sentence in tokens.

        Raises:
            UserError: Transformers has no counterpart of the model.
        """
        raise NotImplementedError

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
    use = "encode sentences by xrep-encode --path {path}"
    start = "train sentence vectors from its encoder: xrep-train DATA --task bitext --encoder {path}"
    opening = "import xrep; xrep.SentenceEncoder.load({path})"
    pipeline = "sentence-similarity"
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
    use = "translate by xrep-generate --path {path}"
    start = (
        "train a translator from its encoder: xrep-train DATA --task translation "
        "--criterion label_smoothed_cross_entropy --encoder {path}"
    )
    opening = "import xrep; xrep.Translator.load({path})"
    pipeline = "translation"
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

"""Subword tokenizers, which turn text into lists of integer ids.

A tokenizer is saved as a folder: ``tokenizer_config.json`` names its ``kind``, and the files of that kind are beside
it. To add a kind, write a subclass of ``Tokenizer`` and add an entry to ``_KINDS``. Hugging Face model directories
also have a ``tokenizer_config.json``, but without a kind: ``xrep.text.pretrained_tokenizer`` reads those.

The unigram model of SentencePiece is described in Kudo, 2018 (arXiv:1804.10959).
"""

from __future__ import annotations

import importlib
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from xrep.errors import UserError
from xrep.files import write_aside

CONFIG_FILE = "tokenizer_config.json"
SENTENCEPIECE_FILE = "sentencepiece.model"
MASK_PIECE = "<mask>"
SPACE = "\u2581"
"""The character that SentencePiece writes for a space, at the beginning of a word."""


class Tokenizer(ABC):
    """Base class of tokenizers, which convert text to ids and back and know the ids of the special tokens.

    Attributes: ``vocabulary_size``, ``pad_id``, ``unk_id``, ``eos_id`` (int); ``bos_id`` (None if sentences have none,
    as in T5) and ``mask_id`` (None if the model has no mask piece).
    """

    kind: str
    vocabulary_size: int
    pad_id: int
    unk_id: int
    bos_id: int | None
    eos_id: int
    mask_id: int | None
    pair_separators: int = 1
    """Number of eos tokens between two sentences that the model reads as one sequence."""

    @staticmethod
    def load(path: str | Path) -> Tokenizer:
        """Open a tokenizer folder, a Hugging Face model directory, a bare ``sentencepiece.model`` or its folder.

        Raises:
            UserError: If there is no tokenizer, its kind is unknown to this version, or the model is damaged.
        """
        path = Path(path)
        if not path.is_dir():
            return SentencePieceTokenizer(read_model(path), origin=path)
        kind = _read_kind(path)
        if kind is None:
            return _load("xrep.text.pretrained_tokenizer:read_pretrained_tokenizer")(path)
        if kind not in _KINDS:
            raise UserError(
                f"tokenizer of kind {kind!r}, but this xrep knows {', '.join(_KINDS)}",
                path=path / CONFIG_FILE,
                cure="use a newer xrep or another tokenizer",
            )
        return _load(_KINDS[kind])._from_directory(path)

    @classmethod
    @abstractmethod
    def _from_directory(cls, directory: Path) -> Tokenizer: ...

    @abstractmethod
    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the ids of each sentence, without special ids; an empty sentence gives an empty list."""

    @abstractmethod
    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text and the characters (start, end) of the text that each of them stands for."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of one list of ids; special ids give no text."""

    @abstractmethod
    def begins_word(self) -> list[bool]:
        """Return for every id whether its piece begins a word.

        The tokenizer decides what a word is: SentencePiece finds no words in a language written without spaces.
        """

    @abstractmethod
    def save(self, directory: str | Path) -> None:
        """Write the files of this tokenizer into ``directory``, which is created if it is missing."""

    def add_special(self, ids: Sequence[int]) -> list[int]:
        """Return ``[bos] ids [eos]``, or ``ids [eos]`` if there is no bos."""
        return [*([] if self.bos_id is None else [self.bos_id]), *ids, self.eos_id]


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model held in memory.

    Args:
        model: Bytes of the ``.model`` file.
        origin: Where the bytes came from, for error messages.

    Raises:
        UserError: If the bytes are not a SentencePiece model, or it lacks one of pad, unk, bos and eos.
    """

    kind = "sentencepiece"
    pair_separators = 2  # as in RoBERTa and XLM-R, because encoders that xrep makes have no token types either

    def __init__(self, model: bytes, origin: Path | str = SENTENCEPIECE_FILE) -> None:
        self.model = model
        self._processor = open_sentencepiece(model, origin)
        self.vocabulary_size = self._processor.get_piece_size()
        for name in ("pad", "unk", "bos", "eos"):
            identity = getattr(self._processor, f"{name}_id")()
            if identity < 0:
                raise UserError(
                    f"the SentencePiece model has no {name} piece",
                    path=origin,
                    cure="train one with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3",
                )
            setattr(self, f"{name}_id", identity)
        mask = self._processor.piece_to_id(MASK_PIECE)
        self.mask_id = None if mask == self.unk_id else mask

    @classmethod
    def _from_directory(cls, directory: Path) -> SentencePieceTokenizer:
        path = directory / SENTENCEPIECE_FILE
        return cls(read_model(path), origin=path)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return self._processor.encode(list(sentences), out_type=int)

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        return _load("xrep.text.spans:sentencepiece_spans")(self._processor, text)

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.decode([int(i) for i in ids])

    def begins_word(self) -> list[bool]:
        return word_starts(self._processor)

    def save(self, directory: str | Path) -> None:
        save_files(self, directory, {SENTENCEPIECE_FILE: self.model})


# The class of each kind as "module:class". It is imported on first use, so that this module stays fast to import.
_KINDS: dict[str, str] = {
    "sentencepiece": "xrep.text.tokenizer:SentencePieceTokenizer",
    "huggingface": "xrep.text.pretrained_tokenizer:HuggingFaceTokenizer",
    "xlm-roberta": "xrep.text.pretrained_tokenizer:XLMRobertaTokenizer",
}


def train_tokenizer(
    sentences: Iterable[str],
    vocabulary_size: int,
    destination: str | Path,
    *,
    character_coverage: float = 0.9995,
    byte_fallback: bool = False,
) -> Tokenizer:
    """Train a SentencePiece unigram model and save it in the folder ``destination``.

    The special ids are pad 0, unk 1, bos 2, eos 3 and ``<mask>`` 4. All are control symbols, so no input text is ever
    encoded as one of them. The same sentences give the same model on every machine.

    Args:
        sentences: Training sentences. They are read once, and SentencePiece holds them in memory; limit their number
            with ``sample_for_tokenizer``.
        vocabulary_size: Number of pieces, including the five special ones.
        character_coverage: Share of the characters that get a piece; the others become unk.
        byte_fallback: Encode unknown characters as UTF-8 bytes (256 pieces) instead of as unk.

    Raises:
        UserError: If there is no sentence, or the vocabulary is too large or too small for the text (the message gives
            the bound).
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocabulary_size,
            character_coverage=character_coverage,
            byte_fallback=byte_fallback,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            control_symbols=[MASK_PIECE],
            max_sentence_length=1 << 16,
            # The sums of expectation-maximisation depend on how the text is divided among threads, so that the number
            # of threads must be the same on every machine.
            num_threads=2,
            minloglevel=9,
        )
    except RuntimeError as error:
        raise _explain_training(str(error), vocabulary_size) from None
    tokenizer = SentencePieceTokenizer(model.getvalue())
    tokenizer.save(destination)
    return tokenizer


def sample_for_tokenizer(
    sentences: Iterable[tuple[str, str]],
    counts: Mapping[str, int],
    *,
    exponent: float = 0.5,
    maximum: int = 2_000_000,
) -> Iterator[str]:
    """Resample sentences so that a language with n sentences has a share p ∝ n^exponent of the output.

    The number of sentences returned is the number read, or ``maximum`` if that is smaller. Large languages are
    subsampled evenly over the text; sentences of small languages are repeated. The input is read in one pass and
    nothing is held in memory.

    Args:
        sentences: ``(language, text)`` of all languages, in any order.
        counts: Number of sentences per language in ``sentences``.
        exponent: 1 keeps the proportions of the text, 0 makes all languages equal (XLM, arXiv:1901.07291, uses 0.5).
        maximum: Largest number of sentences to return.
    """
    weights = {language: count**exponent for language, count in counts.items() if count > 0}
    total = min(sum(counts.values()), maximum)
    scale = total / sum(weights.values()) if weights else 0.0
    rates = {language: scale * weight / counts[language] for language, weight in weights.items()}
    due = dict.fromkeys(rates, 0.0)
    for language, text in sentences:
        due[language] += rates[language]
        while due[language] >= 1.0 - 1e-9:
            due[language] -= 1.0
            yield text


def _explain_training(message: str, vocabulary_size: int) -> UserError:
    """Turn the text of SentencePiece's exception into an error that says what to do."""
    if match := re.search(r"Please set it to a value <= (\d+)", message):
        problem = f"a vocabulary of {vocabulary_size} pieces is too large for this text"
        return UserError(problem, cure=f"ask for at most {match[1]} (`vocab_size` {match[1]})")
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        problem = f"a vocabulary of {vocabulary_size} pieces is smaller than the number of different characters"
        return UserError(problem, cure=f"ask for more than {match[1]}")
    if "!sentences_.empty()" in message:
        return UserError("no sentence to train the tokenizer on", cure="check the input files and cleaning options")
    return UserError(f"SentencePiece could not train: {message}", cure="check `vocab_size` and the input text")


def open_sentencepiece(model: bytes, origin: Path | str) -> sentencepiece.SentencePieceProcessor:
    """Return the processor of a serialized SentencePiece model; error messages name ``origin``.

    Raises:
        UserError: If the bytes are not a SentencePiece model, or the model is empty.
    """
    cure = "give a model made by xrep-preprocess or by SentencePiece"
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        size = processor.get_piece_size()
    except RuntimeError:
        raise UserError("not a SentencePiece model, or a damaged one", path=origin, cure=cure) from None
    if size == 0:
        raise UserError("an empty SentencePiece model", path=origin, cure=cure)
    return processor


def word_starts(processor: sentencepiece.SentencePieceProcessor) -> list[bool]:
    """Return for every piece of a SentencePiece model whether it begins with ``SPACE``."""
    return [processor.id_to_piece(i).startswith(SPACE) for i in range(processor.get_piece_size())]


def save_files(tokenizer: Tokenizer, directory: str | Path, files: Mapping[str, bytes], **more: Any) -> None:
    """Write ``files`` (name -> content) and the config that names the tokenizer's kind; ``more`` is added to it."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = {"schema": 1, "kind": tokenizer.kind, "vocabulary_size": tokenizer.vocabulary_size, **more}
    # The config is written last, so that a folder with a config is complete.
    for name, content in [*files.items(), (CONFIG_FILE, (json.dumps(config, indent=2) + "\n").encode())]:
        with write_aside(directory / name) as temporary:
            temporary.write_bytes(content)


def read_model(path: Path) -> bytes:
    """Return the bytes of a tokenizer's model file.

    Raises:
        UserError: If there is no such file.
    """
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError("no such tokenizer", path=path, cure="give a tokenizer folder or a .model file") from None


def _read_kind(directory: Path) -> str | None:
    """Return the kind of a tokenizer that xrep wrote; None for a folder that another library wrote."""
    path = directory / CONFIG_FILE
    if not path.exists():  # a bare folder with a model file is accepted
        return SentencePieceTokenizer.kind if (directory / SENTENCEPIECE_FILE).exists() else None
    try:
        kind = json.loads(path.read_text(encoding="utf-8")).get("kind")
    except (ValueError, AttributeError):
        cure = "give a folder that xrep wrote, or a Hugging Face model directory"
        raise UserError("not a tokenizer config of xrep or Hugging Face", path=path, cure=cure) from None
    return None if kind is None else str(kind)


def _load(target: str) -> Any:
    """Import and return the object that ``"module:name"`` names."""
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)

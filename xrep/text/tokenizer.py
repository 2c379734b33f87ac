"""Subword tokenizers: text in, lists of integer ids out.

A tokenizer is a folder: ``tokenizer_config.json`` says of which ``kind`` it is, the files of that kind lie beside
it. Another kind is another subclass of ``Tokenizer`` and one entry in ``_KINDS``. Hugging Face model directories have
a ``tokenizer_config.json`` too, without a kind: ``xrep.text.pretrained_tokenizer`` reads those.

SentencePiece with the unigram model is Kudo 2018 (arXiv:1804.10959).
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
"""SentencePiece's sign for a space, which begins a word."""


class Tokenizer(ABC):
    """Text to ids and back, with the special ids every task may need.

    Properties: ``vocabulary_size``, ``pad_id``, ``unk_id``, ``bos_id``, ``eos_id`` (int) and ``mask_id`` (None in a
    foreign model which has no mask piece).
    """

    kind: str
    vocabulary_size: int
    pad_id: int
    unk_id: int
    bos_id: int
    eos_id: int
    mask_id: int | None

    @staticmethod
    def load(path: str | Path) -> Tokenizer:
        """Open a tokenizer folder, a Hugging Face model directory, a bare ``sentencepiece.model`` or its folder.

        Raises:
            UserError: nothing there, a kind this version does not know, a damaged model.
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
        """Ids of each sentence, without special ids; an empty sentence gives an empty list."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Text of one list of ids; special ids give no text."""

    @abstractmethod
    def begins_word(self) -> list[bool]:
        """Of every id whether its piece begins a word, as far as the tokenizer knows words: those of a language without
        spaces are no words to SentencePiece."""

    @abstractmethod
    def save(self, directory: str | Path) -> None:
        """Write the files of this tokenizer into ``directory`` (made if missing)."""

    def add_special(self, ids: Sequence[int]) -> list[int]:
        """``[bos] ids [eos]``."""
        return [self.bos_id, *ids, self.eos_id]


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model held in memory.

    Args:
        model: bytes of the ``.model`` file.
        origin: where they came from, for messages.

    Raises:
        UserError: the bytes are no SentencePiece model, or it lacks one of pad, unk, bos, eos.
    """

    kind = "sentencepiece"

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

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.decode([int(i) for i in ids])

    def begins_word(self) -> list[bool]:
        return word_starts(self._processor)

    def save(self, directory: str | Path) -> None:
        save_files(self, directory, {SENTENCEPIECE_FILE: self.model})


# Where each kind lives: imported when first used, so that this module stays light.
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

    Ids: pad 0, unk 1, bos 2, eos 3, ``<mask>`` 4; all are control symbols, so no text can spell them. The same
    sentences give the same model on every machine.

    Args:
        sentences: read once and held in memory by SentencePiece (bound them with ``sample_for_tokenizer``).
        vocabulary_size: number of pieces, the five special ones included.
        character_coverage: share of the characters that get a piece; the rest become unk.
        byte_fallback: spell unknown characters as UTF-8 bytes (256 pieces) rather than as unk.

    Raises:
        UserError: no sentence, or a vocabulary too large or too small for the text (the cure names the bound).
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
            # The sums of expectation-maximisation depend on how the text is dealt to threads, so the number is fixed.
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
    """Balance languages: pass on sentences so that a language of n sentences has a share p ∝ n^exponent.

    The number passed on is the number read, at most ``maximum``: large languages are thinned evenly over the text,
    sentences of small ones come several times. One pass, nothing is held.

    Args:
        sentences: ``(language, text)`` of all languages, in any order.
        counts: sentences per language in that stream.
        exponent: 1 keeps the proportions of the text, 0 makes all languages equal (XLM, arXiv:1901.07291, has 0.5).
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
    """Turn SentencePiece's exception text into a line with a cure."""
    if match := re.search(r"Please set it to a value <= (\d+)", message):
        problem = f"a vocabulary of {vocabulary_size} pieces is too large for this text"
        return UserError(problem, cure=f"ask for at most {match[1]} (--vocab-size {match[1]})")
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        problem = f"a vocabulary of {vocabulary_size} pieces is smaller than the number of different characters"
        return UserError(problem, cure=f"ask for more than {match[1]}")
    if "!sentences_.empty()" in message:
        return UserError("no sentence to train the tokenizer on", cure="check the input files and cleaning options")
    return UserError(f"SentencePiece could not train: {message}", cure="check --vocab-size and the input text")


def open_sentencepiece(model: bytes, origin: Path | str) -> sentencepiece.SentencePieceProcessor:
    """The processor of a serialized SentencePiece model; ``origin`` is named in messages.

    Raises:
        UserError: the bytes are no SentencePiece model, or an empty one.
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
    """Of every piece of a SentencePiece model whether it begins with the sign for a space."""
    return [processor.id_to_piece(i).startswith(SPACE) for i in range(processor.get_piece_size())]


def save_files(tokenizer: Tokenizer, directory: str | Path, files: Mapping[str, bytes], **more: Any) -> None:
    """Write ``files`` (name -> content) and the config that names the tokenizer's kind, with ``more`` entries."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = {"schema": 1, "kind": tokenizer.kind, "vocabulary_size": tokenizer.vocabulary_size, **more}
    # The config names the kind, so it comes last: a folder that has it is whole.
    for name, content in [*files.items(), (CONFIG_FILE, (json.dumps(config, indent=2) + "\n").encode())]:
        with write_aside(directory / name) as temporary:
            temporary.write_bytes(content)


def read_model(path: Path) -> bytes:
    """The bytes of a tokenizer's model file.

    Raises:
        UserError: there is no such file.
    """
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError("no such tokenizer", path=path, cure="give a tokenizer folder or a .model file") from None


def _read_kind(directory: Path) -> str | None:
    """The kind of a tokenizer of ours; None for a folder of another make."""
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
    """What ``"module:name"`` stands for."""
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)

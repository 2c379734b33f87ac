"""Subword tokenizers, which turn text into lists of integer ids.

A tokenizer is saved as a folder: ``tokenizer_config.json`` names its ``kind``, and the file of its model is beside it.
Hugging Face model directories also have a ``tokenizer_config.json``, but without a kind:
``xrep.text.pretrained_tokenizer`` reads those.

The unigram model of SentencePiece is described in Kudo, 2018 (arXiv:1804.10959).
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from xrep.errors import UserError
from xrep.files import write_aside
from xrep.text.protobuf import sentencepiece_spans

CONFIG_FILE = "tokenizer_config.json"
SENTENCEPIECE_FILE = "sentencepiece.model"
MASK_PIECE = "<mask>"
SPACE = "\u2581"
"""The character that SentencePiece writes for a space, at the beginning of a word."""
AGAIN = "fetch the model again"
USUAL_VOCABULARY = 16_000
"""Number of pieces of a vocabulary whose size nobody chose, if the text is enough for it."""
MAXIMUM_VOCABULARY = 10_000_000
"""More pieces than any model has. A damaged file may ask for more than the memory can hold."""
_MAXIMUM_BYTES = 1 << 28
_TOO_LARGE = re.compile(r"Please set it to a value <= (\d+)")
_TRAIN = """
import sys

sys.path = [place for place in sys.path if place]  # the current folder may have modules of the same names
import json
from sentencepiece import SentencePieceTrainer

with open(sys.argv[1], encoding="utf-8", newline="\\n") as text, open(sys.argv[2], "wb") as model:
    sentences = (line[:-1] for line in text)
    SentencePieceTrainer.train(sentence_iterator=sentences, model_writer=model, **json.loads(sys.argv[3]))
"""
"""Program that trains a model on the lines of a file; its arguments are that file, the model's and the options."""


class Tokenizer(ABC):
    """Base class of tokenizers, which convert text to ids and back and know the ids of the special tokens.

    ``bos_id`` is None if sentences have none, as in T5, and ``mask_id`` if the model has no mask piece. ``model`` is
    the content of ``model_file`` in the tokenizer's folder.
    """

    kind: str
    model_file: str
    model: bytes
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
        """Open a tokenizer folder, a Hugging Face model directory, a bare ``sentencepiece.model`` or its folder. Raises
        UserError if there is no tokenizer, its kind is unknown to this version, or the model is damaged."""
        path = Path(path)
        if not path.is_dir():
            return SentencePieceTokenizer(read_model(path), origin=path)
        kind = _read_kind(path)
        if kind == SentencePieceTokenizer.kind:
            return SentencePieceTokenizer.open(path)
        # Its classes are subclasses of those here, and it imports ``tokenizers``, which SentencePiece does without.
        pretrained_tokenizer = importlib.import_module("xrep.text.pretrained_tokenizer")

        if kind is None:
            return pretrained_tokenizer.read_pretrained_tokenizer(path)
        kinds = {known.kind: known for known in (SentencePieceTokenizer, *pretrained_tokenizer.KINDS)}
        if kind not in kinds:
            problem = f"tokenizer of kind {kind!r}, but this xrep knows {', '.join(kinds)}"
            raise UserError(problem, path=path / CONFIG_FILE, cure="use a newer xrep or another tokenizer")
        return kinds[kind].open(path)

    @classmethod
    @abstractmethod
    def open(cls, directory: Path) -> Tokenizer:
        """Open a folder that a tokenizer of this kind was saved in."""

    @abstractmethod
    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the ids of each sentence, without special ids; an empty sentence gives an empty list."""

    @abstractmethod
    def use_one_thread(self) -> None:
        """Encode with one thread from now on, for processes that share the processors with others like them."""

    @abstractmethod
    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text and the characters (start, end) of the text that each of them stands for."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of one list of ids; special ids give no text."""

    @property
    def special_ids(self) -> dict[str, int | None]:
        """The ids of the special tokens by role."""
        return {"pad": self.pad_id, "unk": self.unk_id, "bos": self.bos_id, "eos": self.eos_id, "mask": self.mask_id}

    def files(self) -> dict[str, bytes]:
        """Return the files of the saved tokenizer. The config is the last: a folder that has it is complete."""
        config = {"schema": 1, "kind": self.kind, "vocabulary_size": self.vocabulary_size, **self._options()}
        return {self.model_file: self.model, CONFIG_FILE: (json.dumps(config, indent=2) + "\n").encode()}

    def _options(self) -> dict[str, Any]:
        """Return what the config holds beside the kind and the size."""
        return {}

    def save(self, directory: str | Path) -> None:
        """Write the files of this tokenizer into ``directory``, which is created if it is missing."""
        write_files(self.files(), directory)

    def add_special(self, ids: Sequence[int]) -> list[int]:
        """Return ``[bos] ids [eos]``, or ``ids [eos]`` if there is no bos."""
        return [*([] if self.bos_id is None else [self.bos_id]), *ids, self.eos_id]


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model held in memory, given as the bytes of the ``.model`` file.

    Raises:
        UserError: If the bytes are not a SentencePiece model, or it lacks one of pad, unk, bos and eos.
    """

    kind = "sentencepiece"
    model_file = SENTENCEPIECE_FILE
    pair_separators = 2  # as in RoBERTa and XLM-R, because encoders that xrep makes have no token types either

    def __init__(self, model: bytes, origin: Path | str = SENTENCEPIECE_FILE) -> None:
        self.model, self._threads = model, -1
        cure = "give a model made by xrep-preprocess or by SentencePiece"
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            size = self._processor.get_piece_size()
        except RuntimeError:
            raise UserError("not a SentencePiece model, or a damaged one", path=origin, cure=cure) from None
        if size == 0:
            raise UserError("an empty SentencePiece model", path=origin, cure=cure)
        self._set_ids(size, origin)

    def _set_ids(self, size: int, origin: Path | str) -> None:
        piece = self._processor
        ids = {"pad": piece.pad_id(), "unk": piece.unk_id(), "bos": piece.bos_id(), "eos": piece.eos_id()}
        for name, identity in ids.items():
            if identity < 0:
                cure = "train one with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3"
                raise UserError(f"the SentencePiece model has no {name} piece", path=origin, cure=cure)
        self.vocabulary_size = size
        self.pad_id, self.unk_id, self.bos_id, self.eos_id = ids.values()
        mask = piece.piece_to_id(MASK_PIECE)
        self.mask_id = None if mask == self.unk_id else mask

    @classmethod
    def open(cls, directory: Path) -> SentencePieceTokenizer:
        path = directory / cls.model_file
        return cls(read_model(path), origin=path)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return self._processor.encode(list(sentences), out_type=int, num_threads=self._threads)

    def use_one_thread(self) -> None:
        self._threads = 1

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        return sentencepiece_spans(self._processor, text)

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.decode([int(i) for i in ids])


def train_tokenizer(sentences: Iterable[str], vocabulary_size: int | None, destination: str | Path) -> Tokenizer:
    """Train a SentencePiece unigram model and save it in the folder ``destination``.

    The special ids are pad 0, unk 1, bos 2, eos 3 and ``<mask>`` 4. All are control symbols, so no input text is ever
    encoded as one of them. Characters beyond the most frequent 99.95% become unk. The same sentences give the same
    model on every machine.

    Args:
        sentences: Training sentences, read once and held in memory (``sample_for_tokenizer`` limits their number).
        vocabulary_size: Number of pieces, including the five special ones; None: ``USUAL_VOCABULARY``, or as many as
            the text allows if it is too small for that.

    Raises:
        UserError: If there is no sentence, or the vocabulary is too large or too small for the text (the message gives
            the bound).
    """
    wanted = USUAL_VOCABULARY if vocabulary_size is None else vocabulary_size
    if not 0 < wanted <= MAXIMUM_VOCABULARY:
        problem = f"a vocabulary of {wanted:,} pieces"
        raise UserError(problem, cure=f"give `vocab_size` between 1 and {MAXIMUM_VOCABULARY:,}")
    options = {
        "model_type": "unigram",
        "vocab_size": wanted,
        "character_coverage": 0.9995,
        **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
        "control_symbols": [MASK_PIECE],
        "max_sentence_length": 1 << 16,
        # The sums of expectation-maximisation depend on how the text is divided among threads, so that the number of
        # threads must be the same on every machine.
        "num_threads": 2,
        "minloglevel": 9,
    }
    with tempfile.TemporaryDirectory() as folder:
        text, model = Path(folder) / "text", Path(folder) / "model"
        with text.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.writelines(sentence.replace("\n", " ") + "\n" for sentence in sentences)
        problem = _train(text, model, options)
        if vocabulary_size is None and (match := _TOO_LARGE.search(problem)):
            options["vocab_size"] = int(match[1])
            problem = _train(text, model, options)
        if problem:
            raise _explain_training(problem, options["vocab_size"])
        tokenizer = SentencePieceTokenizer(model.read_bytes())
    tokenizer.save(destination)
    return tokenizer


def _train(text: Path, model: Path, options: Mapping[str, Any]) -> str:
    """Train a model in a process of its own; return what SentencePiece says if it cannot, else nothing."""
    # SentencePiece does not notice Ctrl-C while it trains, for minutes, so it trains in a process of its own.
    command = [sys.executable, "-c", _TRAIN, str(text), str(model), json.dumps(options)]
    trained = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
    if not trained.returncode:
        return ""
    return trained.stderr.strip().rpartition("\n")[2] or f"its process ended with {trained.returncode}"


def sample_for_tokenizer(
    sentences: Iterable[tuple[str, str]],
    counts: Mapping[str, int],
    *,
    exponent: float = 0.5,
    maximum: int = 2_000_000,
) -> Iterator[str]:
    """Resample sentences so that a language with n sentences has a share p ∝ n^exponent of the output.

    The number of sentences returned is the number read, or ``maximum`` if that is smaller. Large languages are
    subsampled evenly over the text; sentences of small languages are repeated. Nothing is held in memory.

    Args:
        sentences: ``(language, text)`` of all languages, in any order.
        counts: Number of sentences per language in ``sentences``.
        exponent: 1 keeps the proportions of the text, 0 makes all languages equal (XLM, arXiv:1901.07291, uses 0.5).
        maximum: Largest number of sentences to return.

    Raises:
        UserError: If the exponent is not between 0 and 10.
    """
    if not 0 <= exponent <= 10:
        raise UserError(f"languages sampled with the exponent {exponent:g}", cure="give one between 0 and 1")
    weights = {language: count**exponent for language, count in counts.items() if count > 0}
    total = min(sum(counts.values()), maximum)
    scale = total / sum(weights.values()) if weights else 0.0
    return _resample(sentences, {language: scale * weight / counts[language] for language, weight in weights.items()})


def _resample(sentences: Iterable[tuple[str, str]], rates: Mapping[str, float]) -> Iterator[str]:
    due = dict.fromkeys(rates, 0.0)
    for language, text in sentences:
        due[language] += rates[language]
        while due[language] >= 1.0 - 1e-9:
            due[language] -= 1.0
            yield text


def _explain_training(message: str, vocabulary_size: int) -> UserError:
    problem = f"a vocabulary of {vocabulary_size} pieces is"
    if match := _TOO_LARGE.search(message):
        cure = f"ask for at most {match[1]} (`vocab_size` {match[1]})"
        return UserError(f"{problem} too large for this text", cure=cure)
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        cure = f"ask for more than {match[1]}"
        return UserError(f"{problem} smaller than the number of different characters", cure=cure)
    if "!sentences_.empty()" in message:
        return UserError("no sentence to train the tokenizer on", cure="check the input files and cleaning options")
    return UserError(f"SentencePiece could not train: {message}", cure="check `vocab_size` and the input text")


def write_files(files: Mapping[str, bytes], directory: str | Path) -> None:
    """Write files (name -> content) into a folder, which is created if it is missing."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with write_aside(directory / name) as temporary:
            temporary.write_bytes(content)


def read_model(path: Path) -> bytes:
    """Return the content of a tokenizer's file; raise UserError if there is none, or it is a pipe or too large."""
    if not path.exists():
        raise UserError("no such tokenizer", path=path, cure="give a tokenizer folder or a .model file")
    if not path.is_file():
        raise UserError("not a regular file", path=path, cure="copy the tokenizer into a folder")
    if path.stat().st_size > _MAXIMUM_BYTES:
        raise UserError(f"a file of {path.stat().st_size:,} bytes is no tokenizer", path=path, cure=AGAIN)
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, with its line ends as they are; raises UserError as ``read_model``."""
    if not path.exists():
        raise UserError("no such file", path=path, cure="give a folder as xrep wrote it")
    try:
        return read_model(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 text (byte {error.start})", path=path, cure=AGAIN) from None


def read_json(path: Path, problem: str = "not a JSON object, or a damaged one", cure: str = AGAIN) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty dict if there is no such file; ``problem`` if it has no object."""
    if not path.exists():
        return {}
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise UserError(problem, path=path, cure=cure)
    return content


def _read_kind(directory: Path) -> str | None:
    """Return the kind of a tokenizer that xrep wrote; None for a folder that another library wrote."""
    path = directory / CONFIG_FILE
    if not path.exists():  # a bare folder with a model file is accepted
        return SentencePieceTokenizer.kind if (directory / SENTENCEPIECE_FILE).exists() else None
    cure = "give a folder that xrep wrote, or a Hugging Face model directory"
    kind = read_json(path, "not a tokenizer config of xrep or Hugging Face", cure).get("kind")
    return None if kind is None else str(kind)

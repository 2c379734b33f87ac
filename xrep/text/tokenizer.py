"""Subword tokenizers, which turn text into lists of integer ids, and those that SentencePiece runs.

A tokenizer is saved as a folder: ``tokenizer_config.json`` names its ``kind``, and the file of its model is beside it.
Hugging Face model directories also have a ``tokenizer_config.json``, but without a kind: ``xrep.text.huggingface``
reads those.

The unigram model of SentencePiece is described in Kudo, 2018 (arXiv:1804.10959).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from xrep.errors import UserError
from xrep.files import write_aside

CONFIG_FILE = "tokenizer_config.json"
SENTENCEPIECE_FILE = "sentencepiece.model"
XLM_ROBERTA_FILE = "sentencepiece.bpe.model"
MASK_PIECE = "<mask>"
SPACE = "\u2581"
"""The character that SentencePiece writes for a space, at the beginning of a word."""
FETCH_AGAIN = "fetch the model again"


class Tokenizer(ABC):
    """Base class of tokenizers, which convert text to ids and back and know the ids of the special tokens.

    ``bos_id`` is None if sentences have none, as in T5, ``eos_id`` if nothing is put behind them, as in some decoders,
    and ``mask_id`` if the model has no mask piece. ``model`` is
    the content of ``model_file`` in the tokenizer's folder.
    """

    kind: str
    model_file: str
    model: bytes
    vocabulary_size: int
    pad_id: int
    unk_id: int
    bos_id: int | None
    eos_id: int | None
    mask_id: int | None
    pair_separators: int = 1
    """Number of eos tokens between two sentences that the model reads as one sequence."""

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
        return {self.model_file: self.model, CONFIG_FILE: as_json(config)}

    def _options(self) -> dict[str, Any]:
        """Return what the config holds beside the kind and the size."""
        return {}

    def save(self, directory: str | Path) -> None:
        """Write the files of this tokenizer into ``directory``, which is created if it is missing."""
        write_files(self.files(), directory)

    def add_special(self, ids: Sequence[int]) -> list[int]:
        """Return ``[bos] ids [eos]``, without those that there are not."""
        around = [[] if special is None else [special] for special in (self.bos_id, self.eos_id)]
        return [*around[0], *ids, *around[1]]


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model held in memory, given as the bytes of the ``.model`` file; ``processor`` runs it.

    Raises:
        UserError: If the bytes are not a SentencePiece model, or it lacks one of pad, unk, bos and eos.
    """

    kind = "sentencepiece"
    model_file = SENTENCEPIECE_FILE
    pair_separators = 2  # as in RoBERTa and XLM-R, because encoders that xrep makes have no token types either

    def __init__(self, model: bytes, origin: Path | str = SENTENCEPIECE_FILE) -> None:
        self.model, self._threads = model, -1
        try:
            self.processor = sentencepiece.SentencePieceProcessor.from_proto(model)
            size = self.processor.get_piece_size()
        except RuntimeError:
            cure = "give a model made by xrep-preprocess or by SentencePiece"
            raise UserError("not a SentencePiece model, or a damaged one", path=origin, cure=cure) from None
        self._set_ids(size, origin)

    def _set_ids(self, size: int, origin: Path | str) -> None:
        piece = self.processor
        ids = {"pad": piece.pad_id(), "unk": piece.unk_id(), "bos": piece.bos_id(), "eos": piece.eos_id()}
        if lacking := [name for name, identity in ids.items() if identity < 0]:
            cure = "train one with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3"
            raise UserError(f"the SentencePiece model has no {lacking[0]} piece", path=origin, cure=cure)
        self.vocabulary_size = size
        self.pad_id, self.unk_id, self.bos_id, self.eos_id = ids.values()
        mask = piece.piece_to_id(MASK_PIECE)
        self.mask_id = None if mask == self.unk_id else mask

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return self.processor.encode(list(sentences), return_type=int, num_threads=self._threads)

    def use_one_thread(self) -> None:
        self._threads = 1

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """A piece that stands for nothing but an added space has an empty span."""
        mapping = self.processor.encode(text, return_type="offset_mapping")
        return mapping["ids"], mapping["offsets"]

    def decode(self, ids: Iterable[int]) -> str:
        return self.processor.decode([int(i) for i in ids])

    def pieces(self) -> list[str]:
        """Return the text of each id, as SentencePiece writes the subwords of a sentence."""
        return self.processor.id_to_piece(list(range(self.processor.get_piece_size())))


class XLMRobertaTokenizer(SentencePieceTokenizer):
    """The SentencePiece model of XLM-R with the ids of fairseq's dictionary.

    The ids are ``<s>`` 0, ``<pad>`` 1, ``</s>`` 2, ``<unk>`` 3, i + 1 for piece i of the model, and ``<mask>`` last. No
    text is encoded as a special token other than ``<unk>``. This is as in fairseq; transformers turns ``<mask>`` in a
    text into the mask. The first pieces of the model must be ``<unk>``, ``<s>`` and ``</s>``.
    """

    kind = "xlm-roberta"
    model_file = XLM_ROBERTA_FILE

    def _set_ids(self, size: int, origin: Path | str) -> None:
        first = [self.processor.id_to_piece(i) for i in range(min(3, size))]
        if first != ["<unk>", "<s>", "</s>"]:
            problem = f"its first pieces are {', '.join(first)}, those of XLM-R <unk>, <s>, </s>"
            cure = "give XLM-R's model, or save this tokenizer as tokenizer.json with transformers"
            raise UserError(problem, path=origin, cure=cure)
        self.bos_id, self.pad_id, self.eos_id, self.unk_id = 0, 1, 2, 3
        self.vocabulary_size = size + 2
        self.mask_id = size + 1

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return [[i + 1 if i else self.unk_id for i in row] for row in super().encode(sentences)]

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        ids, spans = super().encode_spans(text)
        return [i + 1 if i else self.unk_id for i in ids], spans

    def decode(self, ids: Iterable[int]) -> str:
        kept = (int(i) for i in ids if int(i) not in (self.bos_id, self.pad_id, self.eos_id, self.mask_id))
        return super().decode(0 if i == self.unk_id else i - 1 for i in kept)

    def pieces(self) -> list[str]:
        return ["<s>", "<pad>", "</s>", "<unk>", *super().pieces()[3:], MASK_PIECE]


SENTENCEPIECE_KINDS = {cls.kind: cls for cls in (SentencePieceTokenizer, XLMRobertaTokenizer)}


def as_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def write_files(files: Mapping[str, bytes], directory: str | Path) -> None:
    """Write files (name -> content) into a folder, which is created if it is missing."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with write_aside(directory / name) as temporary:
            temporary.write_bytes(content)


def read_model_file(path: Path) -> bytes:
    """Return the content of a tokenizer's file; raise UserError if there is none."""
    if not path.is_file():
        raise UserError("no such tokenizer", path=path, cure="give a tokenizer folder or a .model file")
    return path.read_bytes()


def read_config(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty dict if there is no such file; raise UserError if it has none."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise UserError("not a JSON object, or a damaged one", path=path, cure=FETCH_AGAIN)
    return content

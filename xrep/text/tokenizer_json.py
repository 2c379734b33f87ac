"""Tokenizers of the ``tokenizers`` library (the content of a ``tokenizer.json``), built from other files.

The sources are WordPiece (BERT's ``vocab.txt``), byte-level BPE (RoBERTa's ``vocab.json`` and ``merges.txt``) and
SentencePiece unigram models. SentencePiece and ``tokenizers`` differ in these points, which the conversion handles:

- SentencePiece applies its table of replacements (the ``precompiled_charsmap``) to the longest sequence found,
  ``tokenizers`` to single characters. Composing the text to Unicode's NFC before and after makes up for this.
- NFC would also reorder and compose marks that the table leaves alone. The marks in ``HIDDEN`` are therefore replaced
  by placeholder characters before NFC and restored after it.
- ``tokenizers`` treats control pieces like all others. A text with the name of one is therefore cut inside the name.

These differences remain: marks in an order that no orthography uses; a mark on a character that the table replaces (ª,
or any capital in a model that folds case) if Unicode has no letter for the combination (the mark is lost);
segmentations with exactly the same score ("i" + "ii" and "ii" + "i" of "iii"), where rounding in SentencePiece decides.
In 63,300 sentences of 100 languages only the last occurred, in at most two sentences for each of five models.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from xrep.errors import UserError
from xrep.text.protobuf import protobuf_fields
from xrep.text.tokenizer import AGAIN, MAXIMUM_VOCABULARY, SPACE, read_json, read_text

# The types of the pieces of a SentencePiece model (sentencepiece_model.proto).
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM = 1
# Marks whose usual order in text differs from that of NFC: Arabic shadda before a vowel; Hebrew dagesh, meteg, rafe,
# shin and sin dot before a vowel; the Burmese dot after a killer; and Vietnamese tones written as marks on letters that
# already have a circumflex, breve or horn.
_TONES = "\u0300\u0301\u0303\u0309\u0323"
HIDDEN = {mark: re.escape(mark) for mark in "\u0651\u05bc\u05bd\u05bf\u05c1\u05c2\u1037"}
HIDDEN |= {tone: f"(?<=[ÂâĂăÊêÔôƠơƯư]){tone}" for tone in _TONES}
_UNHEARD_OF = "\U00013000"  # A hieroglyph, for which no model has a piece.
_FIRST_DISGUISE = 0xFDD0  # The first of 32 noncharacters, code points that Unicode never assigns to a character.


@contextmanager
def explaining(problem: str, origin: Path | str) -> Iterator[None]:
    """Context manager that turns failures of the ``tokenizers`` library, panics too, into a UserError."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        # A panic of the library is not a subclass of Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = str(error).partition("\n")[0]
        raise UserError(f"{problem} ({reason})", path=origin, cure=AGAIN) from None


def read_tokenizer_json(text: str, origin: Path | str) -> Tokenizer:
    """Return the tokenizer in the text of a ``tokenizer.json``, with truncation, padding and dropout turned off. Raises
    UserError if the text is not valid, or an id is beyond any vocabulary."""
    with explaining("not a tokenizer.json, or a damaged one", origin):
        tokenizer = Tokenizer.from_str(text)
        largest = max(tokenizer.get_vocab().values(), default=0)
        if largest >= MAXIMUM_VOCABULARY:
            raise UserError(f"ids up to {largest:,}, more than any vocabulary has", path=origin, cure=AGAIN)
        for pair in (None, _UNHEARD_OF):  # A tokenizer that fails on unknown text shall fail now, not within a corpus.
            tokenizer.encode(_UNHEARD_OF, pair)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None  # Dropout is for training: it gives a sentence different ids each time.
    return tokenizer


def write_tokenizer_json(tokenizer: Tokenizer, original: str | None = None) -> str:
    """Return the text of a ``tokenizer.json``; ``original`` is the text that the tokenizer was read from, if any.

    The library does not read the scores of a unigram model to the last digit, so that each reading and writing would
    change them, and with them the choice between segmentations of equal score. They are copied from ``original``.
    """
    text = tokenizer.to_str()
    if not isinstance(tokenizer.model, models.Unigram):
        return text
    content = json.loads(text)
    if original is not None:
        content["model"]["vocab"] = json.loads(original)["model"]["vocab"]
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def apply_options(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """Override the options of ``tokenizer.json`` with those that ``tokenizer_config.json`` gives."""
    normalizer = tokenizer.normalizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        normalizer.lowercase = config.get("do_lower_case", normalizer.lowercase)
        normalizer.strip_accents = config.get("strip_accents", normalizer.strip_accents)
        normalizer.handle_chinese_chars = config.get("tokenize_chinese_chars", normalizer.handle_chinese_chars)
        tokenizer.normalizer = normalizer
    splitter = tokenizer.pre_tokenizer
    if isinstance(splitter, pre_tokenizers.ByteLevel) and "add_prefix_space" in config:
        splitter.add_prefix_space = config["add_prefix_space"]
        tokenizer.pre_tokenizer = splitter


def lower_case(tokenizer: Tokenizer) -> None:
    """Make the tokenizer lower-case the text before all other steps."""
    rest = [tokenizer.normalizer] if tokenizer.normalizer else []
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])


def build_wordpiece(path: Path, unknown: str, config: Mapping[str, Any]) -> Tokenizer:
    """Return BERT's tokenizer from a ``vocab.txt``, where the id of a piece is its line number, from 0.

    Args:
        unknown: The piece for words that cannot be composed of the pieces in the vocabulary.
        config: BERT's options ``do_lower_case`` (default True), ``strip_accents`` (default None: as ``do_lower_case``)
            and ``tokenize_chinese_chars`` (default True).

    """
    vocabulary = {line.rstrip("\r"): number for number, line in enumerate(_read_lines(path))}
    if not vocabulary:
        raise UserError("an empty vocabulary", path=path, cure=AGAIN)
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def build_byte_level_bpe(vocabulary_path: Path, merges_path: Path, add_prefix_space: bool) -> Tokenizer:
    """Return RoBERTa's tokenizer from ``vocab.json`` (piece -> id) and ``merges.txt`` (one pair per line, by rank)."""
    problem = "not a table of pieces and ids"
    vocabulary = read_json(vocabulary_path, problem)
    if not all(type(identity) is int for identity in vocabulary.values()):
        raise UserError(problem, path=vocabulary_path, cure=AGAIN)
    merges = []
    for number, line in enumerate(_read_lines(merges_path), 1):
        pair = tuple(line.rstrip("\r").split(" "))
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        if len(pair) != 2:
            raise UserError("not a pair of pieces", path=merges_path, line=number, cure=AGAIN)
        merges.append(pair)
    try:
        model = models.BPE(vocabulary, merges)
    except Exception as error:
        problem = f"the merges do not fit {vocabulary_path.name} ({error})"
        raise UserError(problem, path=merges_path, cure="take both files from the same model") from None
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def surround(tokenizer: Tokenizer, begin: str, end: str, *, bert: bool) -> None:
    """Make a tokenizer put special tokens, which must be in its vocabulary, around sentences.

    BERT has ``[CLS] A [SEP]`` and ``[CLS] A [SEP] B [SEP]`` (B has type 1), RoBERTa has ``<s> A </s>`` and
    ``<s> A </s> </s> B </s>``.
    """
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin}:0 $A:0 {end}:0",
        pair=f"{begin}:0 $A:0 {end}:0 $B:1 {end}:1" if bert else f"{begin}:0 $A:0 {end}:0 {end}:0 $B:0 {end}:0",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (begin, end)],
    )


class Piece(NamedTuple):
    text: str
    score: float
    type: int


class SentencePieceModel(NamedTuple):
    """The content of a serialized SentencePiece model that a ``tokenizer.json`` needs."""

    pieces: list[Piece]
    type: int
    spaces_behind: bool
    replacements: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def parse_sentencepiece(model: bytes) -> SentencePieceModel:
    """Parse a serialized ``ModelProto``, which SentencePiece must have opened before (its form is not checked here)."""
    pieces, parts = [], {2: {}, 3: {}}
    for number, value in protobuf_fields(model):
        if number == 1:
            entry = dict(protobuf_fields(value))
            score = struct.unpack("<f", struct.pack("<I", entry.get(2, 0)))[0]  # float as integer
            pieces.append(Piece(entry[1].decode("utf-8"), score, entry.get(3, NORMAL)))
        elif number in parts:
            parts[number] = dict(protobuf_fields(value))
    trainer, normalizer = parts[2], parts[3]
    return SentencePieceModel(
        pieces=pieces,
        type=trainer.get(3, UNIGRAM),
        spaces_behind=bool(trainer.get(24, 0)),
        replacements=normalizer.get(2, b""),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
    )


def build_unigram(
    model: bytes, before: Sequence[str] = (), after: Sequence[str] = (), drop: int = 0, unknown_id: int | None = None
) -> Tokenizer:
    """Return the tokenizer that equals a SentencePiece unigram model; reserved pieces become special tokens.

    Args:
        model: A serialized SentencePiece model.
        before, after: Control pieces to put before and after those of the model.
        drop: Number of pieces to leave out at the beginning of the model.
        unknown_id: Id of the piece for unknown text; None takes the unknown piece of the model.

    Raises:
        UserError: If ``tokenizers`` cannot express the model.
    """
    parsed = parse_sentencepiece(model)
    controls = [[Piece(text, 0.0, CONTROL) for text in texts] for texts in (before, after)]
    pieces = [*controls[0], *parsed.pieces[drop:], *controls[1]]
    _check_expressible(parsed, pieces)
    if unknown_id is None:
        unknown_id = next(i for i, piece in enumerate(pieces) if piece.type == UNKNOWN)
    scores, bytewise = [(piece.text, piece.score) for piece in pieces], any(piece.type == BYTE for piece in pieces)
    tokenizer = Tokenizer(models.Unigram(scores, unknown_id, byte_fallback=bytewise))
    tokenizer.normalizer = normalizers.Sequence(_normalizers(parsed, model))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_cuts(pieces)), "merged_with_previous")
    scheme = "always" if parsed.add_dummy_prefix else "never"
    metaspace = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), metaspace])
    special = [piece.text for i, piece in enumerate(pieces) if piece.type == CONTROL or i == unknown_id]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    return tokenizer


def _check_expressible(model: SentencePieceModel, pieces: Sequence[Piece]) -> None:
    problem = None
    if model.type != UNIGRAM:
        problem = "it is not a unigram model"
    elif model.spaces_behind:
        problem = "its pieces have their space behind them"
    elif odd := [piece.text for piece in pieces if piece.type in (USER_DEFINED, UNUSED)]:
        problem = f"it has pieces which are user-defined or unused ({odd[0]!r})"
    elif odd := [piece.text for piece in pieces if piece.type != NORMAL and len(piece.text) < 2]:
        problem = f"a reserved piece is a single character ({odd[0]!r})"
    elif len({piece.text for piece in pieces}) < len(pieces):
        problem = "two of its pieces have the same name"
    if problem:
        cure = "train a tokenizer with xrep-preprocess to hand a model on"
        raise UserError(f"this SentencePiece model cannot become a tokenizer.json: {problem}", cure=cure)


def _normalizers(parsed: SentencePieceModel, model: bytes) -> list[Any]:
    """Return the normalisation steps that SentencePiece applies to text before it segments it."""
    steps: list[Any] = []
    if parsed.replacements:
        steps.append(normalizers.Precompiled(parsed.replacements))
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        if all(composed in processor.normalize(f"a{apart}") for apart, composed in (("e\u0301", "é"), ("ｶﾞ", "ガ"))):
            disguises = {mark: chr(_FIRST_DISGUISE + i) for i, mark in enumerate(HIDDEN)}
            hide = [normalizers.Replace(Regex(HIDDEN[mark]), other) for mark, other in disguises.items()]
            show = [normalizers.Replace(other, mark) for mark, other in disguises.items()]
            steps = [*hide, normalizers.NFC(), *steps, normalizers.NFC(), *show]
    if parsed.remove_extra_whitespaces:
        # Spaces are removed at both ends, and ▁ at the end too, because SentencePiece takes it for its own sign for a
        # space. The ends of the text are written as lookarounds, because ^ and $ would match those of a line.
        ends = rf"(?<![\s\S]) +|[ {SPACE}]+(?![\s\S])"
        steps.append(normalizers.Replace(Regex(ends), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if parsed.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    return [*steps, normalizers.Replace(" ", SPACE)]


def _cuts(pieces: Sequence[Piece]) -> str:
    """Return a pattern that matches the beginning of each reserved piece's name if the rest of the name follows.

    The text is cut after the match. The cut has no other effect if no piece crosses it and it does not separate two
    unknown characters, which together would be one unknown piece. The first such place in a name is chosen.
    """
    normal = [piece.text for piece in pieces if piece.type == NORMAL]
    known = {text for text in normal if len(text) == 1}
    crossed = {text[i : i + 2] for text in normal for i in range(len(text) - 1)}
    rests: dict[str, list[str]] = {}
    for name in (piece.text for piece in pieces if piece.type != NORMAL):
        places = range(1, len(name))
        free = (i for i in places if name[i - 1 : i + 1] not in crossed and not known.isdisjoint(name[i - 1 : i + 1]))
        place = next(free, 1)
        rests.setdefault(name[:place], []).append(re.escape(name[place:]))
    return "|".join(f"{re.escape(beginning)}(?={'|'.join(options)})" for beginning, options in rests.items())


def _read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file. Only a line feed ends a line: pieces may contain Unicode's other separators."""
    lines = read_text(path).split("\n")
    return lines[:-1] if lines[-1] == "" else lines

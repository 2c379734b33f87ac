"""Smaller vocabularies: tokenizers without the pieces that a text does not need, which divide that text as before.

WordPiece takes the longest piece of a word and a unigram model the best path, and neither changes if pieces go that
were not taken. Byte-pair encoding needs the pieces from which a kept one is merged; the first merge that applies stays
the first if others go.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.text.huggingface import HuggingFaceTokenizer, message_fields
from xrep.text.tokenizer import SentencePieceTokenizer, Tokenizer, XLMRobertaTokenizer

_BYTE = re.compile("<0x[0-9A-F]{2}>")
_BPE = 2  # the model type of SentencePiece (sentencepiece_model.proto)


def trim(tokenizer: Tokenizer, counts: np.ndarray, keep: int | None) -> tuple[Tokenizer, np.ndarray]:
    """Return a tokenizer with the pieces that a text uses, and with special tokens, bytes and single characters, so
    that other text remains readable; and the ids that its pieces had, int64 [N], ascending.

    Args:
        counts: How often the text has each id, int64 [V].
        keep: Number of pieces of the text to keep, the most frequent; None: all.

    Raises:
        UserError: It is byte-pair encoding with marks at the beginnings or ends of pieces.
    """
    used = np.argsort(-counts, kind="stable")[: min(keep or len(counts), np.count_nonzero(counts))]
    kept = {*used.tolist(), *(i for i in tokenizer.special_ids.values() if i is not None)}
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return _trim_json(tokenizer, kept)
    assert isinstance(tokenizer, SentencePieceTokenizer)
    return _trim_sentencepiece(tokenizer, kept)


def _trim_json(tokenizer: HuggingFaceTokenizer, kept: set[int]) -> tuple[Tokenizer, np.ndarray]:
    content: dict[str, Any] = json.loads(tokenizer.model)
    model, added = content["model"], content["added_tokens"]
    mark = model.get("continuing_subword_prefix") or ""
    scored: Any = model["vocab"] if isinstance(model["vocab"], list) else None  # of a unigram model
    ids: dict[str, int] = {text: i for i, (text, _) in enumerate(scored)} if scored else model["vocab"]
    kept |= {entry["id"] for entry in added if entry["special"]} | _readable(ids, mark)
    if scored:
        kept |= _extremes({i: score for i, (_, score) in enumerate(scored)})
    if "merges" in model:
        if mark or model.get("end_of_word_suffix"):
            problem = "byte-pair encoding with marks at the beginnings or ends of pieces cannot be made smaller"
            raise UserError(problem, cure="leave out `vocabulary_from`")
        pairs = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
        ranks = {pair: rank for rank, pair in enumerate(pairs)}
        merges = _merges([text for text, i in ids.items() if i in kept], lambda pair: ranks.get(pair, math.inf))
        model["merges"] = [pair for pair in pairs if pair in merges]
        kept |= {ids[text] for pair in merges for text in (*pair, "".join(pair))}
    new = {old: i for i, old in enumerate(sorted(kept))}
    model["vocab"] = {text: new[i] for text, i in ids.items() if i in new}
    if scored:
        model |= {"vocab": [scored[i] for i in new if i < len(scored)], "unk_id": new.get(model["unk_id"])}
    content["added_tokens"] = [{**entry, "id": new[entry["id"]]} for entry in added if entry["id"] in new]
    processor = content["post_processor"] or {}
    for part in processor.get("processors", [processor]):  # what is put around a sentence
        for token in part.get("special_tokens", {}).values():
            token["ids"] = [new[i] for i in token["ids"]]
        part |= {role: [part[role][0], new[part[role][1]]] for role in {"cls", "sep"} & part.keys()}
    special = {role: i if i is None else new[i] for role, i in tokenizer.special_ids.items()}
    encoded = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    split = tokenizer.split_special_tokens
    return HuggingFaceTokenizer(encoded, special, split_special_tokens=split), np.array([*new])


def _trim_sentencepiece(tokenizer: SentencePieceTokenizer, kept: set[int]) -> tuple[Tokenizer, np.ndarray]:
    processor, fields = tokenizer.processor, message_fields(tokenizer.model)
    # XLM-R numbers the first pieces, which are special, and the mask in its own way, and all others from 1.
    shift = 1 if isinstance(tokenizer, XLMRobertaTokenizer) else 0
    pieces = {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}
    others = {i for i in pieces.values() if processor.is_control(i) or processor.is_unknown(i)}
    normal = {i: processor.get_score(i) for i in pieces.values() if i not in others and not processor.is_byte(i)}
    own = others | _readable(pieces) | _extremes(normal) | {i - shift for i in kept if i - shift in normal}
    if message_fields(fields[2][-1]).get(3) == [_BPE]:
        texts = [text for text, i in pieces.items() if i in own & normal.keys()]
        merges = _merges(texts, lambda pair: -normal.get(pieces.get("".join(pair), -1), -math.inf))
        own |= {pieces[text] for pair in merges for text in (*pair, "".join(pair)) if text in pieces}
    parts = [(1, content) for i, content in enumerate(fields[1]) if i in own]
    parts += [(part, fields[part][-1]) for part in (2, 3, 5) if part in fields]  # 4 has tests, which would fail
    model = b"".join(bytes([number << 3 | 2]) + _varint(len(content)) + content for number, content in parts)
    special = {i for i in tokenizer.special_ids.values() if i is not None} | (own if not shift else set())
    return type(tokenizer)(model), np.array(sorted(special | {i + shift for i in own - others}))


def _varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first; all but the last have the eighth bit set."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


def _readable(ids: dict[str, int], mark: str = "") -> set[int]:
    """Return the ids of bytes and of single characters, also of those with the mark of pieces inside a word."""
    return {i for text, i in ids.items() if 1 in (len(text), len(text.removeprefix(mark))) or _BYTE.fullmatch(text)}


def _extremes(scores: dict[int, float]) -> set[int]:
    """Return the pieces with the extreme scores, from which a unigram model computes those of unknown characters."""
    return {min(scores, key=lambda i: scores[i]), max(scores, key=lambda i: scores[i])}


def _merges(texts: Iterable[str], rank: Callable[[tuple[str, str]], float]) -> set[tuple[str, str]]:
    """Return the merges that make pieces of their characters: each time the pair of neighbours with the lowest rank. In
    a longer text, a piece is merged as it is alone, because no merge beyond its ends came before those inside."""
    merges = set[tuple[str, str]]()
    for text in texts:
        parts = list(text)
        while len(parts) > 1:
            score, place, pair = min(
                (rank(pair), i, pair) for i, pair in enumerate(zip(parts, parts[1:], strict=False))
            )
            if score == math.inf:
                break
            merges.add(pair)
            parts[place : place + 2] = ["".join(pair)]
    return merges

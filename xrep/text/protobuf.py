"""The protobuf messages of SentencePiece: their fields, and where in a text the pieces are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import sentencepiece
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

_PIECES, _ID, _BEGIN, _END = 2, 2, 4, 5
"""Numbers of the fields of SentencePiece's messages: the pieces of a text, and of a piece its id and its bytes."""


def sentencepiece_spans(
    processor: sentencepiece.SentencePieceProcessor, text: str
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the ids of a text and the characters (start, end) that each piece stands for.

    The characters are those of the text as it is given, before SentencePiece normalises it. A piece that stands for
    nothing but an added space has an empty span.
    """
    message = processor.encode(text, out_type="serialized_proto")
    pieces = [dict(protobuf_fields(piece)) for number, piece in protobuf_fields(message) if number == _PIECES]
    # SentencePiece counts bytes of UTF-8. A lone surrogate cannot be in its input.
    ends = accumulate((len(character.encode("utf-8")) for character in text), initial=0)
    character_at = {byte: character for character, byte in enumerate(ends)}
    spans = [(character_at[piece.get(_BEGIN, 0)], character_at[piece.get(_END, 0)]) for piece in pieces]
    return [piece.get(_ID, 0) for piece in pieces], spans


def protobuf_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field of a protobuf message.

    SentencePiece's own protobuf module refuses a protobuf that is older than itself. In an empty message, all fields
    are unknown ones, which every version reads.
    """
    return ((field.field_number, field.data) for field in UnknownFieldSet(Empty.FromString(message)))

"""Where in a text the pieces of SentencePiece are."""

from __future__ import annotations

from itertools import accumulate

import sentencepiece

from xrep.text.tokenizer_json import protobuf_fields

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

"""Which subwords of one vocabulary are those of another."""

from __future__ import annotations

from xrep.text.tokenizer import SPACE, SentencePieceTokenizer, Tokenizer


def rows_of_pieces(own: Tokenizer, other: Tokenizer) -> list[list[int]]:
    """Return for each piece of a vocabulary the ids of the pieces in another one that stand for the same text.

    That is the special token of the same role, or the same piece, or what ``other`` makes of the text, without its
    unknown token: none, one or several. A piece from inside a word has the pieces that ``other`` has inside a word, if
    it joins such text to a letter before it (BERT never joins Chinese characters).
    """
    pieces, places = texts_of_pieces(own), {piece: place for place, piece in enumerate(texts_of_pieces(other))}
    roles = {own.special_ids[role]: [place] for role, place in other.special_ids.items() if place is not None}
    texts = [piece.replace(SPACE, " ").strip() for piece in pieces]
    alone, joined = other.encode(texts), other.encode([f"a{text}" for text in texts])
    rows = []
    for number, (piece, ids, behind) in enumerate(zip(pieces, alone, joined, strict=True)):
        is_inside = not piece.startswith(SPACE) and behind[1:] != ids
        if number in roles:
            ids = roles[number]
        elif piece in places and (is_inside or piece.startswith(SPACE)):
            ids = [places[piece]]
        rows.append([place for place in ids if place != other.unk_id or number == own.unk_id])
    return rows


def texts_of_pieces(tokenizer: Tokenizer) -> list[str]:
    """Return the text of each piece by its id; ``SPACE`` is in front of those that begin a word."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.pieces()
    from tokenizers import Tokenizer as Library
    from tokenizers.decoders import ByteLevel
    from tokenizers.models import WordPiece

    library = Library.from_buffer(tokenizer.model)
    pieces = [library.id_to_token(place) or "" for place in range(tokenizer.vocabulary_size)]
    if isinstance(library.model, WordPiece):
        inside = library.model.continuing_subword_prefix
        return [piece[len(inside) :] if piece.startswith(inside) else SPACE + piece for piece in pieces]
    is_bytes = isinstance(library.decoder, ByteLevel)
    return [ByteLevel().decode([piece]).replace(" ", SPACE) for piece in pieces] if is_bytes else pieces

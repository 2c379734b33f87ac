"""Encoders with the part of their vocabulary that a text needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from xrep.data.batch import Vocabulary
from xrep.errors import UserError, abbreviated
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interop.sentence_modules import Prompts
from xrep.models.dual_encoder import DualEncoder
from xrep.text.examples import read_text
from xrep.text.find import describe_name
from xrep.text.sides import SHARED
from xrep.text.trimming import trim

_AT_A_TIME, _COMPARED, _ENCODED = 4096, 100_000, 16
"""Numbers of sentences that are tokenised at a time, of those that the smaller tokenizer must divide alike, and of
those whose vectors are compared."""


def trim_vocabulary(
    encoder: SentenceEncoder, files: Sequence[str | Path], keep: int | None
) -> tuple[SentenceEncoder, dict[str, np.ndarray]]:
    """Return the encoder with only those rows of its embeddings that a text needs, and how often the text has the piece
    of each row, int64 [N], by the side that its tokenizer reads.

    The vectors of the text stay the same, bit by bit, unless ``keep``, a number of most frequent pieces, is smaller
    than that of the pieces in the text. If each side has a tokenizer, ``text.de`` is for the side that reads German; a
    file whose name has none of the encoder's languages is for both.

    Raises:
        UserError: A file cannot be read, there is no text for a side, the vectors would change (some models of the
            library transformers count positions from the id of the padding token, which becomes smaller if pieces
            before it go), or as ``trim``.
    """
    counts = {side: np.zeros(own.vocabulary_size, dtype=np.int64) for side, own in encoder.tokenizers.items()}
    lines: dict[str, list[str]] = {side: [] for side in counts}
    for file in files:
        language, known = describe_name(Path(file).name).language, encoder.text
        sides = [side for side in counts if language not in known.languages or language in known.languages_of(side)]
        for some, side in ((some, side) for some in _read(encoder, file) for side in sides):
            ids = np.concatenate([np.array(row, dtype=np.int64) for row in encoder.tokenizers[side].encode(some)])
            counts[side] += np.bincount(ids, minlength=len(counts[side]))
            lines[side] += some[: _COMPARED - len(lines[side])]
    tokenizers, rows = dict(encoder.tokenizers), dict[str, np.ndarray]()
    for side, old in encoder.tokenizers.items():
        if not counts[side].any():
            raise UserError(f"no text for the {side} side", path=files[0], cure="name text in its languages")
        new, rows[side] = trim(old, counts[side], keep)
        if keep is None or keep >= np.count_nonzero(counts[side]):
            for line, ours, theirs in zip(lines[side], new.encode(lines[side]), old.encode(lines[side]), strict=True):
                if rows[side][ours].tolist() != theirs:
                    problem = f"the smaller vocabulary would divide another way: {abbreviated(line)}"
                    raise UserError(problem, path=files[0], cure="leave out lines with such characters")
        tokenizers[side] = new
    text = replace(encoder.text, vocabularies={side: Vocabulary.of(own) for side, own in tokenizers.items()})
    model, state = encoder.model, encoder.model.state_dict()
    towers = dict[str, dict[str, object]]()
    for tower, part in model.encoders.items():
        kept = rows[tower if tower in rows else SHARED]
        towers[tower] = part.shape.with_rows(kept.tolist()).as_dict()
        table = f"encoders.{tower}.token_embedding.weight"
        state[table] = state[table][kept]
    smaller = DualEncoder(model.config, text, {**model.architecture(), "towers": towers})
    smaller.load_state_dict(state)
    prompts = Prompts(texts=encoder.prompts, default=encoder.default_prompt_name)
    hashes = encoder.training_hashes
    trimmed = SentenceEncoder(smaller, tokenizers, text, hashes, path=encoder.path, prompts=prompts)
    trimmed.languages = encoder.languages
    for side, some in ((side, some[:_AT_A_TIME]) for side, some in lines.items()):
        divided = zip(some, tokenizers[side].encode(some), encoder.tokenizers[side].encode(some), strict=True)
        same = list(islice((line for line, new, old in divided if rows[side][new].tolist() == old), _ENCODED))
        language = next(iter(encoder.text.languages_of(side)), None)
        before, after = (each.encode(same, language, prompt="") for each in (encoder, trimmed))
        if not np.allclose(before, after, atol=1e-5):
            problem = "its vectors would change with the number of the padding token"
            raise UserError(problem, path=encoder.path, cure="leave out `vocabulary_from`")
    return trimmed, {side: counts[side][kept] for side, kept in rows.items()}


def _read(encoder: SentenceEncoder, file: str | Path) -> Iterator[list[str]]:
    """Yield the sentences of a file, some at a time, without a prompt and with each that the encoder has."""
    lines = (line for _, line in read_text(file))
    while some := list(islice(lines, _AT_A_TIME)):
        for prompt in dict.fromkeys(("", *encoder.prompts.values())):
            yield [prompt + line for line in some]

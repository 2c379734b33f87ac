"""The vectors that a teacher gives the sentences of a training text, computed once before training."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from xrep.data.build import cached_at
from xrep.data.teacher_vectors import TeacherVectors, check_width
from xrep.errors import UserError
from xrep.files import build_once, locked
from xrep.inference.encoding import encode_file
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.tasks.bitext import BitextTask
from xrep.text.sides import SIDES, tokenizer_of


def vectors_of_teacher(path: str, task: BitextTask, side: str, width: int) -> TeacherVectors:
    """Return the vectors of the different sentences on a side of the text, for training and validation.

    They are kept in ``$XREP_HOME/teachers/`` for this encoder and text; a call goes on where an earlier one stopped.

    Args:
        path: What ``SentenceEncoder.load`` opens.
        width: Width D of the student's vectors.

    Raises:
        UserError: There is no such encoder, its vectors have another width, or it was trained for other languages than
            those of the side.
        Interrupted: Ctrl-C was pressed.
    """
    encoder = SentenceEncoder.load(path)
    check_width(encoder.output_size, width, path)
    warning = _foreign(encoder, task, side)
    # Tokenizers may differ in what they do to text although their vocabularies have the same size.
    digests = [hashlib.sha256(tokenizer.model).hexdigest() for tokenizer in encoder.tokenizers.values()]
    place = cached_at("teachers", [encoder.fingerprint(), *digests, task.data.fingerprint, side], [])
    text, vectors, hashes = (place / name for name in ("text", "vectors.npy", "hashes.npy"))
    build_once(place, hashes.name, lambda folder: _write_text(folder, task, side))
    with locked(place.with_suffix(".lock")):  # other processes wait for the first
        if not vectors.exists():
            print(warning, end="")
            print(f"the teacher {path} encodes the {side} sentences (once; kept in {place})", flush=True)
            language = task.text.languages_of(side)[0] if len(encoder.model.encoders) > 1 else None
            encode_file(encoder, text, vectors, lang=language, dtype="float16")
    return TeacherVectors(vectors, text, hashes=np.load(hashes, mmap_mode="r"))


def _foreign(encoder: SentenceEncoder, task: BitextTask, side: str) -> str:
    """Return a warning if a side has languages that are not among those that a teacher names; raise UserError if it has
    no others."""
    languages, (other,) = task.text.languages_of(side), {*SIDES} - {side}
    if not encoder.languages or not (unknown := {*languages} - {*encoder.languages}):
        return ""
    problem = f"an encoder for {', '.join(encoder.languages)} would teach from text in {', '.join(languages)}"
    if len(unknown) == len(languages):
        fits = {*encoder.languages} & {*task.text.languages_of(other)}
        cure = f"set `source_side` to {other}" if fits else "name a teacher for these languages, or give other pairs"
        raise UserError(problem, path=encoder.path, cure=cure)
    return f"warning: {problem}\n"


def _write_text(folder: Path, task: BitextTask, side: str) -> None:
    """Write the sentences as text, decoded from their tokens without the unknown one and the student's prompt, and
    their hashes, by which they are sorted."""
    tables, tokenizer = [*task.train, *task.valid], tokenizer_of(task.tokenizers, side)

    def decode(tokens: np.ndarray) -> str:
        return tokenizer.decode(tokens[tokens != tokenizer.unk_id])  # SentencePiece writes an unknown token as a sign

    prompt = decode(np.array(*tokenizer.encode([task.text.facts.get("prompts", {}).get(side, "")]), dtype=np.int64))
    hashes, first = np.unique(np.concatenate([t.hashes[:, SIDES.index(side)] for t in tables]), return_index=True)
    starts = np.cumsum([0, *map(len, tables)])
    places = np.searchsorted(starts, first, side="right") - 1
    incomplete = 0
    with (folder / "text").open("w", encoding="utf-8") as file:
        for place, row in zip(places.tolist(), (first - starts[places]).tolist(), strict=True):
            tokens = tables[place][side][row]
            incomplete += tokenizer.unk_id in tokens
            file.write(decode(tokens).removeprefix(prompt).strip() + "\n")
    if incomplete:
        lost = f"of {len(first):,} sentences the teacher does not read all characters, since the vocabulary lacks some"
        print(f"warning: in {incomplete:,} {lost}", flush=True)
    np.save(folder / "hashes.npy", hashes)

"""The vectors that a teacher gives the sentences of a training text, computed once before training."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from xrep.data.build import cached_at
from xrep.data.teacher_vectors import TeacherVectors, check_width
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
        UserError: There is no such encoder, or its vectors have another width.
        Interrupted: Ctrl-C was pressed.
    """
    encoder = SentenceEncoder.load(path)
    check_width(encoder.output_size, width, path)
    place = cached_at("teachers", [encoder.fingerprint(), task.data.fingerprint, side], [])
    text, vectors, hashes = (place / name for name in ("text", "vectors.npy", "hashes.npy"))
    build_once(place, hashes.name, lambda folder: _write_text(folder, task, side))
    with locked(place.with_suffix(".lock")):  # other processes wait for the first
        if not vectors.exists():
            print(f"the teacher {path} encodes the {side} sentences (once; kept in {place})", flush=True)
            language = task.text.languages_of(side)[0] if len(encoder.model.encoders) > 1 else None
            encode_file(encoder, text, vectors, lang=language, dtype="float16")
    return TeacherVectors(vectors, text, hashes=np.load(hashes, mmap_mode="r"))


def _write_text(folder: Path, task: BitextTask, side: str) -> None:
    """Write the sentences as text, decoded from their tokens, and their hashes, by which they are sorted."""
    tables, decode = [*task.train, *task.valid], tokenizer_of(task.tokenizers, side).decode
    hashes, first = np.unique(np.concatenate([t.hashes[:, SIDES.index(side)] for t in tables]), return_index=True)
    starts = np.cumsum([0, *map(len, tables)])
    places = np.searchsorted(starts, first, side="right") - 1
    with (folder / "text").open("w", encoding="utf-8") as file:
        for place, row in zip(places.tolist(), (first - starts[places]).tolist(), strict=True):
            file.write(decode(tables[place][side][row]) + "\n")
    np.save(folder / "hashes.npy", hashes)

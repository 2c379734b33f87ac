"""Steps that the builders of all directories of tokenised text have in common."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from xrep.data.store import MANIFEST_FILE, Kind
from xrep.files import build_once, digests_of
from xrep.jobs.outputs import states_of
from xrep.text.corpora import xrep_home
from xrep.text.sides import Tokenizers, save_tokenizers
from xrep.text.tokenizer import USUAL_VOCABULARY, Tokenizer, sample_for_tokenizer, train_tokenizer

# Maximum size of the text to train SentencePiece on, which needs about 20 bytes of memory per character and 90 per
# sentence.
_TOKENIZER_CHARACTERS, _TOKENIZER_SENTENCES = 32_000_000, 2_000_000


def build_cached(
    folder: str,
    kind: Kind,
    facts: Any,
    files: Iterable[Path],
    build: Callable[[Path, Path], object],
    tokenizers: Tokenizers | None = None,
) -> Path:
    """Return a directory in ``$XREP_HOME/{folder}/``, which is built unless it was built before from the same things.

    Args:
        kind: Kind of the directory, whose schema counts.
        facts: What the directory depends on besides the files and tokenizers; anything that JSON can express.
        files: Files that are read, also ``ARCHIVE.zip/NAME`` and ``FILE:FIELD``; path, size and time of those on disk
            count.
        build: Function of (empty folder to fill, path that it will have) that writes the manifest last.

    Raises:
        UserError: A file does not exist.
    """
    read = states_of(sorted({str(file) for file in files}))
    with tempfile.TemporaryDirectory() as temporary:
        save_tokenizers(tokenizers or {}, Path(temporary))
        digests = digests_of(Path(temporary))
    key = hashlib.sha256(json.dumps([kind.schema, facts, read, digests]).encode()).hexdigest()[:24]
    directory = xrep_home() / folder / key
    build_once(directory, MANIFEST_FILE, lambda empty: build(empty, directory))
    return directory


def files_in(paths: Iterable[str | Path]) -> list[Path]:
    """Return the given paths and, of those that are folders, all files below them."""
    return [file for path in map(Path, paths) for file in (path, *filter(Path.is_file, path.rglob("*")))]


def train_vocabulary(
    read: Callable[[], Iterator[tuple[str, str]]],
    size: int | None,
    directory: Path,
    log: Callable[[str], None],
    *,
    exponent: float = 0.5,
    side: str | None = None,
) -> Tokenizer:
    """Train a SentencePiece vocabulary of ``size`` pieces (on a sample if the text is large) and save it.

    None: of 16,000 pieces, or as many as the text allows if it is too small for that.

    Args:
        read: Function that returns (language, sentence) of all training text; it is called twice.
        exponent: A language with n sentences has the weight n ** exponent.
        side: Side that the vocabulary is for, if not for both.
    """
    counts, characters = Counter[str](), Counter[str]()
    for language, text in read():
        counts[language] += 1
        characters[language] += len(text)
    owner = f" of the {side} side" if side else ""
    log(f"training a SentencePiece vocabulary{owner} of {size or USUAL_VOCABULARY:,} pieces")
    longest = max((characters[language] / counts[language] for language in counts), default=1.0)
    maximum = min(int(_TOKENIZER_CHARACTERS / longest), _TOKENIZER_SENTENCES)
    sample = sample_for_tokenizer(read(), counts, exponent=exponent, maximum=maximum)
    tokenizer = train_tokenizer(sample, size, directory)
    if size is None and tokenizer.vocabulary_size < USUAL_VOCABULARY:
        log(f"the text is enough for {tokenizer.vocabulary_size:,} pieces")
    return tokenizer

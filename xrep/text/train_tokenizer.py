"""Training of SentencePiece vocabularies, and the sampling of the sentences that they are trained on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.text.tokenizer import MASK_PIECE, SentencePieceTokenizer, Tokenizer

USUAL_VOCABULARY = 16_000
"""Number of pieces of a vocabulary whose size nobody chose, if the text is enough for it."""
_PROGRAM = """
import sys
sys.path[:] = sys.argv[2:]  # that of the parent: without this, modules would also be taken from the current folder
import json, pathlib, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which kills this process
from sentencepiece import SentencePieceTrainer
folder, problem = pathlib.Path(sys.argv[1]), ""
options = json.loads((folder / "options").read_text(encoding="utf-8"))
with (folder / "text").open(encoding="utf-8", newline="\\n") as text, (folder / "model").open("wb") as model:
    try:
        SentencePieceTrainer.train(sentence_iterator=(line[:-1] for line in text), model_writer=model, **options)
    except Exception as error:
        problem = str(error)
(folder / "problem").write_text(problem, encoding="utf-8")
"""
"""What the process of a training runs: it makes ``model`` and ``problem`` of the files ``text`` and ``options``."""
_TOO_LARGE = re.compile(r"Please set it to a value <= (\d+)")


def train_tokenizer(sentences: Iterable[str], vocabulary_size: int | None, destination: str | Path) -> Tokenizer:
    """Train a SentencePiece unigram model and save it in the folder ``destination``.

    The special ids are pad 0, unk 1, bos 2, eos 3 and ``<mask>`` 4. All are control symbols, so no input text is ever
    encoded as one of them. Characters beyond the most frequent 99.95% become unk. The same sentences give the same
    model on every machine.

    Args:
        sentences: Training sentences, read once and held in memory (``sample_for_tokenizer`` limits their number).
        vocabulary_size: Number of pieces, including the five special ones; None: ``USUAL_VOCABULARY``. A text that is
            too small for them gets as many as it allows.

    Raises:
        UserError: The vocabulary is too small for the text (the message gives the bound).
    """
    options = {
        "model_type": "unigram",
        "vocab_size": USUAL_VOCABULARY if vocabulary_size is None else vocabulary_size,
        "character_coverage": 0.9995,
        **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
        "control_symbols": [MASK_PIECE],
        "max_sentence_length": 1 << 16,
        # The sums of expectation-maximisation depend on how the text is divided among threads, so that the number of
        # threads must be the same on every machine.
        "num_threads": 2,
        "minloglevel": 9,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "text").open("w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.writelines(sentence.replace("\n", " ") + "\n" for sentence in sentences)
        problem = _train(folder, options)
        if (match := _TOO_LARGE.search(problem)) is not None:
            options["vocab_size"] = int(match[1])
            problem = _train(folder, options)
        if problem:
            raise _explain(problem, options["vocab_size"])
        tokenizer = SentencePieceTokenizer((folder / "model").read_bytes())
    tokenizer.save(destination)
    return tokenizer


def _train(folder: Path, options: Mapping[str, Any]) -> str:
    """Train a model in a process of its own; return what SentencePiece says if it cannot, else nothing."""
    # SentencePiece does not notice Ctrl-C while it trains, for minutes, so it trains in a process that can be killed. A
    # forked one would hang if OpenMP, which both torch and SentencePiece use, has had threads in this process.
    (folder / "options").write_text(json.dumps(options), encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(folder), *sys.path], stdin=subprocess.DEVNULL)
    try:
        process.wait()
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        return f"its process ended with {process.returncode}"
    return (folder / "problem").read_text(encoding="utf-8")


def sample_for_tokenizer(
    sentences: Iterable[tuple[str, str]],
    counts: Mapping[str, int],
    *,
    exponent: float = 0.5,
    maximum: int = 2_000_000,
) -> Iterator[str]:
    """Resample sentences so that a language with n sentences has a share p ∝ n^exponent of the output.

    The number of sentences returned is the number read, or ``maximum`` if that is smaller. Large languages are
    subsampled evenly over the text; sentences of small languages are repeated. Nothing is held in memory.

    Args:
        sentences: ``(language, text)`` of all languages, in any order.
        counts: Number of sentences per language in ``sentences``.
        exponent: 1 keeps the proportions of the text, 0 makes all languages equal (XLM, arXiv:1901.07291, uses 0.5).
        maximum: Largest number of sentences to return.
    """
    weights = {language: count**exponent for language, count in counts.items() if count > 0}
    total = min(sum(counts.values()), maximum)
    scale = total / sum(weights.values()) if weights else 0.0
    rates = {language: scale * weight / counts[language] for language, weight in weights.items()}
    due = dict.fromkeys(rates, 0.0)
    for language, text in sentences:
        due[language] += rates[language]
        while due[language] >= 1.0 - 1e-9:
            due[language] -= 1.0
            yield text


def _explain(message: str, vocabulary_size: int) -> UserError:
    problem = f"a vocabulary of {vocabulary_size} pieces is"
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        cure = f"ask for more than {match[1]}"
        return UserError(f"{problem} smaller than the number of different characters", cure=cure)
    return UserError(f"SentencePiece could not train: {message}", cure="check `vocab_size` and the input text")

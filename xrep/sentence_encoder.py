"""What a user holds at the end: sentences in, vectors out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from xrep.data.batching import TextSpec, collate
from xrep.models.directory import TOKENIZER, load_model, open_checkpoint
from xrep.text.languages import canonical
from xrep.text.tokenizer import Tokenizer

TOKENIZE_CHUNK = 4096


class SentenceEncoder:
    """A trained encoder with its tokenizer.

    >>> encoder = SentenceEncoder.load("run1/best")                          # doctest: +SKIP
    >>> encoder.encode(["Guten Tag", "Wie geht es?"], lang="de").shape       # doctest: +SKIP
    (2, 512)

    Attributes:
        languages: codes of the languages it was trained on.
        training_hashes: hashes of its training sentences (sorted uint64 ``.npy``), None if they are not beside it.
    """

    def __init__(
        self, model: nn.Module, tokenizer: Tokenizer, text: TextSpec, training_hashes: Path | None = None
    ) -> None:
        self.model, self.tokenizer, self.text = model.eval(), tokenizer, text
        self.training_hashes = training_hashes
        self.languages: list[str] = model.languages

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None, random_weights: bool = False) -> SentenceEncoder:
        """Load a checkpoint directory such as ``run1/best``.

        Args:
            device: default: a GPU if there is one.
            random_weights: keep a fresh initialisation of the same architecture: the baseline of an evaluation.

        Raises:
            UserError: not a checkpoint, or a damaged one.
        """
        checkpoint = open_checkpoint(path)
        with torch.random.fork_rng(devices=[], enabled=random_weights):
            if random_weights:
                torch.manual_seed(0)
            model = load_model(checkpoint, random_weights)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        real = checkpoint.path.resolve()
        hashes = [p for p in (real / "training_hashes.npy", real.parent / "training_hashes.npy") if p.exists()]
        tokenizer = Tokenizer.load(real / TOKENIZER)
        return cls(model.to(device), tokenizer, checkpoint.text, None if random_weights or not hashes else hashes[0])

    def encode(
        self,
        sentences: Sequence[str],
        lang: str | None = None,
        *,
        batch_tokens: int = 8192,
        show_progress: bool = False,
    ) -> np.ndarray:
        """float32 [N, D], one vector a sentence, in the order given.

        A sentence's vector does not depend on the other sentences (to about 1e-6).

        Args:
            lang: language of the sentences (``de``, ``deu``); needed where the encoder has a tower for each side.
            batch_tokens: subwords, padding included, that go through the encoder at once.

        Raises:
            UserError: the encoder has no tower for the language.
            TypeError: ``sentences`` is one string.
        """
        if isinstance(sentences, str):
            raise TypeError("encode takes a list of sentences, not one string")
        tower = self.model.tower(lang and canonical(lang))
        tokens: list[np.ndarray] = []
        for start in range(0, len(sentences), TOKENIZE_CHUNK):
            ids = self.tokenizer.encode(list(sentences[start : start + TOKENIZE_CHUNK]))
            tokens += [np.asarray(sentence[: self.text.max_length], dtype=np.int64) for sentence in ids]
        vectors = np.empty((len(sentences), self.model.output_size), dtype=np.float32)
        device = next(self.model.parameters()).device
        with torch.inference_mode(), tqdm(total=len(tokens), unit="sentence", disable=not show_progress) as bar:
            for rows in self._batches(tokens, batch_tokens):
                batch = collate([tokens[row] for row in rows], self.text).to(device)
                vectors[rows] = self.model.encode(tower, batch)[0].float().cpu().numpy()
                bar.update(len(rows))
        return vectors

    def _batches(self, tokens: list[np.ndarray], batch_tokens: int) -> Iterator[list[int]]:
        """Rows of similar length, at most ``batch_tokens`` with padding (a longer sentence comes alone)."""
        rows: list[int] = []
        for row in np.argsort([-len(sentence) for sentence in tokens], kind="stable").tolist():
            longest = min(len(tokens[rows[0] if rows else row]) + 2, self.text.max_length)
            if rows and longest * (len(rows) + 1) > batch_tokens:
                yield rows
                rows = []
            rows.append(row)
        if rows:
            yield rows

"""What a user holds at the end: sentences in, vectors out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from xrep.data.batching import TextSpec, Vocabulary, batches_of, collate
from xrep.errors import UserError
from xrep.models.directory import MANIFEST, TOKENIZER, fingerprint, load_model, open_checkpoint
from xrep.models.dual_encoder import SHARED, DualEncoder
from xrep.nn.pretrained import Pretrained, find_pretrained, read_pretrained
from xrep.text.languages import canonical
from xrep.text.pretrained_tokenizer import maximum_length
from xrep.text.sides import Tokenizers, open_tokenizers, tokenizer_of
from xrep.text.tokenizer import Tokenizer

TOKENIZE_CHUNK = 4096
DataType = Literal["float32", "bfloat16"]


class SentenceEncoder:
    """A trained encoder with its tokenizers.

    >>> encoder = SentenceEncoder.load("run1/best")                          # doctest: +SKIP
    >>> encoder.encode(["Guten Tag", "Wie geht es?"], lang="de").shape       # doctest: +SKIP
    (2, 512)

    Attributes:
        languages: codes of the languages it was trained on.
        training_hashes: hashes of its training sentences (sorted uint64 ``.npy``), None if they are not beside it.
    """

    def __init__(
        self, model: DualEncoder, tokenizers: Tokenizers, text: TextSpec, training_hashes: Path | None = None
    ) -> None:
        self.model, self.tokenizers, self.text = model.eval(), tokenizers, text
        self.training_hashes = training_hashes
        self.languages: list[str] = model.languages

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str | None = None,
        dtype: DataType = "float32",
        random_weights: bool = False,
    ) -> SentenceEncoder:
        """Load a checkpoint directory such as ``run1/best``, or a pretrained encoder.

        Args:
            path: directory of a checkpoint, of Hugging Face or of sentence-transformers, or a name in the local Hugging
                Face cache.
            device: default: a GPU if there is one.
            dtype: type of weights and activations; bfloat16 moves vectors by a cosine of about 1e-4. It is faster on
                GPUs and on most CPUs with instructions for it (AMX, AVX512-BF16). Other CPUs take the products in
                float32 and round their results, which is not faster than float32.
            random_weights: keep a fresh initialisation of the same architecture: the baseline of an evaluation.

        Raises:
            UserError: no encoder that xrep can read, or a damaged one.
        """
        with torch.random.fork_rng(devices=[], enabled=random_weights):
            if random_weights:
                torch.manual_seed(0)
            encoder = (
                _load_pretrained(path, random_weights) if _is_pretrained(path) else _load_run(path, random_weights)
            )
        encoder.model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"), getattr(torch, dtype))
        return encoder

    @property
    def output_size(self) -> int:
        """D, the width of the vectors."""
        return self.model.output_size

    def encode(
        self,
        sentences: Sequence[str],
        lang: str | None = None,
        *,
        batch_tokens: int = 4096,
        normalize: bool = True,
        show_progress: bool = False,
    ) -> np.ndarray:
        """float32 [N, D], one vector a sentence, in the order given.

        A sentence's vector does not depend on the other sentences (to about 1e-6).

        Args:
            lang: language of the sentences (``de``, ``deu``); needed where the encoder has a tower for each side.
            batch_tokens: subwords, padding included, that go through the encoder at once.
            normalize: vectors of length 1; else as the model gives them.

        Raises:
            UserError: the encoder has no tower for the language.
            TypeError: ``sentences`` is one string.
        """
        if isinstance(sentences, str):
            raise TypeError("encode takes a list of sentences, not one string")
        tower = self.model.tower(lang and canonical(lang))
        tokens = self._tokenize(sentences, tokenizer_of(self.tokenizers, tower))
        vectors = np.empty((len(sentences), self.output_size), dtype=np.float32)
        device, vocabulary = next(self.model.parameters()).device, self.text.vocabulary(tower)
        with torch.inference_mode(), tqdm(total=len(tokens), unit="sentence", disable=not show_progress) as bar:
            for rows in batches_of(tokens, batch_tokens, self.text.max_length):
                batch = collate([tokens[row] for row in rows], vocabulary, self.text.max_length).to(device)
                found = self.model.encode(tower, batch)[0].float()
                vectors[rows] = (F.normalize(found, dim=1) if normalize else found).cpu().numpy()
                bar.update(len(rows))
        return vectors

    def fingerprint(self) -> str:
        """Hex digest that changes with the weights, the architecture, the type of numbers and the special ids; not with
        the place where the encoder lies."""
        return fingerprint(self.model, self.text)

    def _tokenize(self, sentences: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
        tokens: list[np.ndarray] = []
        for start in range(0, len(sentences), TOKENIZE_CHUNK):
            ids = tokenizer.encode(list(sentences[start : start + TOKENIZE_CHUNK]))
            tokens += [np.asarray(sentence[: self.text.max_length - 2], dtype=np.int64) for sentence in ids]
        return tokens


def _is_pretrained(path: str | Path) -> bool:
    """Whether it is a directory of other libraries; what is no directory may be a name in a cache of theirs."""
    path = Path(path)
    if not path.is_dir():
        return not path.exists() and not path.is_absolute()
    known = ("config.json", "modules.json")
    return not (path / MANIFEST).exists() and any((path / name).exists() for name in known)


def _load_run(path: str | Path, random_weights: bool) -> SentenceEncoder:
    checkpoint = open_checkpoint(path)
    if checkpoint.translates:
        cure = f"translate by xrep-generate --path {path}, or train sentence vectors from its encoder: --encoder {path}"
        raise UserError("a translation model, which gives no sentence vectors", path=path, cure=cure)
    model = load_model(checkpoint, random_weights)
    tokenizers = open_tokenizers(checkpoint.path / TOKENIZER)
    return SentenceEncoder(model, tokenizers, checkpoint.text, None if random_weights else checkpoint.training_hashes)


def _load_pretrained(path: str | Path, random_weights: bool) -> SentenceEncoder:
    source: Pretrained = read_pretrained(find_pretrained(path))
    tokenizer = Tokenizer.load(source.path)
    longest = min(maximum_length(source.path) or source.shape.max_positions, source.shape.max_positions)
    text = TextSpec(vocabularies={SHARED: Vocabulary.of(tokenizer)}, max_length=longest)
    config = DualEncoder.Config(towers="shared", encoder=str(source.path), normalize=source.normalize is not False)
    model = DualEncoder(config, text)
    if random_weights:
        model = DualEncoder(config, text, model.architecture())
    return SentenceEncoder(model, {SHARED: tokenizer}, text)

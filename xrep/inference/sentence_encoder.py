"""The sentence encoder, which turns sentences into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from xrep.data.batching import TextSpec, Vocabulary, batches_of, collate
from xrep.errors import UserError
from xrep.inference.encoder_files import Format, write_encoder
from xrep.interop.pretrained import Pretrained, find_pretrained, read_pretrained
from xrep.interop.sentence_modules import MODULES, read_router
from xrep.memory import check_memory, check_move
from xrep.models.directory import MANIFEST, TOKENIZER, fingerprint, load_model, open_checkpoint
from xrep.models.dual_encoder import DualEncoder
from xrep.nn.bert import CONFIG
from xrep.nn.shape import UNLIMITED
from xrep.text.languages import canonical
from xrep.text.pretrained_tokenizer import maximum_length
from xrep.text.sides import SHARED, SIDES, Tokenizers, open_tokenizers, tokenizer_of
from xrep.text.tokenizer import Tokenizer

TOKENIZE_CHUNK = 4096
DataType = Literal["float32", "bfloat16"]
M = TypeVar("M", bound=torch.nn.Module)


class SentenceEncoder:
    """A trained encoder with its tokenizers.

    >>> encoder = SentenceEncoder.load("run1/best")                          # doctest: +SKIP
    >>> encoder.encode(["Guten Tag", "Wie geht es?"], lang="de").shape       # doctest: +SKIP
    (2, 512)

    ``languages`` are the codes of those it was trained on; ``training_hashes`` is the file with the hashes of its
    training sentences (sorted uint64 ``.npy``), if it is available.
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
            path: Directory of a checkpoint, of Hugging Face or of sentence-transformers (also one that ``save`` wrote),
                or a name in the local Hugging Face cache.
            device: Device of the encoder. The default is a GPU if there is one, else the CPU.
            dtype: Type of weights and activations. bfloat16 changes vectors by a cosine distance of about 1e-4. It is
                faster on GPUs and on most CPUs with instructions for it (AMX, AVX512-BF16). Other CPUs compute products
                in float32 and round their results, which is not faster than float32.
            random_weights: Initialise the architecture randomly instead of loading the trained weights, as the baseline
                of an evaluation.

        Raises:
            UserError: If there is no encoder that xrep can read, or it is damaged.
        """
        with torch.random.fork_rng(devices=[], enabled=random_weights):
            if random_weights:
                torch.manual_seed(0)
            directory = Path(path)
            may_be_a_name = not directory.exists() and not directory.is_absolute()
            load = _load_pretrained if may_be_a_name or has_foreign_encoder(directory) else _load_run
            encoder = load(path, random_weights)
        place(encoder.model, device, dtype)
        return encoder

    @property
    def output_size(self) -> int:
        """The dimension D of the vectors."""
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
        """Return float32 [N, D] with one vector per sentence, in the order of the sentences.

        The vector of a sentence does not depend on the other sentences (to about 1e-6).

        Args:
            lang: Language of the sentences (``de``, ``deu``); needed if the encoder has a tower for each side.
            batch_tokens: Number of subwords per batch, padding included.
            normalize: Scale the vectors to length 1; otherwise they are as the model computes them.
            show_progress: Show a progress bar on stderr.

        Raises:
            UserError: If the encoder has no tower for the language.
            TypeError: If ``sentences`` is one string.
        """
        if isinstance(sentences, str):
            raise TypeError("encode takes a list of sentences, not one string")
        tower = self.model.tower(lang and canonical(lang))
        tokens = self._tokenize(sentences, tokenizer_of(self.tokenizers, tower))
        vectors = np.empty((len(sentences), self.output_size), dtype=np.float32)
        device, vocabulary = next(self.model.parameters()).device, self.text.vocabulary(tower)
        with torch.inference_mode(), tqdm(total=len(tokens), unit="sentence", disable=not show_progress) as bar:
            for rows in batches_of(tokens, batch_tokens, self.text.max_length):
                batch = collate([tokens[row] for row in rows], vocabulary, self.text.max_length)
                states = 24 * batch.tokens.numel() * self.output_size  # of a feed-forward layer and around it, at least
                what = f"a batch of {batch.tokens.numel():,} subwords"
                check_memory(states, what, device=str(device), cure="lower `batch_tokens`")
                batch = batch.to(device)
                encoded = self.model.encode(tower, batch)[0].float()
                vectors[rows] = (F.normalize(encoded, dim=1) if normalize else encoded).cpu().numpy()
                bar.update(len(rows))
        return vectors

    def save(self, path: str | Path, format: Format = "sentence-transformers") -> dict[Path, str]:
        """Write the encoder as directories of sentence-transformers or transformers, which contain no code.

        ``load`` and sentence-transformers read the directory ``path`` again, with exactly the same weights; an encoder
        with two towers keeps both, and the languages that each reads. ``hf`` is the transformer alone: two towers are
        written to the folders ``source`` and ``target``. A README says how to load them and which languages they read.

        Returns:
            The directories written, each with a line of Python that loads it.

        Raises:
            UserError: If ``path`` is not empty, or the encoder has no counterpart in those libraries.
        """
        return write_encoder(self.model, self.tokenizers, self.text, Path(path), format)

    def fingerprint(self) -> str:
        """Return a hex digest of the weights and of what else determines the vectors, but not of the path."""
        return fingerprint(self.model, self.text)

    def _tokenize(self, sentences: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
        starts, most = range(0, len(sentences), TOKENIZE_CHUNK), self.text.max_length - 1
        parts = (tokenizer.encode(list(sentences[start : start + TOKENIZE_CHUNK])) for start in starts)
        return [np.asarray(ids[:most], dtype=np.int64) for part in parts for ids in part]


def has_foreign_encoder(directory: Path) -> bool:
    """Return whether a directory is not a checkpoint but that of an encoder of another library."""
    return not (directory / MANIFEST).exists() and any((directory / name).exists() for name in (CONFIG, MODULES))


def place(model: M, device: str | None, dtype: DataType) -> M:
    """Move a model to a device, by default a GPU if there is one, and convert it to a type of numbers."""
    device, model = device or ("cuda" if torch.cuda.is_available() else "cpu"), model.to(getattr(torch, dtype))
    check_move(model, device, gradients=False, cure="use another `device`, such as cpu")
    return model.to(device)


def _load_run(path: str | Path, random_weights: bool) -> SentenceEncoder:
    checkpoint = open_checkpoint(path)
    if checkpoint.translates:
        cure = f"translate by xrep-generate --path {path}, or train sentence vectors from its encoder: --encoder {path}"
        raise UserError("a translation model, which gives no sentence vectors", path=path, cure=cure)
    model = load_model(checkpoint, random_weights)
    tokenizers = open_tokenizers(checkpoint.path / TOKENIZER)
    return SentenceEncoder(model, tokenizers, checkpoint.text, None if random_weights else checkpoint.training_hashes)


def _load_pretrained(path: str | Path, random_weights: bool) -> SentenceEncoder:
    root = find_pretrained(path)
    routes = read_router(root) or {}
    folders = list(dict.fromkeys(routes.values())) or [root]
    towers = dict(zip(SIDES if len(folders) > 1 else [SHARED], folders, strict=True))
    sources = {tower: read_pretrained(folder) for tower, folder in towers.items()}
    tokenizers = {tower: Tokenizer.load(source.tokenizer) for tower, source in sources.items()}
    languages = [[canonical(code) for code, folder in routes.items() if folder == tower] for tower in folders]
    text = TextSpec(
        vocabularies={tower: Vocabulary.of(tokenizer) for tower, tokenizer in tokenizers.items()},
        max_length=min(_longest(source) for source in sources.values()),
        source_languages=languages[0],
        target_languages=languages[-1] if len(languages) > 1 else [],
    )
    config = DualEncoder.Config(
        towers="separate" if len(folders) > 1 else "shared",
        encoder=str(folders[0]),
        target_encoder=str(folders[1]) if len(folders) > 1 else None,
        normalize=all(source.normalize is not False for source in sources.values()),
    )
    model = DualEncoder(config, text)
    if random_weights:
        model = DualEncoder(config, text, model.architecture())
    return SentenceEncoder(model, tokenizers, text)


def _longest(source: Pretrained) -> int:
    positions = source.shape.max_positions
    return min(maximum_length(source.path) or (512 if positions == UNLIMITED else positions), positions)

"""The sentence encoder, which turns sentences into vectors."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from xrep.data.batch import TextSpec, Vocabulary, batches_of, pad
from xrep.data.table import Column
from xrep.errors import UserError
from xrep.inference.encoder_files import Format, write_encoder
from xrep.interop.pretrained import find_pretrained
from xrep.interop.sentence_modules import PROMPTS, Prompts, read_prompts, read_router
from xrep.models.device import to_device
from xrep.models.directory import Checkpoint, fingerprint, load_model, open_checkpoint
from xrep.models.dual_encoder import DualEncoder
from xrep.models.kinds import PRETRAINED, expect
from xrep.models.model import SentenceModel
from xrep.nn.layers import is_quantised
from xrep.number_types import Precision
from xrep.registry import one_line
from xrep.text.languages import canonical, check_language
from xrep.text.sides import SHARED, Tokenizers, open_tokenizer, open_tokenizers, tokenizer_of

QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")
"""Usual names of the prompts of queries and of what they find, which sentence-transformers knows, too."""


class SentenceEncoder:
    """A trained encoder with its tokenizers.

    Examples:
        >>> encoder = SentenceEncoder.load("run1/best")                          # doctest: +SKIP
        >>> encoder.encode(["Guten Tag", "Wie geht es?"], lang="de").shape       # doctest: +SKIP
        (2, 512)

    Attributes:
        languages: Codes of the languages it was trained on, as far as they are known.
        training_hashes: Files with the hashes of its training sentences (sorted uint64 ``.npy``), if there are any.
        path: Where it was loaded from; empty if it was not.
        prompts: Texts that can be put in front of sentences, by name; ``encode`` takes the name as ``prompt_name``.
        default_prompt_name: Name of the prompt of sentences for which no prompt is chosen; None: they have none.
    """

    def __init__(
        self,
        model: DualEncoder,
        tokenizers: Tokenizers,
        text: TextSpec,
        training_hashes: Sequence[Path] = (),
        *,
        path: str | Path = "",
        prompts: Prompts | None = None,
    ) -> None:
        self.model, self.tokenizers, self.text = model.eval(), tokenizers, text
        self.training_hashes, self.path = training_hashes, str(path)
        self.languages = model.languages
        prompts = _trained_prompts(text) if prompts is None else prompts
        self.prompts, self.default_prompt_name = prompts.texts, prompts.default

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str | None = None,
        dtype: Precision = "float32",
        random_weights: int | None = None,
        layer: int | None = None,
    ) -> SentenceEncoder:
        """Load a checkpoint directory such as ``run1/best``, or a pretrained encoder.

        Args:
            path: Directory of a checkpoint, of Hugging Face or of sentence-transformers (also one that ``save`` wrote),
                or the name of a model on the Hugging Face Hub, ``organisation/name``, which is fetched if it is not in
                the local cache. Nothing that is fetched is run.
            device: The default is a GPU if there is one, else the CPU.
            dtype: Type of weights and activations. bfloat16 changes vectors by a cosine distance of about 1e-4, and is
                faster on GPUs and on most CPUs with instructions for it (AMX, AVX512-BF16); other CPUs compute in
                float32 instead. int8 is for the products of transformer layers on CPUs (cosine distances of about
                1e-3): weights have a scale for each output, inputs one for each token. An encoder that was saved in
                int8 remains so.
            random_weights: Seed of random weights of the same architecture, the baseline of an evaluation.
            layer: Layer whose token vectors are pooled; 0: the embeddings. None: that with which it was trained.

        Raises:
            UserError: If there is no encoder that xrep can read, it is damaged, or it has no such layer.
        """
        is_name = not Path(path).exists() and not Path(path).is_absolute()
        is_pretrained = expect(path, SentenceModel, *PRETRAINED) in PRETRAINED or is_name
        is_random = random_weights is not None
        with torch.random.fork_rng(devices=[], enabled=is_random):
            if random_weights is not None:
                torch.manual_seed(random_weights)
            encoder = (
                _load_pretrained(path, is_random) if is_pretrained else encoder_of(open_checkpoint(path), is_random)
            )
        if layer is not None:
            encoder.model.use_layer(layer)
        to_device(encoder.model, device, dtype)
        return encoder

    @property
    def output_size(self) -> int:
        """The dimension D of the vectors."""
        return self.model.output_size

    @property
    def device(self) -> torch.device:
        """The device on which the encoder computes."""
        return next(self.model.parameters()).device

    @property
    def precision(self) -> Precision:
        """The precision in which it computes: float32, bfloat16, float16 or int8."""
        dtype = "int8" if is_quantised(self.model) else next(self.model.parameters()).dtype
        return cast(Precision, str(dtype).removeprefix("torch."))

    def encode(
        self,
        sentences: str | Sequence[str],
        lang: str | None = None,
        *,
        batch_tokens: int = 4096,
        batch_size: int | None = None,
        normalize: bool = True,
        prompt: str | None = None,
        prompt_name: str | None = None,
        show_progress: bool = False,
    ) -> np.ndarray:
        """Return float32 [N, D] with one vector per sentence, in the order of the sentences; [D] for one string.

        The vector of a sentence does not depend on the other sentences (to about 1e-6).

        Args:
            lang: Language of the sentences (``de``, ``deu``); needed if the encoder has a tower for each side.
            batch_tokens: Number of subwords per batch, padding included.
            batch_size: Number of sentences per batch, at most; None: as many as ``batch_tokens`` allows.
            normalize: Scale the vectors to length 1; otherwise they are as the model computes them.
            prompt: Text that is put in front of each sentence; an empty one leaves the default prompt out.
            prompt_name: Name of the prompt in ``prompts``. The default is ``default_prompt_name``.
            show_progress: Show a progress bar on stderr.

        Raises:
            UserError: If the encoder has no tower for the language, or no such prompt.
        """
        if batch_size is not None and batch_size < 1:
            raise UserError(f"`batch_size` must be at least 1, not {batch_size}")
        check_language(lang, "lang")
        tower = self.model.tower(lang and canonical(lang))
        prompt = self.find_prompt(prompt_name) if prompt is None else prompt
        prompted = [prompt + sentence for sentence in ([sentences] if isinstance(sentences, str) else sentences)]
        tokenizer, vocabulary = tokenizer_of(self.tokenizers, tower), self.text.vocabulary(tower)
        # A few at a time, because lists of ids need several times the memory of arrays.
        parts = (tokenizer.encode(prompted[start : start + 4096]) for start in range(0, len(prompted), 4096))
        tokens, most = Column.of(parts), self.text.max_length - vocabulary.special_count
        vectors = np.empty((len(tokens), self.output_size), dtype=np.float32)
        lengths = np.minimum(tokens.lengths(np.arange(len(tokens))), most) + vocabulary.special_count
        with torch.inference_mode(), tqdm(total=len(tokens), unit="sentence", disable=not show_progress) as bar:
            for rows in batches_of(lengths, batch_tokens, batch_size):
                batch = pad(*tokens.gather(np.array(rows), most), vocabulary)
                encoded = self.model.encode(tower, batch.to(self.device))[0].float()
                vectors[rows] = (F.normalize(encoded, dim=1) if normalize else encoded).cpu().numpy()
                bar.update(len(rows))
        return vectors[0] if isinstance(sentences, str) else vectors

    def similarity(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> Tensor:
        """Return the cosine of every vector of [N, D] with every one of [M, D], float32 [N, M]; [D] is one vector."""
        rows = unit_rows(a)
        return rows @ unit_rows(b).to(rows.device).T

    def save(
        self,
        path: str | Path,
        format: Format = "sentence-transformers",
        *,
        license: str | None = None,
        results: Sequence[str | Path] = (),
        address: str | None = None,
    ) -> dict[Path, str]:
        """Write the encoder as directories of other libraries, which contain no code, and return each of them with a
        line of Python that loads it.

        ``load`` and sentence-transformers read ``path`` again with exactly the same weights; an encoder with two towers
        keeps both, and the languages that each reads. ``hf`` is the transformer alone: two towers are in the folders
        ``source`` and ``target``. ``onnx`` and ``openvino`` are graphs for these runtimes, with pooling and projection
        inside, which ``load`` does not read (extras of these names). The model card (``README.md``) also has the
        ``license`` (an identifier such as ``apache-2.0``), the ``results``, files that ``xrep-eval`` wrote as JSON, and
        how the model is loaded, from ``path`` or from another ``address`` such as ``organisation/name``.

        Raises:
            UserError: ``path`` is not empty, those libraries have no such encoder, or the results are of another one.
        """
        if is_quantised(self.model):
            problem = "an encoder in int8 cannot be written for other libraries"
            raise UserError(problem, cure="load the original in float32, or export it in the format int8")
        return write_encoder(self, Path(path), format, address or str(path), license=license, results=results)

    def push_to_hub(self, name: str, *, private: bool | None = None, token: str | None = None, **card: Any) -> str:
        """Upload what ``save`` writes to the Hugging Face Hub as ``name``, ``organisation/name``; return its address.

        ``private`` is for a new model (None: as the organisation's settings say), ``token`` is an access token (None:
        the one that ``hf auth login`` stored). The ``card`` has ``license`` and ``results`` as in ``save``, and a
        UserError says why the Hub refuses.
        """
        from huggingface_hub import HfApi

        with tempfile.TemporaryDirectory() as folder:
            saved, hub = Path(folder, "model"), HfApi(token=token)
            self.save(saved, **card, address=name)
            try:
                made = hub.create_repo(name, private=private, exist_ok=True)
                hub.upload_folder(repo_id=made.repo_id, folder_path=saved, commit_message="by xrep")
            except Exception as error:  # of its HTTP library, which is another one in other versions
                problem = f"{name} cannot be uploaded to the Hugging Face Hub: {one_line(error)[:200]}"
                raise UserError(problem, cure="check the name and the network, and log in: hf auth login") from error
        return str(made)

    def fingerprint(self) -> str:
        """Return a hex digest of the weights and of what else determines the vectors, but not of the path."""
        digest = fingerprint(self.model, self.text)
        prompt = self.find_prompt(None)
        return hashlib.sha256(f"{digest} {prompt}".encode()).hexdigest() if prompt else digest

    def use_prompt(self, prompt: str | None, prompt_name: str | None = None) -> SentenceEncoder:
        """Put this text, or the prompt of this name, in front of all sentences for which ``encode`` is given none, and
        return the encoder; two Nones change nothing. Raises UserError if both are given, or there is no such prompt."""
        if prompt is not None and prompt_name is not None:
            raise UserError("`prompt` and `prompt_name`", cure="give one of them")
        if prompt is not None:
            self.prompts, prompt_name = {**self.prompts, "prompt": prompt}, "prompt"
        if prompt_name is not None:
            self.find_prompt(prompt_name)
            self.default_prompt_name = prompt_name
        return self

    def find_prompt(self, name: str | None, usual: Iterable[str] = ()) -> str:
        """Return the text of the prompt ``name`` or, if it is None, of the first of the usual names that there is, or
        else of the default; a UserError if there is no such prompt."""
        name = name or next((known for known in usual if known in self.prompts), self.default_prompt_name)
        if name is not None and name not in self.prompts:
            raise UserError(f"there is no prompt {name!r}", cure="known: " + (", ".join(self.prompts) or "none"))
        return "" if name is None else self.prompts[name]


def unit_rows(vectors: Any) -> Tensor:
    """Return the rows of an array, a tensor or a list as float32, scaled to length 1; [D] is one row."""
    return F.normalize(torch.atleast_2d(torch.as_tensor(vectors)).float(), dim=1)


def encoder_of(checkpoint: Checkpoint, random_weights: bool = False) -> SentenceEncoder:
    """Return the encoder of an open checkpoint on the CPU, in the precision in which it was saved."""
    hashes = () if random_weights else checkpoint.training_hashes
    model, tokenizers = load_model(checkpoint, random_weights), open_tokenizers(checkpoint.tokenizer)
    prompts = read_prompts(checkpoint.check(PROMPTS).path)
    how = {"path": checkpoint.path, "prompts": prompts if prompts.texts else None}
    return SentenceEncoder(model, tokenizers, checkpoint.text, hashes, **how)


def _trained_prompts(text: TextSpec) -> Prompts:
    """Return the prompts with which training text was tokenised, if there were any."""
    trained = text.facts.get("prompts")
    if not trained:
        return Prompts()
    texts = {QUERY_PROMPTS[0]: trained["source"], DOCUMENT_PROMPTS[0]: trained["target"]}
    return Prompts(texts=texts, default=QUERY_PROMPTS[0] if trained["source"] == trained["target"] else None)


def _load_pretrained(path: str | Path, random_weights: bool) -> SentenceEncoder:
    root = find_pretrained(path, download=True)
    routes = read_router(root) or {}
    folders = list(dict.fromkeys(routes.values())) or [root]
    separate = len(folders) > 1
    config = DualEncoder.Config(
        towers="separate" if separate else "shared", encoder=str(folders[0]), target_encoder=str(folders[-1])
    )
    starts = config.starts
    config.normalize = all(start.normalize is not False for start in starts.values())
    tokenizers = {tower: open_tokenizer(start.tokenizer) for tower, start in starts.items()}
    languages = [[canonical(code) for code, folder in routes.items() if folder == tower] for tower in folders]
    text = TextSpec(
        vocabularies={tower: Vocabulary.of(tokenizer) for tower, tokenizer in tokenizers.items()},
        max_length=min(start.max_length for start in starts.values()),
        source_languages=languages[0],
        target_languages=languages[-1] if separate else [],
    )
    model = DualEncoder(config, text)
    if random_weights:
        model = DualEncoder(config, text, model.architecture())
    encoder = SentenceEncoder(model, tokenizers, text, path=root, prompts=read_prompts(root))
    encoder.languages = encoder.languages or starts[SHARED].languages
    return encoder

"""Adapters that make a sentence encoder a model of mteb or a transformer of scikit-learn.

With mteb 2 (``pip install mteb``), for any text task::

    import mteb
    from xrep.inference.adapters import MtebEncoder

    tasks = mteb.get_tasks(tasks=["BUCC.v2", "STS17"], languages=["deu", "eng"])
    results = mteb.evaluate(MtebEncoder("run1/best"), tasks)

With scikit-learn (``pip install 'xrep[senteval]'``), as a step that turns sentences into features::

    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from xrep.inference.adapters import SentenceVectors

    classifier = make_pipeline(SentenceVectors("run1/best", lang="de"), LogisticRegression())
    classifier.fit(sentences, labels)

Both libraries are imported on first use only.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from xrep.errors import UserError
from xrep.inference.sentence_encoder import DataType, SentenceEncoder
from xrep.text.languages import canonical, count_english_words

if TYPE_CHECKING:
    from mteb.models import ModelMeta  # pyright: ignore[reportMissingImports] (no extra installs mteb)

ChooseLanguage = Callable[[Sequence[str], Sequence[str]], str]
"""Function (texts, languages of the subset) -> the language of the texts."""
_ENGLISH_SHARE, _OTHER_SHARE, _ENOUGH_WORDS = 0.03, 0.01, 20


class MtebEncoder:
    """Adapter that gives a sentence encoder the interface of mteb's models (``mteb.models.EncoderProtocol``).

    If the encoder has a tower for each side, the language is taken from mteb's name of the subset. In a subset of two
    languages (``deu-eng``) mteb encodes each side separately but does not say which one it is. If one of the two
    languages is English, it is recognised by its most frequent words; for other pairs, ``lang`` must be a function.

    Prompts and ``batch_size`` of mteb are ignored.

    Args:
        encoder: The encoder, or what ``SentenceEncoder.load`` accepts.
        lang: Language of all texts, whatever the task says; or a function ``(texts, languages) -> code``.
        batch_tokens: As in ``SentenceEncoder.encode``.
        normalize: Scale vectors to length 1, for models that do not do so themselves. Cosine scores stay the same.
        name: ``organisation/model``. mteb stores results under this name and a revision that changes with the weights.

    Raises:
        UserError: As ``SentenceEncoder.load``.
    """

    def __init__(
        self,
        encoder: SentenceEncoder | str | Path,
        lang: str | ChooseLanguage | None = None,
        *,
        batch_tokens: int = 4096,
        normalize: bool = False,
        name: str = "xrep/sentence-encoder",
    ) -> None:
        self.encoder = encoder if isinstance(encoder, SentenceEncoder) else SentenceEncoder.load(encoder)
        self.lang, self.batch_tokens, self.normalize, self.name = lang, batch_tokens, normalize, name

    def encode(
        self,
        inputs: Iterable[dict[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Return float32 [N, D] with one row for each text of the batches ``{"text": [...]}``.

        Raises:
            UserError: If the task has no text but images or sound, the encoder has no tower for a language, or two
                languages cannot be told apart.
        """
        texts: list[str] = []
        for batch in inputs:
            if "text" not in batch:
                raise UserError(
                    f"the task {task_metadata.name} has {', '.join(batch)} and no text", cure="leave it out"
                )
            texts += batch["text"]
        lang = self._language(texts, _languages(task_metadata, hf_subset), f"{task_metadata.name} {hf_subset}")
        return self.encoder.encode(
            texts,
            lang,
            batch_tokens=self.batch_tokens,
            normalize=self.normalize,
            show_progress=bool(kwargs.get("show_progress_bar")),
        )

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return the cosine of every vector of [N, D] with every one of [M, D]: [N, M]."""
        return _unit(embeddings1) @ _unit(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return the cosine of the vectors of [N, D] and [N, D], row by row: [N]."""
        return (_unit(embeddings1) * _unit(embeddings2)).sum(dim=1)

    @functools.cached_property
    def mteb_model_meta(self) -> ModelMeta:
        """The description of the model under which mteb stores its results.

        Raises:
            UserError: If mteb is not installed.
        """
        _require("mteb", "mteb", "mteb>=2")
        from mteb.models import ModelMeta  # pyright: ignore[reportMissingImports] (no extra installs mteb)

        # The revision differs for other weights and options, so that mteb does not reuse their results for this model.
        lang = getattr(self.lang, "__qualname__", self.lang)
        revision = hashlib.sha256(f"{self.encoder.fingerprint()} {lang} {self.normalize}".encode()).hexdigest()
        return ModelMeta(
            loader=None,
            name=self.name,
            revision=revision[:40],
            release_date=None,
            languages=None,
            n_parameters=sum(parameter.numel() for parameter in self.encoder.model.parameters()),
            memory_usage_mb=None,
            max_tokens=self.encoder.text.max_length,
            embed_dim=self.encoder.output_size,
            license=None,
            open_weights=None,
            public_training_code=None,
            public_training_data=None,
            framework=["PyTorch"],
            similarity_fn_name="cosine",
            use_instructions=False,
            training_datasets=None,
        )

    def _language(self, texts: list[str], languages: list[str], subset: str) -> str | None:
        if self.lang is not None:
            return self.lang(texts, languages) if callable(self.lang) else self.lang
        towers = {code: self.encoder.model.tower(code) for code in languages}
        if len(set(towers.values())) <= 1:
            return languages[0] if languages else None
        others = [code for code in languages if code != "en"]
        cure = "give MtebEncoder(lang=...) a function (texts, languages) -> code"
        if len(others) == len(languages) or len({towers[code] for code in others}) > 1:
            raise UserError(f"{subset} mixes {', '.join(languages)}, and mteb does not say which are which", cure=cure)
        english = _is_english(texts)
        if english is None:
            raise UserError(f"{subset}: cannot tell whether {texts[:1]} and so on are English", cure=cure)
        return "en" if english else others[0]


def _languages(task_metadata: Any, hf_subset: str) -> list[str]:
    """Return the canonical language codes of a subset; an unlisted subset is itself a language (``deu_Latn``)."""
    codes = task_metadata.hf_subsets_to_langscripts.get(hf_subset, [hf_subset])
    return list(dict.fromkeys(canonical(code) for code in codes))


def _is_english(texts: Sequence[str]) -> bool | None:
    """Return whether texts, all in one language, are English; None if this cannot be decided."""
    english, words = count_english_words(texts)
    if words and english >= _ENGLISH_SHARE * words:
        return True
    return False if english <= _OTHER_SHARE * words and words >= _ENOUGH_WORDS else None


def _unit(vectors: Any) -> torch.Tensor:
    """Return the rows of an array, a tensor or a list as float32, scaled to length 1; [D] is one row."""
    vectors = vectors if isinstance(vectors, torch.Tensor) else torch.from_numpy(np.asarray(vectors))
    return F.normalize(torch.atleast_2d(vectors).float(), dim=1)


def _require(module: str, library: str, requirement: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise UserError(f"{library} is not installed", cure=f"pip install '{requirement}'")


@functools.lru_cache(maxsize=1)
def _load(real_path: str, device: str | None, dtype: DataType) -> SentenceEncoder:
    """Load an encoder and cache the last one, because a grid search fits many copies of one transformer."""
    return SentenceEncoder.load(real_path, device=device, dtype=dtype)


@functools.cache
def _sentence_vectors() -> type:
    """Return the class ``SentenceVectors``. It is made in a function, because its base classes are scikit-learn's."""
    _require("sklearn", "scikit-learn", "xrep[senteval]")
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

    class SentenceVectors(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
        """Transformer of scikit-learn that turns sentences into float32 [N, D] by ``SentenceEncoder.encode``.

        It holds the path of the encoder, not the encoder itself. It is therefore small when it is copied, pickled or
        sent to another process, but the path must exist there. ``fit`` learns nothing from the sentences.

        Args:
            path, device, dtype: As in ``SentenceEncoder.load``.
            lang, batch_tokens, normalize: As in ``SentenceEncoder.encode``.
        """

        def __init__(
            self,
            path: str | Path,
            lang: str | None = None,
            *,
            normalize: bool = True,
            batch_tokens: int = 4096,
            device: str | None = None,
            dtype: DataType = "float32",
        ) -> None:
            self.path = path
            self.lang = lang
            self.normalize = normalize
            self.batch_tokens = batch_tokens
            self.device = device
            self.dtype = dtype

        def fit(self, X: Iterable[str], y: Any = None) -> SentenceVectors:  # noqa: N803 (scikit-learn's names)
            """Load the encoder, so that an error in it or in ``lang`` is raised here.

            Raises:
                UserError: If there is no encoder at ``path``, or it has no tower for ``lang``.
            """
            self._encoder()
            return self

        def transform(self, X: Iterable[str]) -> np.ndarray:  # noqa: N803
            """Return float32 [N, D] for a list, array or column of N sentences.

            Raises:
                TypeError: If ``X`` is one string, or an element of it is not a string.
                UserError: As ``fit``.
            """
            sentences = [X] if isinstance(X, str) else list(X)
            if isinstance(X, str) or not all(isinstance(sentence, str) for sentence in sentences):
                raise TypeError("SentenceVectors takes a list, array or column of strings")
            encoder = self._encoder()
            return encoder.encode(sentences, self.lang, batch_tokens=self.batch_tokens, normalize=self.normalize)

        def _encoder(self) -> SentenceEncoder:
            # The path is resolved on each call, because RUN/best may be another checkpoint after more training.
            path = os.path.realpath(self.path) if os.path.exists(self.path) else str(self.path)
            encoder = _load(path, self.device, self.dtype)
            encoder.model.tower(self.lang and canonical(self.lang))
            return encoder

        @property
        def _n_features_out(self) -> int:
            return self._encoder().output_size

        def __sklearn_is_fitted__(self) -> bool:
            return True  # scikit-learn before 1.6 calls this method; later versions read the tags.

        def __sklearn_tags__(self) -> Any:
            tags = super().__sklearn_tags__()
            tags.requires_fit = False
            tags.input_tags.string, tags.input_tags.two_d_array = True, False
            return tags

    SentenceVectors.__qualname__ = "SentenceVectors"  # pickle looks the class up in this module by this name.
    return SentenceVectors


def __getattr__(name: str) -> type:
    if name == "SentenceVectors":
        return _sentence_vectors()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

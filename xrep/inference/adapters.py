"""Adapters that make a sentence encoder a model of mteb or a transformer of scikit-learn.

With mteb 2 (``pip install mteb``), for any text task:

    tasks = mteb.get_tasks(tasks=["BUCC.v2", "STS17"], languages=["deu", "eng"])
    results = mteb.evaluate(MtebEncoder("run1/best"), tasks)

With scikit-learn (``pip install 'xrep[senteval]'``), as a step that turns sentences into features:

    classifier = make_pipeline(SentenceVectors("run1/best", lang="de"), LogisticRegression())
    classifier.fit(sentences, labels)

Both libraries are imported on first use only.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xrep.errors import UserError
from xrep.inference.sentence_encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, SentenceEncoder, unit_rows
from xrep.lazy import lazy_names
from xrep.text.languages import canonical


class MtebEncoder:
    """Adapter that gives a sentence encoder the interface of mteb's models (``mteb.models.EncoderProtocol``).

    If the encoder has a tower for each side, the language is taken from mteb's name of the subset. In a subset of two
    languages (``deu-eng``) mteb encodes each side separately but does not say which one it is: ``lang`` must tell.

    A prompt of the encoder is put in front of texts if its name is one of these, of which the first counts: the task's
    name and ``-query`` or ``-document``, the task's name, its type and these, its type, and the usual names of the
    prompts of queries or documents. Otherwise texts get the encoder's default. ``batch_size`` is ignored.

    Args:
        encoder: The encoder, or what ``SentenceEncoder.load`` accepts.
        lang: Language of all texts, whatever the task says; or a function ``(texts, languages) -> code``, of which the
            languages are those of the subset.
        batch_tokens: As in ``SentenceEncoder.encode``.
        normalize: Scale vectors to length 1, for models that do not do so themselves. Cosine scores stay the same.
        name: ``organisation/model``. mteb stores results under this name and a revision that changes with the weights.
    """

    def __init__(
        self,
        encoder: SentenceEncoder | str | Path,
        lang: str | Callable[[Sequence[str], Sequence[str]], str] | None = None,
        *,
        batch_tokens: int = 4096,
        normalize: bool = False,
        name: str = "xrep/sentence-encoder",
    ) -> None:
        self.encoder = encoder if isinstance(encoder, SentenceEncoder) else SentenceEncoder.load(encoder)
        self.lang, self.batch_tokens, self.normalize, self.name = lang, batch_tokens, normalize, name

    def encode(
        self, inputs: Iterable[Any], *, task_metadata: Any, hf_subset: str, prompt_type: Any = None, **rest: Any
    ) -> np.ndarray:
        """Return float32 [N, D] with one row for each text of the batches ``{"text": [...]}``; a UserError if the
        encoder has no tower for a language, or two languages cannot be told apart."""
        texts = [text for batch in inputs for text in batch["text"]]
        # A subset that the task does not list is itself a language (deu_Latn).
        codes = task_metadata.hf_subsets_to_langscripts.get(hf_subset, [hf_subset])
        languages = list(dict.fromkeys(map(canonical, codes)))
        lang = self.lang(texts, languages) if callable(self.lang) else self.lang
        if self.lang is None:
            if len({self.encoder.model.tower(code) for code in languages}) > 1:
                problem = f"{task_metadata.name} {hf_subset} mixes {', '.join(languages)}, and mteb does not say which"
                cure = "give MtebEncoder(lang=...) a function (texts, languages) -> code"
                raise UserError(f"{problem} are which", cure=cure)
            lang = next(iter(languages), None)
        kind = prompt_type.value if prompt_type else None
        tasks = task_metadata.name, task_metadata.type
        names = [name for task in tasks for name in ([f"{task}-{kind}", task] if kind else [task])]
        names += {None: (), "query": QUERY_PROMPTS}.get(kind, DOCUMENT_PROMPTS)
        prompt = self.encoder.find_prompt(None, names)
        options = {"batch_tokens": self.batch_tokens, "normalize": self.normalize, "prompt": prompt}
        return self.encoder.encode(texts, lang, **options, show_progress=bool(rest.get("show_progress_bar")))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return the cosine of every vector of [N, D] with every one of [M, D]: [N, M]."""
        return self.encoder.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return the cosine of the vectors of [N, D] and [N, D], row by row: [N]."""
        return (unit_rows(embeddings1) * unit_rows(embeddings2)).sum(dim=1)

    @functools.cached_property
    def mteb_model_meta(self) -> Any:
        """The description of the model, a ``ModelMeta``, under which mteb stores its results."""
        from mteb.models import ModelMeta  # pyright: ignore[reportMissingImports] (no extra installs mteb)

        # The revision differs for other weights and options, so that mteb does not reuse their results for this model.
        lang = getattr(self.lang, "__qualname__", self.lang)
        facts = f"{self.encoder.fingerprint()} {lang} {self.normalize} {self.encoder.prompts}"
        unknown = ("loader", "release_date", "languages", "memory_usage_mb", "license", "open_weights")
        unknown = (*unknown, "public_training_code", "public_training_data", "training_datasets")
        return ModelMeta(
            **dict.fromkeys(unknown),
            name=self.name,
            revision=hashlib.sha256(facts.encode()).hexdigest()[:40],
            n_parameters=sum(parameter.numel() for parameter in self.encoder.model.parameters()),
            max_tokens=self.encoder.text.max_length,
            embed_dim=self.encoder.output_size,
            framework=["PyTorch"],
            similarity_fn_name="cosine",
            use_instructions=bool(self.encoder.prompts),
        )


__getattr__ = lazy_names(__name__, {"SentenceVectors": "xrep.inference.sentence_vectors"})  # it needs scikit-learn

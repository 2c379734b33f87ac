"""A transformer of scikit-learn that gives sentence vectors; ``xrep.inference.adapters`` offers it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.number_types import Precision
from xrep.text.languages import canonical

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
except ModuleNotFoundError:
    raise UserError("scikit-learn is not installed", cure="pip install 'xrep[senteval]'") from None


_load = functools.lru_cache(maxsize=1)(SentenceEncoder.load)  # a grid search fits many copies of one transformer


@dataclass(eq=False, repr=False)
class SentenceVectors(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Transformer of scikit-learn that turns sentences into float32 [N, D] by ``SentenceEncoder.encode``.

    It holds the path of the encoder, not the encoder itself, so it is small when it is copied, pickled or sent to
    another process, where the path must exist. ``fit`` learns nothing from the sentences.

    Args:
        path: As in ``SentenceEncoder.load``.
        lang: As in ``SentenceEncoder.encode``.
        normalize: As there.
        batch_tokens: As there.
        device: As in ``SentenceEncoder.load``.
        dtype: As there.
    """

    path: str | Path
    lang: str | None = None
    _: KW_ONLY
    normalize: bool = True
    batch_tokens: int = 4096
    device: str | None = None
    dtype: Precision = "float32"

    def fit(self, X: Iterable[str], y: Any = None) -> SentenceVectors:  # noqa: N803 (scikit-learn's names)
        """Load the encoder, so that a UserError about it or about ``lang`` is raised here."""
        self._encoder()
        return self

    def transform(self, X: Iterable[str]) -> np.ndarray:  # noqa: N803
        """Return float32 [N, D] for a list, array or column of N sentences."""
        encoder = self._encoder()
        return encoder.encode(list(X), self.lang, batch_tokens=self.batch_tokens, normalize=self.normalize)

    def _encoder(self) -> SentenceEncoder:
        # The path is resolved on each call, because RUN/best may be another checkpoint after more training.
        path = os.path.realpath(self.path) if os.path.exists(self.path) else str(self.path)
        encoder = _load(path, device=self.device, dtype=self.dtype)
        encoder.model.tower(self.lang and canonical(self.lang))
        return encoder

    @property
    def _n_features_out(self) -> int:
        return self._encoder().output_size

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit, tags.input_tags.string, tags.input_tags.two_d_array = False, True, False
        return tags

"""Figures that evaluations report, computed from arrays or lines of text: each is of use without the rest of xrep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrep.lazy import lazy_names

if TYPE_CHECKING:
    from xrep.metrics.components import principal_components, remove_components
    from xrep.metrics.correlation import pearson, spearman
    from xrep.metrics.geometry import alignment_loss, language_shares, uniformity_loss
    from xrep.metrics.mining import best_threshold, mining_scores
    from xrep.metrics.retrieval import mean_cosine, retrieval_accuracy
    from xrep.metrics.translation import bleu, chrf, multi_bleu

__all__ = [
    "alignment_loss",
    "best_threshold",
    "bleu",
    "chrf",
    "language_shares",
    "mean_cosine",
    "mining_scores",
    "multi_bleu",
    "pearson",
    "principal_components",
    "remove_components",
    "retrieval_accuracy",
    "spearman",
    "uniformity_loss",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "alignment_loss": "xrep.metrics.geometry",
        "best_threshold": "xrep.metrics.mining",
        "bleu": "xrep.metrics.translation",
        "chrf": "xrep.metrics.translation",
        "language_shares": "xrep.metrics.geometry",
        "mean_cosine": "xrep.metrics.retrieval",
        "mining_scores": "xrep.metrics.mining",
        "multi_bleu": "xrep.metrics.translation",
        "pearson": "xrep.metrics.correlation",
        "principal_components": "xrep.metrics.components",
        "remove_components": "xrep.metrics.components",
        "retrieval_accuracy": "xrep.metrics.retrieval",
        "spearman": "xrep.metrics.correlation",
        "uniformity_loss": "xrep.metrics.geometry",
    },
)

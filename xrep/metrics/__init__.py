"""Figures that evaluations report, computed from arrays or lines of text: each is of use without the rest of xrep."""

from xrep.metrics.components import principal_components, remove_components, whiten
from xrep.metrics.correlation import pearson, spearman
from xrep.metrics.extraction import best_threshold, mining_scores
from xrep.metrics.geometry import alignment_loss, language_shares, uniformity_loss
from xrep.metrics.retrieval import mean_cosine, retrieval_accuracy
from xrep.metrics.translation import bleu, chrf, multi_bleu

__all__ = [
    "alignment_loss", "best_threshold", "bleu", "chrf", "language_shares", "mean_cosine", "mining_scores", "multi_bleu",
    "pearson", "principal_components", "remove_components", "retrieval_accuracy", "spearman", "uniformity_loss",
    "whiten",
]  # fmt: skip

"""Labels of texts, tags of words and answers to questions: a plugin, which registers as those of others do.

``SentenceClassifier`` predicts with a trained classifier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xrep.understanding.sentence_classifier import SentenceClassifier

__all__ = ["SentenceClassifier"]


def __getattr__(name: str) -> Any:
    """Import the classifier when it is used, so that --help does not wait for torch."""
    if name != "SentenceClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from xrep.understanding.sentence_classifier import SentenceClassifier

    return SentenceClassifier

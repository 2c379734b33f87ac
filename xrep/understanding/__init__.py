"""Labels of texts, tags of words and answers to questions: a plugin, which is registered as third parties register
theirs.

``SentenceClassifier`` predicts with a trained classifier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrep.lazy import lazy_names

if TYPE_CHECKING:
    from xrep.understanding.sentence_classifier import SentenceClassifier

__all__ = ["SentenceClassifier"]
__getattr__ = lazy_names(__name__, {"SentenceClassifier": "xrep.understanding.sentence_classifier"})

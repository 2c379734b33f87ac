"""Train, evaluate and use cross-lingual sentence encoders.

``SentenceEncoder`` encodes sentences with any trained or pretrained encoder, ``SearchIndex`` searches sentences by
their meaning, ``Translator`` translates with a trained translator, ``SentenceClassifier`` predicts labels, tags and
answers. ``xrep.kernels`` has the losses and ``xrep.metrics`` the figures of evaluations, each of use alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrep.lazy import lazy_names

if TYPE_CHECKING:
    from xrep.inference.classifier import SentenceClassifier
    from xrep.inference.generation.translator import Translator
    from xrep.inference.search_index import SearchIndex
    from xrep.inference.sentence_encoder import SentenceEncoder

__version__ = "0.1.0"
__all__ = ["SearchIndex", "SentenceClassifier", "SentenceEncoder", "Translator", "__version__"]
__getattr__, _dir = lazy_names(
    __name__,
    {
        "SearchIndex": "xrep.inference.search_index",
        "SentenceClassifier": "xrep.inference.classifier",
        "SentenceEncoder": "xrep.inference.sentence_encoder",
        "Translator": "xrep.inference.generation.translator",
    },
)


def __dir__() -> list[str]:
    return [*globals(), *_dir()]

"""Train, evaluate and use cross-lingual sentence encoders.

``SentenceEncoder`` encodes sentences with any trained or pretrained encoder, ``SearchIndex`` searches sentences by
their meaning, ``Translator`` translates with a trained translator. ``xrep.kernels`` has the losses and ``xrep.metrics``
the figures of evaluations, each of use alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrep.lazy import lazy_names
from xrep.version import __version__

if TYPE_CHECKING:
    from xrep.inference.generation.translator import Translator
    from xrep.inference.search_index import SearchIndex
    from xrep.inference.sentence_encoder import SentenceEncoder

__all__ = ["SearchIndex", "SentenceEncoder", "Translator", "__version__"]
_MODULES = {  # imported when a name is used, so that --help does not wait for torch
    "SearchIndex": "xrep.inference.search_index",
    "SentenceEncoder": "xrep.inference.sentence_encoder",
    "Translator": "xrep.inference.generation.translator",
}
__getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]

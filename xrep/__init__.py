"""Train, evaluate and use cross-lingual sentence encoders.

``SentenceEncoder`` encodes sentences with any trained or pretrained encoder, ``SearchIndex`` searches sentences by
their meaning, ``Translator`` translates with a trained translator. ``xrep.kernels`` has the losses and ``xrep.metrics``
the figures of evaluations, each of use alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xrep.inference.generation.translator import Translator
    from xrep.inference.search_index import SearchIndex
    from xrep.inference.sentence_encoder import SentenceEncoder

__version__ = "0.1.0"
__all__ = ["SearchIndex", "SentenceEncoder", "Translator", "__version__"]
_MODULES = {  # imported when a name is used, so that --help does not wait for torch
    "SearchIndex": "xrep.inference.search_index",
    "SentenceEncoder": "xrep.inference.sentence_encoder",
    "Translator": "xrep.inference.generation.translator",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]

"""Translation with a trained translator: beam search, sampling, and files of any length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrep.lazy import lazy_names

if TYPE_CHECKING:
    from xrep.inference.generation.beam_search import search
    from xrep.inference.generation.hypotheses import Hypothesis
    from xrep.inference.generation.options import SearchOptions
    from xrep.inference.generation.translator import Translation, Translator

__all__ = ["Hypothesis", "SearchOptions", "Translation", "Translator", "search"]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Hypothesis": "xrep.inference.generation.hypotheses",
        "SearchOptions": "xrep.inference.generation.options",
        "Translation": "xrep.inference.generation.translator",
        "Translator": "xrep.inference.generation.translator",
        "search": "xrep.inference.generation.beam_search",
    },
)

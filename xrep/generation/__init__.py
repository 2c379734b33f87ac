"""Translation with a trained translator: beam search, sampling, and files of any length."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrep.generation.beam_search import search
    from xrep.generation.hypotheses import Hypothesis
    from xrep.generation.options import SearchOptions
    from xrep.generation.translator import Translation, Translator

__all__ = ["Hypothesis", "SearchOptions", "Translation", "Translator", "search"]
_MODULES = {
    "Hypothesis": "hypotheses",
    "SearchOptions": "options",
    "Translation": "translator",
    "Translator": "translator",
    "search": "beam_search",
}


def __getattr__(name: str):
    # Modules are imported at first use, so that the options (and a --help that prints them) do not wait for torch.
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

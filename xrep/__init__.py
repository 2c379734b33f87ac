"""Train, evaluate and use cross-lingual sentence encoders."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrep.sentence_encoder import SentenceEncoder

__version__ = "0.1.0"
__all__ = ["SentenceEncoder", "__version__"]


def __getattr__(name: str):
    # SentenceEncoder is imported on first use, so that ``import xrep`` (and every --help) does not wait for torch.
    if name == "SentenceEncoder":
        from xrep.sentence_encoder import SentenceEncoder

        return SentenceEncoder
    raise AttributeError(f"module 'xrep' has no attribute {name!r}")

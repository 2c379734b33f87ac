"""What an evaluation leaves behind: enough to tell two results apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import xrep
from xrep.evaluation.overlap import Overlap
from xrep.files import sha256_of


class Measured(Protocol):
    """A model that was measured: ``path`` is where it came from."""

    path: str

    def fingerprint(self) -> str:
        """Changes with what it computes."""
        ...


def make_result(
    test: str,
    values: Mapping[str, Any],
    *,
    headline: Mapping[str, float],
    encoder: Measured,
    data: Sequence[str | Path],
    settings: Mapping[str, Any],
    overlap: Overlap | None,
) -> dict[str, Any]:
    """A result as ``--json`` writes it.

    Args:
        test: name of the subcommand.
        values: what was measured, unrounded; JSON types only.
        headline: the few figures (name -> number) by which the test is quoted; ``xrep-eval all`` prints them.
        data: every file that was read.
        settings: what else the values depend on: split, languages, neighbours, seeds and the like.
        overlap: None for what is no test set.

    Returns:
        Keys ``test values headline model {path, fingerprint} data {file: sha256} settings version overlap``.
    """
    return {
        "test": test,
        "values": dict(values),
        "headline": dict(headline),
        "model": {"path": str(encoder.path), "fingerprint": encoder.fingerprint()},
        "data": {str(path): sha256_of(path) for path in data},
        "settings": dict(settings),
        "version": xrep.__version__,
        "overlap": overlap.as_dict() if overlap else None,
    }


def to_json(values: Mapping[str, Any]) -> str:
    """JSON text that ends with a newline.

    Raises:
        ValueError: a number that is not finite: JSON has none, so it is a measurement to explain, not to write.
    """
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

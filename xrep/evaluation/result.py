"""The record of an evaluation that is written as JSON, with everything that the result depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import xrep
from xrep.evaluation.overlap import Overlap
from xrep.files import sha256_of


class Measured(Protocol):
    """Protocol of models that were measured; ``path`` is where the model was loaded from."""

    path: str

    def fingerprint(self) -> str:
        """Return a digest that changes when the output of the model changes."""
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
    """Return a result in the form that ``--json`` writes.

    Args:
        test: Name of the subcommand.
        values: Measured values, unrounded; only JSON types.
        headline: The few figures (name -> number) by which the test is usually quoted; ``xrep-eval all`` prints them.
        encoder: The model that was measured.
        data: Every file that was read.
        settings: Everything else that the values depend on, such as split, languages, neighbours and seeds.
        overlap: Overlap with the training data; None if the data is not a test set.

    Returns:
        A dict with the keys ``test values headline model {path, fingerprint} data {file: sha256} settings version
        overlap``.
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
    """Return the values as JSON text that ends with a newline.

    Raises:
        ValueError: A number is not finite. JSON cannot represent it, and such a measurement needs an explanation.
    """
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

"""Output of the Tatoeba test: a table to read, values for JSON, and the vectors that were compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from xrep.evaluation import text_table
from xrep.evaluation.tatoeba import GROUPS, Pool, Results, average
from xrep.files import write_aside
from xrep.metrics.retrieval import Accuracy
from xrep.text.languages import name


def table(results: Results) -> str:
    """Return the table of results: one line per language, the averages and the overlap line, in percent."""
    header = ["language", "pairs", "xx-en", "en-xx", "mean"] + ["random"] * bool(results.random)
    rows = []
    for language in sorted(results.accuracies, key=name):
        random = [f"{results.random[language].mean:.2f}"] if results.random else []
        accuracy = _percents(results.accuracies[language])
        rows.append([f"{name(language)} ({language})", str(results.pairs[language]), *accuracy, *random])
    averages = [[f"mean of {len(rows)}", str(sum(results.pairs.values())), *_percents(results.mean)]]
    if results.random:
        averages[0].append(f"{average(results.random.values()).mean:.2f}")
    averages += [
        [f"average of {group}", "", *_percents(accuracy)] for group, accuracy in sorted(results.averages.items())
    ]
    return "\n".join([text_table.table(header, [*rows, [], *averages]), *_missing(results), results.overlap.line])


def _percents(accuracy: Accuracy) -> list[str]:
    return [f"{value:.2f}" for value in (accuracy.forward, accuracy.backward, accuracy.mean)]


def _missing(results: Results) -> list[str]:
    """Return a line that names the group averages that cannot be computed; an empty list if there are none."""
    parts = [f"{group} ({len(missing)} missing)" for group in sorted(GROUPS) if (missing := results.missing(group))]
    return [f"no average over {', '.join(parts)}: not all their languages were measured"] if parts else []


def values(results: Results) -> dict[str, Any]:
    """Return the results for JSON; every accuracy is an unrounded percentage.

    The keys are ``mean`` (over languages and both directions), ``random_mean`` (if measured), ``languages`` (canonical
    code -> ``xx-en``, ``en-xx``, ``mean``, ``pairs`` and, if measured, ``random_mean``), ``averages`` (``mean``, over
    all measured languages, and each complete group -> ``xx-en``, ``en-xx``, ``mean``) and ``pairs`` (total number of
    pairs measured).
    """
    languages: dict[str, dict[str, float]] = {}
    for language, accuracy in results.accuracies.items():
        languages[language] = {**_directions(accuracy), "pairs": results.pairs[language]}
        if results.random:
            languages[language]["random_mean"] = results.random[language].mean
    averages = {"mean": results.mean, **results.averages}
    return {
        "mean": results.mean.mean,
        **({"random_mean": average(results.random.values()).mean} if results.random else {}),
        "languages": languages,
        "averages": {group: _directions(accuracy) for group, accuracy in averages.items()},
        "pairs": sum(results.pairs.values()),
    }


def headline(results: Results) -> dict[str, float]:
    """Return the averages by which the test is usually quoted, in percent."""
    averages = {f"average of {group}": accuracy.mean for group, accuracy in sorted(results.averages.items())}
    return {f"mean of {len(results.accuracies)}": results.mean.mean, **averages}


def _directions(accuracy: Accuracy) -> dict[str, float]:
    return {"xx-en": accuracy.forward, "en-xx": accuracy.backward, "mean": accuracy.mean}


def save_embeddings(folder: str | Path, pool: Pool, vectors: np.ndarray, english: np.ndarray) -> None:
    """Write ``{xxx}.{xxx}.npy`` and ``{xxx}.eng.npy``: float32 [N, D], L2-normalised; row i translates row i."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    for side, array in ((pool.code, vectors), ("eng", english)):
        with write_aside(folder / f"{pool.code}.{side}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, array.astype(np.float32, copy=False), allow_pickle=False)

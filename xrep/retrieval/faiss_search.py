"""Search in the file of a faiss index, and its recall."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xrep.retrieval.faiss_files import PROBES, Shape, let_go, open_index
from xrep.retrieval.ivf import refine
from xrep.retrieval.topk import TopK
from xrep.retrieval.vectors import VectorFile

_PROPOSED = {"none": 1, "int8": 4, "binary": 32}
"""How many times k rows are compared again with the vectors themselves."""
_LEAST = 100
_MOST_PROPOSALS = 1 << 20
"""Number of rows that are proposed at a time, for all queries together."""
_BLOCK = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Recall:
    """The share of the ``k`` nearest vectors of some rows that are found among the first k: as a search answers, and as
    the index proposes them, without the comparison with the vectors themselves."""

    k: int
    queries: int
    recall: float
    not_rescored: float


def nearest(
    index: Any, shape: Shape, vectors: VectorFile, x_QD: np.ndarray, k: int, probes: int = PROBES
) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and the rows of the k nearest vectors of each query, nearest first: float32 and int64 [Q, k].

    Of equal cosines the lowest row comes first. Where an index finds fewer, the cosine is -inf and the row -1.

    Args:
        index: What ``open_index`` opened.
        x_QD: Queries of length 1, float32.
        probes: Number of inverted lists that are searched for each query.
    """
    wanted = min(shape.rows, k if _PROPOSED[shape.quantize] == 1 else max(_LEAST, _PROPOSED[shape.quantize] * k))
    best, step = TopK.none(len(x_QD), k), max(1, _MOST_PROPOSALS // wanted)
    for start in range(0, len(x_QD), step):
        some = x_QD[start : start + step]
        proposed_BP = propose(index, shape, some, wanted, probes)
        refine(best.slice(start, start + len(some)), some, vectors, np.maximum(proposed_BP, 0), proposed_BP)
    return best.similarity.numpy(), best.index.numpy()


def propose(index: Any, shape: Shape, x_BD: np.ndarray, wanted: int, probes: int = PROBES) -> np.ndarray:
    """Return the rows that the index finds, int64 [B, wanted], nearest first, and -1 where there is none."""
    if shape.cells:
        index.nprobe = min(probes, shape.cells)
    return index.search(shape.query(np.ascontiguousarray(x_BD)), wanted)[1]


def recall_of(path: Path, shape: Shape, vectors: VectorFile, k: int = 10, queries: int = 100) -> Recall | None:
    """Measure the recall of the index in a file, with rows as queries, drawn with a fixed seed, each of which is not
    its own neighbour; None if it has a single row. Of an index without inverted lists, memory holds the codes."""
    rows = np.sort(np.random.default_rng(0).choice(shape.rows, min(queries, shape.rows), replace=False, shuffle=False))
    k = min(k, shape.rows - 1)
    if not k:
        return None
    x_QD, exact = vectors.read(rows), TopK.none(len(rows), k + 1)
    for start in range(0, shape.rows, _BLOCK):
        products = torch.from_numpy(x_QD @ vectors.read(slice(start, min(start + _BLOCK, shape.rows))).T)
        top = products.topk(min(k + 1, products.size(1)))
        exact.merge(TopK(top.values, top.indices + start))
    answers = list[np.ndarray](), list[np.ndarray]()
    index = open_index(path, shape)
    for x_D in x_QD:
        answers[0].append(nearest(index, shape, vectors, x_D[None], k + 1)[1][0])
        answers[1].append(propose(index, shape, x_D[None], k + 1)[0])
        let_go(index, shape)
    shares = [_share(rows, exact.index.numpy(), np.stack(some), k) for some in answers]
    return Recall(k=k, queries=len(rows), recall=shares[0], not_rescored=shares[1])


def _share(rows_Q: np.ndarray, exact_QK: np.ndarray, found_QK: np.ndarray, k: int) -> float:
    """Return the share of the k rows, other than the query itself, that are among the k that were found."""
    shares = []
    for row, exact, found in zip(rows_Q.tolist(), exact_QK, found_QK, strict=True):
        first, second = ([other for other in some.tolist() if other != row][:k] for some in (exact, found))
        shares.append(len({*first} & {*second}) / k)
    return round(float(np.mean(shares)), 4)

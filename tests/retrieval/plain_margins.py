"""Mining as in the papers, with whole arrays, float64 and loops."""

import numpy as np


def scores(x: np.ndarray, y: np.ndarray, k: int, margin: str) -> np.ndarray:
    """Return the scores [N, M] of Artetxe and Schwenk (2019), section 3.1."""
    cosine = x.astype(np.float64) @ y.astype(np.float64).T
    mean_x = np.sort(cosine, axis=1)[:, -k:].mean(axis=1)[:, None]
    mean_y = np.sort(cosine, axis=0)[-k:].mean(axis=0)[None, :]
    around = (mean_x + mean_y) / 2
    return {"absolute": cosine, "distance": cosine - around, "ratio": cosine / around}[margin]


def pairs(x: np.ndarray, y: np.ndarray, k: int, margin: str, retrieval: str) -> dict[tuple[int, int], float]:
    """Return candidates and their scores, each source once. No two scores may be equal."""
    cosine, score = x.astype(np.float64) @ y.astype(np.float64).T, scores(x, y, k, margin)
    forward, backward = set(), set()
    for i in range(len(x)):
        near = np.argsort(-cosine[i], kind="stable")[:k]
        forward.add((i, int(near[np.argmax(score[i, near])])))
    for j in range(len(y)):
        near = np.argsort(-cosine[:, j], kind="stable")[:k]
        backward.add((int(near[np.argmax(score[near, j])]), j))
    sets = {"forward": forward, "backward": backward, "intersection": forward & backward, "max": forward | backward}
    best: dict[int, tuple[int, int]] = {}
    for pair in sets[retrieval]:
        if pair[0] not in best or score[pair] > score[best[pair[0]]]:
            best[pair[0]] = pair
    return {pair: float(score[pair]) for pair in best.values()}


def best_f1(found: dict[tuple[int, int], float], gold: set[tuple[int, int]]) -> tuple[float, float]:
    """Return (threshold, F1 in percent), the best over the midpoints of consecutive scores and the lowest score."""
    ordered = sorted(found.values(), reverse=True)
    middles = [(a + b) / 2 for a, b in zip(ordered, ordered[1:], strict=False) if a > b]
    best = (0.0, -1.0)
    for threshold in (*middles, ordered[-1]):
        best = max(best, (threshold, f1_at(found, gold, threshold)), key=lambda tried: tried[1])
    return best


def f1_at(found: dict[tuple[int, int], float], gold: set[tuple[int, int]], threshold: float) -> float:
    taken = {pair for pair, score in found.items() if score >= threshold}
    return 200 * len(taken & gold) / (len(taken) + len(gold))

"""The script that users of sentence-transformers write to mine pairs, which `mining.py` runs as a process.

It encodes both texts with the defaults of ``encode``, searches both directions with faiss's exact index, and scores
candidates by the ratio margin. It has no line of xrep in it.

  python benchmarks/mining_peer.py MODEL source.txt target.txt mined.tsv
"""

import sys

import numpy as np

NEIGHBOURS = 4


def read(path: str) -> list[str]:
    """Return the distinct lines of a text, in their order."""
    with open(path, encoding="utf-8") as file:
        return list(dict.fromkeys(line.strip() for line in file if line.strip()))


def search(queries: np.ndarray, side: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and rows of the nearest neighbours, [N, NEIGHBOURS] each."""
    import faiss

    index = faiss.IndexFlatIP(side.shape[1])
    index.add(side)
    return index.search(queries, NEIGHBOURS)


def main() -> None:
    model_path, source_path, target_path, output = sys.argv[1:]
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(model_path, device="cpu")
    sources, targets = read(source_path), read(target_path)
    x = model.encode(sources, normalize_embeddings=True, show_progress_bar=False)
    y = model.encode(targets, normalize_embeddings=True, show_progress_bar=False)
    x_cosines, x_rows = search(x, y)
    y_cosines, y_rows = search(y, x)

    x_mean, y_mean = x_cosines.mean(axis=1), y_cosines.mean(axis=1)
    x_scores = x_cosines / ((x_mean[:, None] + y_mean[x_rows]) / 2)
    y_scores = y_cosines / ((y_mean[:, None] + x_mean[y_rows]) / 2)
    x_best, y_best = x_scores.argmax(axis=1), y_scores.argmax(axis=1)
    every_x, every_y = np.arange(len(x)), np.arange(len(y))
    scores = np.concatenate([x_scores[every_x, x_best], y_scores[every_y, y_best]])
    source_rows = np.concatenate([every_x, y_rows[every_y, y_best]])
    target_rows = np.concatenate([x_rows[every_x, x_best], every_y])

    seen_sources, seen_targets = set[int](), set[int]()
    with open(output, "w", encoding="utf-8") as file:
        for number in np.argsort(-scores):
            source, target = int(source_rows[number]), int(target_rows[number])
            if source not in seen_sources and target not in seen_targets:
                seen_sources.add(source)
                seen_targets.add(target)
                file.write(f"{scores[number]:.4f}\t{sources[source]}\t{targets[target]}\n")


if __name__ == "__main__":
    main()

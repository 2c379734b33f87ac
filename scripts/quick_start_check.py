"""Compare the exported encoder of scripts/quick_start with the trained one, and print the run's two figures.

python scripts/quick_start_check.py RUN LANGUAGE TEXT
"""

import json
import sys
from pathlib import Path

import numpy as np

from xrep import SentenceEncoder


def main() -> int:
    from sentence_transformers import SentenceTransformer

    run, language, text = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    lines = text.read_text(encoding="utf-8").splitlines()[:1000]
    ours = SentenceEncoder.load(run / "encoder" / "best").encode(lines, lang=language)
    exported = SentenceTransformer(str(run / "sentence-transformers"), device="cpu")
    theirs = exported.encode(lines, task=language, normalize_embeddings=True)
    cosine = float((ours * theirs).sum(axis=1).min())
    print(f"sentence-transformers gives the same vectors: smallest cosine {cosine:.6f} of {len(lines):,} sentences")
    tatoeba = json.loads((run / "tatoeba.json").read_text(encoding="utf-8"))["headline"]
    mining = json.loads((run / "mining.json").read_text(encoding="utf-8"))["headline"]
    print(f"Tatoeba: {next(iter(tatoeba.values())):.1f}%    mining F1: {mining['mean F1']:.1f}%")
    return 0 if np.isclose(cosine, 1, atol=1e-4) else 1


if __name__ == "__main__":
    sys.exit(main())

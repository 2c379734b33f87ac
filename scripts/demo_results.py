"""Gathers the results of scripts/demo in RUN/results.json and prints the commands to try next.

RUN/tatoeba.json comes from ``xrep-eval tatoeba --random-baseline --json``, RUN/summary.json from ``xrep-train``.
"""

import json
import os
import sys
from pathlib import Path


def gather(run: Path) -> dict:
    """Return the demo's figures: accuracies in percent, pool sizes in sentence pairs, time in seconds."""
    tatoeba = json.loads((run / "tatoeba.json").read_text(encoding="utf-8"))
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    languages = tatoeba["values"]["tables"]
    figure = f"mean of {len(languages)}"
    return {
        "mean_accuracy": tatoeba["headline"][figure],
        "random_mean_accuracy": tatoeba["random_weights"]["headline"][figure]["by_seed"][0],
        "pool_sizes": {code: scores["examples"] for code, scores in languages.items()},
        "languages": {code: {way: scores[way] for way in ("xx-en", "en-xx")} for code, scores in languages.items()},
        "train_seconds": summary["train_seconds"],
    }


def main() -> None:
    run, test_sets = Path(sys.argv[1]), sys.argv[2]
    results = gather(run)
    aside = run / ".results.json.tmp"
    aside.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    os.replace(aside, run / "results.json")
    print(
        f"""
{results["mean_accuracy"]:.1f}% of the translations found among {min(results["pool_sizes"].values())}-\
{max(results["pool_sizes"].values())} sentences (random weights: {results["random_mean_accuracy"]:.1f}%), \
after {results["train_seconds"]:.0f} s of training
encoder: {run / "best"}    figures: {run / "results.json"}

Next:
  source .venv/bin/activate
  xrep-eval tatoeba --path {run / "best"} --data {test_sets} --langs de,fr
  xrep-train corpus/ --task bitext --criterion dual_moco --save-dir runs/mine    # corpus/train.de-en.tsv, ..."""
    )


if __name__ == "__main__":
    main()

"""Measure and draw how accurate encoders are by the processor time of their training, on the demo corpus.

  python examples/moco_bert/learning_curve.py measure --output learning_curve     # appends to learning_curve.csv
  python examples/moco_bert/learning_curve.py draw docs/images/learning-curve.svg

Each point is a run of its own, whose learning rate falls to its end. The arms have one architecture, tokenizer, text,
batch size and number of threads. Processor time is that of the training itself, without imports and without making
the vocabulary. Accuracy is that of ``xrep-eval tatoeba`` on the test of the demo corpus: the mean over nine languages
and both directions. The learning rate of each arm is the best of four on held-out training pairs at 800 steps.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from xrep.text.demo_corpus import LANGUAGES
from xrep.text.resources import find_resource

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "learning_curve.csv"
COLUMNS = ["arm", "lr", "steps", "seed", "seconds", "accuracy"]
LABELS = {
    "dual_moco": "xrep, dual_moco",
    "translation_ranking": "xrep, translation_ranking",
    "multiple_negatives": "sentence-transformers",
}
STEPS = {
    "dual_moco": [200, 400, 800, 1600, 3200],
    "translation_ranking": [200, 400, 800, 1600, 3200],
    "multiple_negatives": [100, 200, 400, 800, 1600],
}
RATES, MIDDLE = [1e-3, 2e-3, 3e-3, 5e-3], 800
XREP = "--task bitext --mask-equal-sentences trainer.validate_every=0 --save-every 0 --keep-last 1"


def demo_pairs() -> list[str]:
    """Return the training text of the demo corpus as it is given to ``--bitext``."""
    folder = find_resource("demo").get()
    names = {code: folder / f"train.{code}-en" for code in LANGUAGES}
    return [f"{code}-en={name}.{code},{name}.en" for code, name in names.items()]


def train(arm: str, lr: float, steps: int, seed: int, output: Path) -> float:
    """Train one run and return the seconds of processor time that it took; ``output/model`` is the encoder."""
    if arm == "multiple_negatives":
        from multiple_negatives import accuracy, read
        from multiple_negatives import train as train_peer

        pairs, dev = read(demo_pairs())
        begin = time.process_time()
        model = train_peer(output.parent / "shape", lr, steps, seed, pairs)
        spent = time.process_time() - begin
        model.save(str(output / "model"))
        (output / "dev.json").write_text(json.dumps(accuracy(model, dev)))
        return spent
    from xrep_cli.train import main

    options = [*XREP.split(), "--criterion", arm, "--seed", str(seed), "--max-steps", str(steps)]
    begin = time.process_time()
    if main([*options, f"optimizer.lr={lr}", "--save-dir", str(output)]):
        raise SystemExit(f"{arm} could not be trained")
    return time.process_time() - begin


def run(arm: str, lr: float, steps: int, seed: int, folder: Path) -> tuple[float, float, float]:
    """Train and measure in processes of their own. Return the seconds, the accuracy on held-out training pairs and that
    on the test."""
    output = folder / f"{arm}-{lr:g}-{steps}-{seed}"
    shutil.rmtree(output, ignore_errors=True)  # training that goes on from there would seem to take no time
    words = [sys.executable, __file__, "train", arm, str(lr), str(steps), str(seed), str(output)]
    seconds = float(subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    if (summary := output / "summary.json").exists():
        dev, model = json.loads(summary.read_text())["best"]["value"], output / "best"
    else:
        dev, model = json.loads((output / "dev.json").read_text()), output / "model"
    report = output / "tatoeba.json"
    data = find_resource("demo").get() / "test"
    words = ["xrep-eval", "tatoeba", "--path", str(model), "--data", str(data), "--json", str(report)]
    subprocess.run(words, check=True, capture_output=True)
    (accuracy,) = json.loads(report.read_text())["headline"].values()
    return seconds, dev, accuracy


def measure(folder: Path, seeds: int) -> None:
    """Search the rates, then run every arm; what is in the table already is not measured again."""
    os.environ["OMP_NUM_THREADS"] = "1"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "shape").exists():
        one = folder / "one"
        words = ["xrep-train", *XREP.split(), "--criterion", "dual_moco", "--max-steps", "1"]
        subprocess.run([*words, "--save-dir", str(one)], check=True)
        words = ["xrep-export", "--path", str(one / "best"), "--output", str(folder / "shape")]
        subprocess.run(words, check=True)
    rows = read_figures()
    if not rows:
        FIGURES.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    chosen = {row["arm"]: float(row["lr"]) for row in rows}
    for arm in STEPS:
        chosen.setdefault(arm, max(RATES, key=lambda lr, arm=arm: run(arm, lr, MIDDLE, 0, folder)[1]))
    for seed in range(1, seeds + 1):
        for arm, lr in chosen.items():
            for steps in STEPS[arm]:
                if not any((row["arm"], row["steps"], row["seed"]) == (arm, str(steps), str(seed)) for row in rows):
                    seconds, _, accuracy = run(arm, lr, steps, seed, folder)
                    line = f"{arm},{lr:g},{steps},{seed},{seconds:.2f},{accuracy:.2f}\n"
                    print(line, end="", flush=True)
                    with FIGURES.open("a", encoding="utf-8") as table:
                        table.write(line)


def read_figures() -> list[dict[str, str]]:
    if not FIGURES.exists():
        return []
    with FIGURES.open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table))


def draw(output: Path) -> None:
    """Draw the mean over seeds, with the range of the seeds, by seconds of processor time."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.hashsalt": "xrep", "svg.fonttype": "none", "font.size": 11})
    figure, axes = pyplot.subplots(figsize=(7, 3.6))
    rows = read_figures()
    for arm, label in LABELS.items():
        points = []
        for steps in STEPS[arm]:
            own = [row for row in rows if row["arm"] == arm and row["steps"] == str(steps)]
            values = [float(row["accuracy"]) for row in own]
            if own:
                seconds = statistics.fmean(float(row["seconds"]) for row in own)
                points.append((seconds, statistics.fmean(values), min(values), max(values)))
        seconds, mean, low, high = zip(*points, strict=True)
        (line,) = axes.plot(seconds, mean, marker="o", markersize=4, label=label)
        axes.fill_between(seconds, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xscale("log")
    axes.set_xticks([20, 40, 80, 160, 320], labels=["20", "40", "80", "160", "320"])
    axes.minorticks_off()
    axes.set_xlim(13, 360)
    axes.set_xlabel("seconds of training (processor time of one core)")
    axes.set_ylabel("accuracy of retrieval, %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="train and measure what the table does not have yet")
    measuring.add_argument("--output", type=Path, default=Path("runs/learning_curve"), help="folder of the runs")
    measuring.add_argument("--seeds", type=int, default=3)
    drawing = commands.add_parser("draw", help="draw the table")
    drawing.add_argument("output", type=Path, help="file of the picture (.svg)")
    training = commands.add_parser("train", help="train one run, which measure does in a process of its own")
    for name, kind in {"arm": str, "lr": float, "steps": int, "seed": int, "output": Path}.items():
        training.add_argument(name, type=kind)
    options = vars(parser.parse_args())
    command = options.pop("command")
    if command == "train":
        print(train(**options))
    elif command == "measure":
        measure(options["output"], options["seeds"])
    else:
        draw(options["output"])


if __name__ == "__main__":
    main()

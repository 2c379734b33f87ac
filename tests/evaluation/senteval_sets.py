"""Small sets in the published layouts of SentEval, and its classifier with torch's own layer, loss and Adam."""

import copy
import random
from pathlib import Path

import numpy as np
import torch

from tests.evaluation.conftest import write
from xrep.evaluation.senteval.linear_probe import Fold

GOOD = "gripping moving lovely brilliant tender joyful"
BAD = "tedious clumsy dreary hollow stale shrill"
OTHER = "the a this film story plot cast ending scene script seems feels remains is and but with"
"""A few words in each sentence indicate its class."""
QUESTIONS = {
    "NUM:count": "how many", "LOC:city": "what city", "HUM:ind": "who", "DESC:def": "why does", "ABBR:exp": "short",
    "ENTY:animal": "which animal",
}  # fmt: skip


def sentence(generator: random.Random, cues: str, noise: float = 0.1) -> str:
    """Return four to ten words, two of which indicate the class, or with probability ``noise`` the other class."""
    if generator.random() < noise and cues in (GOOD, BAD):
        cues = BAD if cues == GOOD else GOOD
    words = generator.choices(OTHER.split(), k=generator.randint(2, 8)) + generator.choices(cues.split(), k=2)
    generator.shuffle(words)
    return " ".join(words)


def write_sets(folder: Path, size: int = 60, seed: int = 0) -> Path:
    """Write all ten sets in the folders of SentEval's download, with ``size`` sentences for each class and split."""
    generator = random.Random(seed)
    names = {"MR": "rt-polarity.neg/pos", "CR": "custrev.neg/pos", "SUBJ": "subj.subjective/objective"}
    for name, files in {**names, "MPQA": "mpqa.neg/pos"}.items():
        stem, _, endings = files.partition(".")
        for ending, cues in zip(endings.split("/"), (BAD, GOOD), strict=True):
            write(folder / name / f"{stem}.{ending}", [sentence(generator, cues) for _ in range(size)])
    for part in ("train", "dev", "test"):
        labelled = [(label, sentence(generator, (BAD, GOOD)[label])) for label in (0, 1) for _ in range(size)]
        write(folder / "SST" / "binary" / f"sentiment-{part}", [f"{text}\t{label}" for label, text in labelled])
        stars = [(label, sentence(generator, f"{label}stars")) for label in range(5) for _ in range(size // 5)]
        write(folder / "SST" / "fine" / f"sentiment-{part}", [f"{text}\t{label}" for label, text in stars])
    for file in ("train_5500.label", "TREC_10.label"):
        cues = [pair for pair in QUESTIONS.items() for _ in range(size // 2)]
        lines = [f"{label} {cue} {sentence(generator, OTHER)} ?" for label, cue in cues]
        write(folder / "TREC" / file, lines)
    for part in ("train", "test"):
        rows = ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        for number in range(2 * size):
            first = sentence(generator, GOOD)
            second = first if number % 2 or generator.random() < 0.2 else sentence(generator, BAD)
            rows.append(f'{number % 2}\t{number}\t{number}\t"{first}, he said.\t{second}')
        write(folder / "MRPC" / f"msr_paraphrase_{part}.txt", rows)
    for file, ending in (("SICK_train", "\n"), ("SICK_trial", "\n"), ("SICK_test_annotated", "\r\n")):
        rows = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
        for number in range(size):
            first = sentence(generator, GOOD).split()
            same = generator.randint(0, 8)
            second = first[:same] + sentence(generator, BAD).split()[same:]
            label = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")[min(2, same // 3)]
            rows.append(f"{number}\t{' '.join(first)}\t{' '.join(second)}\t{1 + same / 2}\t{label}")
        write(folder / "SICK" / f"{file}.txt", rows, ending)
    return folder


def alone(
    x: np.ndarray, y: np.ndarray, fold: Fold, decay: float, seed: int, epochs=4, tenacity=5, maximum=200
) -> tuple[torch.nn.Linear, float, int]:
    """Train one classifier on the rows as SentEval does; return it, its accuracy on dev and the number of epochs."""
    (rows, dev), order, inputs, targets = fold, np.random.RandomState(seed), torch.from_numpy(x), torch.from_numpy(y)
    if dev is None:
        mixed, held = order.permutation(rows), len(rows) // 20
        rows, dev = mixed[held:], mixed[:held]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = torch.nn.Linear(x.shape[1], int(y.max()) + 1)
    optimizer = torch.optim.Adam(layer.parameters(), weight_decay=decay)
    best, kept, misses, done = -1.0, copy.deepcopy(layer), 0, 0
    while done <= maximum:
        for _ in range(epochs):
            for batch in torch.from_numpy(order.permutation(rows)).split(64):
                loss = torch.nn.functional.cross_entropy(layer(inputs[batch]), targets[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        done += epochs
        score = (layer(inputs[dev]).argmax(1) == targets[dev]).double().mean().item()
        if score > best:
            best, kept = score, copy.deepcopy(layer)
        elif misses >= tenacity:
            break
        else:
            misses += 1
    return kept, best, done

"""From two texts to mined pairs: xrep-mine beside the script that users of sentence-transformers write.

  python benchmarks/bitext_mining.py --path $(xrep-data get minilm --print-path) --lines 20000 --threads 2 \\
      --pairs deu-eng.tsv fra-eng.tsv spa-eng.tsv

The texts are made of parallel text whose first sentence in each line is English. Sentences that share a translation, or
differ in nothing but case, spaces and marks, have one meaning. A fifth of the lines of each text are planted: two
sentences of one language and one meaning, of which the source has the one and the target the other. The others are
sentences of further meanings, all sentences of a meaning on the same side. So the pairs to find are paraphrases, which
an English encoder finds, too, and no two other lines of the texts are known to mean the same. F1 is that of all pairs
above the best threshold, each line being in one pair at most.

Each contestant is a process of its own, from its start to its last pair, and they take turns, after a round on a small
text. The other one (`bitext_mining_peer.py`) encodes with sentence-transformers' defaults, searches both directions
with IndexFlatIP of faiss and chooses pairs as ours does. Memory is the peak of a process. The second speed, that
of the last round, counts the time on processors, which other programs disturb less.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from harness import make_parser, markdown_table, take_turns, write_json

import xrep_cli
from xrep.errors import UserError
from xrep_cli.command import console_script

MINE, PEER = Path(xrep_cli.__file__).with_name("mine.py"), Path(__file__).with_name("bitext_mining_peer.py")
MEASURE = """
import atexit, re, runpy, sys, time
# Not ru_maxrss, in which Linux includes the memory of the parent process.
status = lambda: open("/proc/self/status").read()
atexit.register(lambda: print(re.search(r"VmHWM:\\s*(\\d+)", status())[1], time.process_time()))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
PLANTED = 5
"""One line in so many is planted."""
WARM_UP_LINES = 500

Meaning = dict[str, list[str]]
"""Sentences that mean the same, by language."""


def read_meanings(paths: Sequence[str]) -> list[Meaning]:
    """Return the meanings of lines ``English<TAB>translation``; the beginning of a file's name is its language."""
    parent, language = dict[str, str](), dict[str, str]()

    def root(sentence: str) -> str:
        while parent.setdefault(sentence, sentence) != sentence:
            parent[sentence] = sentence = parent[parent[sentence]]
        return sentence

    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                english, other = (sentence.strip() for sentence in line.split("\t")[:2])
                language[english] = "eng"
                language.setdefault(other, Path(path).name[:3])
                for sentence in (english, other):
                    parent[root(sentence)] = root("\t" + letters(sentence))
                parent[root(english)] = root(other)
    meanings = defaultdict[str, Meaning](lambda: defaultdict(list))
    for sentence, lang in language.items():
        meanings[root(sentence)][lang].append(sentence)
    return list(meanings.values())


def letters(sentence: str) -> str:
    return "".join(filter(str.isalnum, sentence.casefold()))


def paraphrases(meaning: Meaning) -> list[str]:
    """Return the sentences of the first language that has two with different letters, one of each; else none."""
    found = ({letters(sentence): sentence for sentence in sentences} for sentences in meaning.values())
    return next((list(different.values()) for different in found if len(different) > 1), [])


def make_texts(meanings: Sequence[Meaning], lines: int, seed: int) -> tuple[list[str], list[str], dict[str, str]]:
    """Return source, target, and the target of each source that is planted. A UserError says that there are too few."""
    draw, planted, others = random.Random(seed), dict[str, str](), list[list[str]]()
    for meaning in draw.sample(meanings, len(meanings)):
        same = paraphrases(meaning)
        if same and len(planted) < lines // PLANTED:
            source, target = draw.sample(same, 2)
            planted[source] = target
        else:
            others.append([sentence for sentences in meaning.values() for sentence in sentences])
    sides = list(planted), list(planted.values())
    for sentences in others:
        min(sides, key=len).extend(sentences)
    if len(planted) < lines // PLANTED or min(map(len, sides)) < lines:
        raise UserError(f"too few sentences for {lines} lines a side", cure="give more --pairs or fewer --lines")
    source, target = (draw.sample(side[:lines], lines) for side in sides)
    return source, target, planted


def f1(mined: Path, planted: dict[str, str]) -> float:
    """Return F1 with the best threshold, in percent."""
    import numpy as np

    from xrep.metrics.extraction import best_threshold

    with mined.open(encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    right = np.array([planted.get(source) == target for _, source, target in rows])
    return best_threshold(np.array([float(row[0]) for row in rows]), right, len(planted))[1].f1


def run(
    line: Callable[[str, str, str], list[str]], python: str, threads: int, folder: Path
) -> tuple[Path, float, float]:
    """Mine the texts of a folder in a new process; return the pairs' file, the peak memory in MB and processor time."""
    output = folder / f"{len(list(folder.iterdir()))}.tsv"
    command = [python, "-c", MEASURE, *line(str(folder / "source"), str(folder / "target"), str(output))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    peak, seconds = done.stdout.split()[-2:]
    return output, int(peak) / 1024, float(seconds)


def ours(path: str, precision: str, source: str, target: str, output: str) -> list[str]:
    texts = ["--source", source, "--target", target, "--output", output]
    return [str(MINE), "--path", path, *texts, "--one-to-one", "--precision", precision, "--device", "cpu"]


def peer(path: str, *texts: str) -> list[str]:
    return [str(PEER), path, *texts]


def main_script(argv: Sequence[str]) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--path", required=True, help="a sentence-transformers directory, such as minilm's")
    add("--pairs", required=True, nargs="+", metavar="FILE", help="lines English<TAB>translation, as deu-eng.tsv has")
    add("--lines", type=int, default=20_000, help="lines of each text")
    add("--precisions", nargs="+", default=["float32", "bfloat16", "int8"], help="precisions of ours")
    add("--repeats", type=int, default=3, help="rounds after the warm-up")
    add("--threads", type=int, default=os.cpu_count(), help="threads of each process")
    add("--peer-python", default=sys.executable, help="Python that has sentence-transformers and faiss")
    options = parser.parse_args(argv)
    commands = {"sentence-transformers, faiss": (partial(peer, options.path), options.peer_python)}
    for precision in options.precisions:
        commands[f"xrep-mine, {precision}"] = partial(ours, options.path, precision), sys.executable
    contestants = {name: partial(run, *command, options.threads) for name, command in commands.items()}
    figures = dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory() as name:
        folders, planted = [Path(name) / "warm-up", Path(name) / "texts"], dict[str, str]()
        meanings = read_meanings(options.pairs)
        for folder, lines in zip(folders, (min(WARM_UP_LINES, options.lines), options.lines), strict=True):
            folder.mkdir()
            *texts, planted = make_texts(meanings, lines, seed=0)
            for side, text in zip(("source", "target"), texts, strict=True):
                (folder / side).write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
        turns = take_turns(contestants, [folders[0]] + [folders[1]] * options.repeats, verbose=True)
        medians, first = turns.medians(), next(iter(contestants))
        for name, (mined, peak, seconds) in turns.results.items():
            speed, work = medians[first] / medians[name], turns.results[first][2] / seconds
            figures[name] = {"speed": speed, "by_processor_time": work, "f1": f1(mined, planted), "peak_mb": peak}
    print(f"{options.lines} lines a side, {options.threads} threads; speeds are over that of the first")
    head = ["two texts to pairs", "speed", "by processor time", "F1", "peak MB"]
    rows = [[name, *(f"{number:.2f}" for number in row.values())] for name, row in figures.items()]
    print("\n".join(markdown_table([head, *rows])))
    write_json(options.json, {"lines": options.lines, "rounds": turns.seconds, "figures": figures})


main = console_script("benchmarks/bitext_mining.py")(main_script)

if __name__ == "__main__":
    sys.exit(main())

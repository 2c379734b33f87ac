"""The table of XTREME: which task is measured by which run, and how its score is made."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from tests.evaluation.conftest import write, write_tatoeba
from tests.retrieval import plain_margins
from tests.support.annotated import CITIES, sentences, write_pairs, write_questions
from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.understanding.test_figures import plain_lenient
from tests.understanding.test_figures import scores as entity_scores
from xrep.errors import UserError
from xrep.evaluation.xtreme import parse_runs
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.kernels.precision import multiplies_bfloat16
from xrep.understanding.sentence_classifier import SentenceClassifier
from xrep_cli import train


def test_runs_are_named_by_task() -> None:
    assert parse_runs("xnli=a/best, qa=b/best") == {
        "xnli": "a/best", "xquad": "b/best", "mlqa": "b/best", "tydiqa": "b/best"
    }  # fmt: skip
    for wrong in ("xnli", "xnli=", "tatoeba=a", "sts=a"):
        with pytest.raises(UserError, match="the tasks are xnli, pawsx, pos, ner, xquad, mlqa, tydiqa"):
            parse_runs(wrong)


def alike(count: int, seed: int) -> list[tuple[str, str]]:
    """Return sentences, and their first halves with words behind them, of which random weights find some."""
    return [(a, f"{a[: len(a) // 2]} {b[: len(b) // 2]}") for a, b in sentence_pairs(count, seed)]


def write_bucc(folder: Path, split: str, seed: int) -> None:
    """Write 30 gold pairs among 50 sentences a side; one German sentence of a gold pair occurs twice."""
    pairs = [(f"{a} {n}", f"{b} {n}") for n, (a, b) in enumerate(alike(70, seed), start=100 * seed)]
    sides = [pair[0] for pair in pairs[:50]], [pair[1] for pair in pairs[:30] + pairs[50:]]
    sides[0].append(sides[0][3])
    for language, side in zip(("de", "en"), sides, strict=True):
        write(folder / f"de-en.{split}.{language}", [f"{language}-{row}\t{text}" for row, text in enumerate(side)])
    gold = [(row, row) for row in range(30)] + [(50, 3)]
    write(folder / f"de-en.{split}.gold", [f"de-{a}\ten-{b}" for a, b in gold])


def read_columns(file: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in file.read_text(encoding="utf-8").splitlines()]


def plain_bucc(folder: Path, split: str, encoder: SentenceEncoder) -> tuple[dict[tuple[int, int], float], set]:
    """Mine as XTREME does, in loops: candidates of both directions by ratio margin, each sentence once, and none that
    occurs twice. Also return the gold pairs, of which each line counts."""
    vectors, ids, once = [], [], []
    for language in ("de", "en"):
        rows = read_columns(folder / f"de-en.{split}.{language}")
        distinct = list(dict.fromkeys(sentence for _, sentence in rows))
        vectors.append(encoder.encode(distinct, language).astype(np.float64))
        ids.append({name: distinct.index(sentence) for name, sentence in rows})
        once.append([sum(sentence == other for _, other in rows) == 1 for sentence in distinct])
    x, y = vectors
    score = plain_margins.pairs(x, y, 4, "ratio", "forward")
    score |= {(i, j): value for (j, i), value in plain_margins.pairs(y, x, 4, "ratio", "forward").items()}
    found, sources, targets = {}, set(), set()
    for i, j in sorted(score, key=lambda pair: -score[pair]):
        if i not in sources and j not in targets:
            sources.add(i)
            targets.add(j)
            if once[0][i] and once[1][j]:
                found[i, j] = score[i, j]
    lines = read_columns(folder / f"de-en.{split}.gold")
    gold = {(ids[0][a], ids[1][b]) for a, b in lines}
    return found, gold | {(-line, -1) for line in range(1, len(lines) - len(gold) + 1)}


@pytest.mark.slow
def test_retrieval_is_scored_as_by_xtreme(tmp_path: Path, cli: Commands) -> None:
    """Tatoeba has English queries and XTREME's languages alone; BUCC measures the training part with the threshold of
    the sample, one-to-one, and finds no sentence that occurs twice. Overlap and intervals are those of the tests."""
    path, data, right, both = write_encoder(tmp_path / "encoder", size=64), tmp_path / "xtreme", [], []
    encoder = SentenceEncoder.load(path)
    for seed, code in enumerate(("deu", "fra", "lat")):
        write_tatoeba(data / "tatoeba", code, alike(60, seed))
        german, english = zip(*alike(60, seed), strict=True)
        cosine = encoder.encode(english, "en") @ encoder.encode(german, "de").T
        if code != "lat":
            right.append(100 * float(np.mean(cosine.argmax(axis=1) == np.arange(60))))
            both.append((right[-1] + 100 * float(np.mean(cosine.argmax(axis=0) == np.arange(60)))) / 2)
    for seed, split in enumerate(("sample", "training", "test"), start=1):
        write_bucc(data / "bucc2018", split, seed)
    line = ["--data", data, "--retrieval", path, "--json", "out.json", "--resamples", "drawn.json"]
    table = cli("eval", "xtreme", *line).out
    missing = "not measured, without data or a run: xnli, pawsx, pos, ner, xquad, mlqa, tydiqa"
    assert missing in table and "average" not in table
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    results, tasks = found["values"]["results"], found["values"]["tasks"]
    assert tasks["tatoeba"] == pytest.approx(np.mean(right)) != pytest.approx(np.mean(both))
    threshold, _ = plain_margins.best_f1(*plain_bucc(data / "bucc2018", "sample", encoder))
    expected = plain_margins.f1_at(*plain_bucc(data / "bucc2018", "training", encoder), threshold)
    assert expected > 0 and tasks["bucc"] == pytest.approx(expected)
    assert results["bucc"]["values"]["tables"]["de-en"]["gold"] == 31 and results["tatoeba"]["overlap"]["total"] == 120
    assert all(text in table for text in ("2 of 36", "1 of 4", "unknown of 120", "overlap: unknown"))
    assert found["overlap"] == {"found": None, "total": 151, "dropped": False}
    drawn = json.loads((tmp_path / "drawn.json").read_text("utf-8"))
    assert set(drawn) == set(found["intervals"]) == {"bucc", "tatoeba"}
    for task, span in found["intervals"].items():
        assert span == pytest.approx(np.percentile(drawn[task], [2.5, 97.5])) and span[0] < span[1]
        assert f"{task}: 95% interval {span[0]:.2f} to {span[1]:.2f}" in table
        assert list(results[task]["intervals"].values()) == [span]


# -- classifiers ------------------------------------------------------------------------------------------------------


def run_training(data: Path, task: str, criterion: str, *more: str) -> Path:
    options = (
        "--layers 1 --hidden-size 48 --heads 4 --feedforward-size 96 --max-positions 64 --vocab-size 50 --languages de "
        "--max-length 48 --batch-size 32 --lr 5e-3 --warmup-steps 5 --dropout 0 --attention-dropout 0 --device cpu "
        "--no-tensorboard --max-steps 15 --validate-every 15"
    ).split()
    run = data.parent.parent / f"run_{data.name}"
    line = [str(data), "--task", task, "--criterion", criterion, "--save-dir", str(run), *options, *more]
    assert train.main(line) == 0
    return run / "best"


KINDS = dict.fromkeys(("der", "die", "ein", "dem"), "DET") | dict.fromkeys(("auf", "im", "bei", "am"), "ADP")


def write_tagged(folder: Path, task: str) -> Path:
    """Write German words with their parts of speech as CoNLL-U, or, for ``ner``, with two-word entities as table."""
    texts = []
    for sentence, verb, city in sentences():
        words = sentence.split()
        place, lines = words.index(city), []
        for n, word in enumerate(words):
            if task == "pos":
                tag = {**KINDS, "mein": "PRON", verb: "VERB", city: "PROPN"}.get(word, "NOUN")
                lines.append("\t".join((str(n + 1), word, "_", tag, *"______")))
            else:
                tag = f"{'BI'[n - place]}-{CITIES[city]}" if n - place in (0, 1) else "O"
                lines.append(f"{word}\t{tag}")
        texts.append("".join(f"{line}\n" for line in lines))
    name = "de_small-ud-{}.conllu" if task == "pos" else "{}-de.tsv"
    for split, some in {"train": texts[::2], "dev": texts[1::4], "test": texts[3::4]}.items():
        write(folder / name.format(split), some)
    return folder


def gold_and_found(data: Path, file: str, run: Path) -> tuple[list[list[str]], list[list[str]]]:
    rows = [block.splitlines() for block in (data / file).read_text("utf-8").strip().split("\n\n")]
    word, tag = (1, 3) if file.endswith("conllu") else (0, 1)
    words, gold = ([[line.split("\t")[column] for line in block] for block in rows] for column in (word, tag))
    return gold, SentenceClassifier.load(run).tag(words)


@pytest.mark.slow
def test_all_nine_tasks(tmp_path: Path, shared_encoder: Path, cli: Commands) -> None:
    """Taggers are scored by seqeval's default, which ``xrep-eval pos`` and ``ner`` print beside their own figures.
    ``--batch-tokens`` and ``--precision`` are those of the encoder and of the classifiers."""
    root, seen = tmp_path / "xtreme", list[tuple[int, int, torch.dtype]]()
    for code in ("deu", "fra"):
        write_tatoeba(root / "tatoeba", code, alike(60, len(code)))
    for seed, split in enumerate(("dev", "test"), start=1):
        write_bucc(root / "bucc2018", split, seed)
    parts, entities = write_tagged(root / "udpos", "pos"), write_tagged(root / "panx", "ner")
    for task in ("xnli", "pawsx"):
        write_pairs(root / task)
    for task in ("xquad", "mlqa", "tydiqa"):
        write_questions(root / task)
    for split in ("train", "dev", "test"):  # German is not a language of TyDiQA
        (root / "tydiqa" / f"{split}-de.json").rename(root / "tydiqa" / f"{split}-fi.json")
    runs = {
        "xnli": run_training(root / "xnli", "classification", "classification", "--vocab-size", "35"),
        "pos": run_training(parts, "tagging", "tagging", "--max-steps", "3"),
        "ner": run_training(entities, "tagging", "tagging", "--max-steps", "14"),
        "qa": run_training(root / "xquad", "question_answering", "span"),
    }
    paths = ",".join([*(f"{task}={run}" for task, run in runs.items()), f"pawsx={runs['xnli']}"])
    line = ["xtreme", "--data", root, "--retrieval", shared_encoder]
    text = cli("eval", *line, "--paths", paths, "--json", "out.json", "--resamples", "drawn.json").out

    def record(module: torch.nn.Module, given: tuple, result: object) -> None:
        if type(module).__name__ == "TransformerEncoder":
            seen.append((module.shape.hidden_size, given[0].tokens.numel(), next(module.parameters()).dtype))

    with register_module_forward_hook(record):
        more = ["--paths", f"xnli={runs['xnli']}", "--batch-tokens", 64, "--precision", "bf16"]
        assert cli("eval", *line, *more).code == 0
    widths, sizes, types = map(set, zip(*seen, strict=True))
    assert widths == {16, 48} and max(sizes) <= 64
    assert types == {torch.bfloat16 if multiplies_bfloat16() else torch.float32}

    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    values, scores = found["values"], found["values"]["tasks"]
    average = found["headline"]["average"]
    assert len(scores) == 9 and average == pytest.approx(np.mean(list(scores.values())))
    assert found["headline"] == {**scores, "average": average}
    assert set(found["intervals"]) == set(found["headline"]) and "average: 95% interval" in text
    drawn = json.loads((tmp_path / "drawn.json").read_text("utf-8"))
    assert drawn["average"] == pytest.approx(np.mean([drawn[task] for task in scores], axis=0))
    assert values["results"]["xnli"]["overlap"]["found"] == 64 and "64 of 64" in text
    for task, data, file in (("pos", parts, "de_small-ud-test.conllu"), ("ner", entities, "test-de.tsv")):
        gold, tags = gold_and_found(data, file, runs[task])
        wanted, ours = plain_lenient(gold), plain_lenient(tags)
        lenient = 200 * len(wanted & ours) / (len(wanted) + len(ours))
        assert 0 < lenient < 100 and scores[task] == pytest.approx(lenient)
        table = cli("eval", task, "--path", runs[task], "--data", data, "--json", "one.json").out
        headline = json.loads((tmp_path / "one.json").read_text("utf-8"))["headline"]
        same = [one == other for row in zip(gold, tags, strict=True) for one, other in zip(*row, strict=True)]
        own = 100 * np.mean(same) if task == "pos" else entity_scores(gold, tags)[2]
        name = "accuracy" if task == "pos" else "f1"
        assert headline == pytest.approx({f"{name}, mean of 1": own, "xtreme f1, mean of 1": lenient})
        assert own != pytest.approx(lenient)
        assert f"{own:.2f}" in table and "xtreme f1" in table and f"{lenient:.2f}" in table
    answers = values["results"]["mlqa"]["values"]["tables"]["de"]
    assert scores["mlqa"] == pytest.approx((answers["f1"] + answers["exact_match"]) / 2)

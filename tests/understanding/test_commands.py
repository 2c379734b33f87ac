"""Classification, tagging and question answering as a user runs them: train, evaluate, predict, export."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Measure
from tests.support.annotated import write_labels, write_pairs, write_questions, write_tags
from tests.support.commands import Commands
from tests.support.models import write_classifier
from xrep.errors import UserError
from xrep.inference.predictor import Predictor
from xrep.kernels.precision import multiplies_int8
from xrep.nn.weights import read_tensors
from xrep.registry import PREDICTORS
from xrep.understanding.classifier import Annotation

pytestmark = pytest.mark.slow
SMALL = (
    "--layers 1 --hidden-size 48 --heads 4 --feedforward-size 96 --max-positions 64 --vocab-size 50 --languages de "
    "--max-length 48 --batch-size 32 --lr 5e-3 --warmup-steps 10 --dropout 0 --attention-dropout 0 --device cpu "
    "--no-tensorboard --max-steps 150 --validate-every 75"
)


def train(cli: Commands, data: Path, task: str, more: str = "", run: str = "run") -> str:
    """Train a model of a task and return the path of its best checkpoint."""
    criterion = {"question_answering": "span"}.get(task, task)
    line = f"--task {task} --criterion {criterion} --save-dir {run} {SMALL} {more}"
    assert cli("train", data, *line.split()).code == 0
    return f"{run}/best"


class Other(Predictor):
    """A predictor of somebody else, whose name comes before that of ours."""

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Predictor:
        raise UserError("not mine", path=path, cure="choose another")

    predict_lines: Any = None


def test_a_directory_of_transformers_is_opened_by_the_predictor_that_can(
    cli: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PREDICTORS, "_targets", {name: PREDICTORS.target(name) for name in PREDICTORS.names()})
    PREDICTORS.register("aaa")(Other)
    write_classifier(tmp_path / "ours", "classification", Annotation(kind="label", labels=["a", "b"]))
    assert cli("export", "--path", "ours", "--format", "hf", "--output", "hf").code == 0
    for path in ("ours", "hf"):
        (line,) = predicted(cli, path, "der Koch singt\n")
        assert line.split("\t")[0] in ("a", "b")
    assert "not mine" in cli("predict", "--path", tmp_path).err
    monkeypatch.setattr(PREDICTORS, "_targets", {})
    done = cli("predict", "--path", "hf")
    assert "error: no predictor is installed; reinstall xrep, or install a plugin that has a predictor" in done.err


def test_texts_and_pairs_of_one_language_are_measured(cli: Commands, measure: Measure, tmp_path: Path) -> None:
    write_classifier(tmp_path / "model", "classification", Annotation(kind="label", labels=["a", "b"]))
    for name, line in {"test-de.tsv": "a\tder Koch\n", "pairs/test-de.tsv": "der Koch\tein Koch\tb\n"}.items():
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(line, encoding="utf-8")
    values = measure("amazon", "--path", "model", "--data", tmp_path / "data")["values"]["tables"]["de"]
    assert values["examples"] == 2


def predicted(cli: Commands, path: str, text: str, *more: str) -> list[str]:
    (cli.folder / "in.txt").write_text(text, encoding="utf-8")
    done = cli("predict", "--path", path, "--input", "in.txt", "--output", "out.txt", *more)
    assert done.code == 0, done.err
    return (cli.folder / "out.txt").read_text(encoding="utf-8").splitlines()


def test_labels_of_sentences(cli: Commands, measure: Measure, tmp_path: Path) -> None:
    data = write_labels(tmp_path / "data")
    best = train(cli, data, "classification")
    assert measure("amazon", "--path", best, "--data", data)["values"]["tables"]["de"]["accuracy"] > 95
    text = "der Koch schläft bei Kiel im Haus\n\ndie Ärztin singt bei Anna im Zug\n"
    first, _, last = predicted(cli, best, text)
    assert first.split("\t")[0] == "asleep" and last.split("\t")[0] == "awake" and float(last.split("\t")[1]) > 0.5
    labels = [json.loads(line) for line in predicted(cli, best, text, "--jsonl")]
    assert labels[0]["label"] == "asleep" and sum(labels[0]["probabilities"].values()) == pytest.approx(1)


def test_labels_of_pairs_and_their_export(cli: Commands, measure: Measure, tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "data")
    best = train(cli, data, "classification", "--max-steps 300 --vocab-size 35")
    given = ["--path", best, "--data", data]
    # 75 without the second sentence
    assert measure("xnli", *given)["values"]["tables"]["de"]["accuracy"] > 90
    assert cli("export", "--path", best, "--format", "hf", "--output", "hf").code == 0
    text = "".join(f"{line.rpartition(chr(9))[0]}\n" for line in (data / "test-de.tsv").read_text("utf-8").splitlines())
    assert predicted(cli, "hf", text) == predicted(cli, best, text)
    if not multiplies_int8():
        pytest.skip("torch has no exact int8 product for this processor")
    expected = predicted(cli, best, text, "--precision", "int8")
    assert expected != predicted(cli, best, text)
    assert measure("xnli", *given, "--precision", "int8")["values"]["tables"]["de"]["accuracy"] > 90
    assert cli("export", "--path", best, "--format", "int8", "--output", "int8").code == 0
    tensors = read_tensors(tmp_path / "int8" / "model.safetensors")
    matrices = {name for name, tensor in tensors.items() if tensor.dim() > 1 and tensor.is_floating_point()}
    assert all("embedding" in name or name in ("dense.weight", "output.weight") for name in matrices)
    assert predicted(cli, "int8", text) == expected


def test_tags_of_words(cli: Commands, measure: Measure, tmp_path: Path) -> None:
    data = write_tags(tmp_path / "data")
    best = train(cli, data, "tagging")
    figures = measure("ner", "--path", best, "--data", data)["values"]["tables"]["de"]
    assert figures["f1"] > 95 and set(figures) >= {"precision", "recall", "examples", "overlap"}
    assert predicted(cli, best, "mein Onkel singt bei Otto im Zug\n") == ["O O O O B-PER O O"]
    (tags,) = predicted(cli, best, "mein Onkel singt 10\u00a0000 Lieder\n")
    assert len(tags.split(" ")) == 5  # words are separated by spaces alone


def test_answers_to_questions(cli: Commands, measure: Measure, tmp_path: Path) -> None:
    data = write_questions(tmp_path / "data")
    best = train(cli, data, "question_answering", "--max-steps 300")
    figures = measure("qa", "--path", best, "--data", data)["values"]["tables"]["de"]
    assert figures["exact_match"] > 80 and figures["f1"] >= figures["exact_match"]
    (test,) = data.glob("test*.json")
    text = test.read_text(encoding="utf-8")
    (cli.folder / "squad2.json").write_text(re.sub(r'"answers": \[.+?\]', '"answers": []', text, count=1))
    done = cli("eval", "qa", "--path", best, "--data", "squad2.json", "--language", "de")
    assert done.code == 2 and "questions in German have no answer; take SQuAD 1.1" in done.err
    assert predicted(cli, best, "bei wem?\tder Koch lacht bei Bonn im Garten.\n") == ["Bonn\t19"]


def test_what_is_written_follows_the_name_and_what_is_read_is_checked_first(cli: Commands, tmp_path: Path) -> None:
    write_classifier(tmp_path / "ours", "classification", Annotation(kind="label", labels=["a", "b"]))
    (tmp_path / "texts").write_text("der Koch singt\n")
    (tmp_path / "latin").write_bytes(b"br\xfccke\n")
    line = ["predict", "--path", "ours", "--input", "texts", "--output"]
    assert cli(*line, "found.jsonl.gz").code == cli(*line, "found.txt").code == 0
    (record,) = map(json.loads, gzip.decompress((tmp_path / "found.jsonl.gz").read_bytes()).splitlines())
    assert (tmp_path / "found.txt").read_text().startswith(f"{record['label']}\t")
    assert "found.csv: this format is not written; write one of .txt, .jsonl" in cli(*line, "found.csv").err
    assert "latin:1: invalid UTF-8" in cli("predict", "--path", "no-model", "--input", "latin").err

"""Classification, tagging and question answering as a user runs them: train, evaluate, predict, export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.annotated import write_labels, write_pairs, write_questions, write_tags
from xrep.kernels.processor import multiplies_int8
from xrep.nn.weights import read_tensors
from xrep_cli import eval, export, predict, train

pytestmark = pytest.mark.slow
SMALL = (
    "--layers 1 --hidden-size 48 --heads 4 --feedforward-size 96 --max-positions 64 --vocab-size 50 --languages de "
    "--max-length 48 --batch-size 32 --lr 5e-3 --warmup-steps 10 --dropout 0 --attention-dropout 0 --device cpu "
    "--no-tensorboard --max-steps 150 --validate-every 75"
).split()


def run_training(data: Path, task: str, criterion: str, save_dir: Path, *more: str) -> None:
    line = [str(data), "--task", task, "--criterion", criterion, "--save-dir", str(save_dir), *SMALL, *more]
    assert train.main(line) == 0


def measured(test: str, run: Path, data: Path, folder: Path, *more: str) -> dict[str, float]:
    file = folder / "result.json"
    assert eval.main([test, "--path", str(run), "--data", str(data), "--json", str(file), *more]) == 0
    return json.loads(file.read_text(encoding="utf-8"))["values"]["languages"]["de"]


def predicted(run: Path, text: str, folder: Path, *more: str) -> list[str]:
    (folder / "in.txt").write_text(text, encoding="utf-8")
    line = ["--path", str(run), "--input", str(folder / "in.txt"), "--output", str(folder / "out.txt"), *more]
    assert predict.main(line) == 0
    return (folder / "out.txt").read_text(encoding="utf-8").splitlines()


def test_labels_of_sentences(tmp_path: Path) -> None:
    data = write_labels(tmp_path / "data")
    run_training(data, "classification", "classification", tmp_path / "run")
    assert measured("amazon", tmp_path / "run" / "best", data, tmp_path)["accuracy"] > 95
    text = "der Koch schläft bei Kiel im Haus\n\ndie Ärztin singt bei Anna im Zug\n"
    first, _, last = predicted(tmp_path / "run" / "best", text, tmp_path)
    assert first.split("\t")[0] == "asleep" and last.split("\t")[0] == "awake" and float(last.split("\t")[1]) > 0.5
    objects = [json.loads(line) for line in predicted(tmp_path / "run" / "best", text, tmp_path, "--jsonl")]
    assert objects[0]["label"] == "asleep" and sum(objects[0]["probabilities"].values()) == pytest.approx(1)


def test_labels_of_pairs_and_their_export(tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "data")
    more = ["--max-steps", "300", "--vocab-size", "35"]
    run_training(data, "classification", "classification", tmp_path / "run", *more)
    best = tmp_path / "run" / "best"
    assert measured("xnli", best, data, tmp_path)["accuracy"] > 90  # 75 without the second sentence
    assert export.main(["--path", str(best), "--format", "hf", "--output", str(tmp_path / "hf")]) == 0
    text = "".join(f"{line.rpartition(chr(9))[0]}\n" for line in (data / "test-de.tsv").read_text("utf-8").splitlines())
    assert predicted(tmp_path / "hf", text, tmp_path) == predicted(best, text, tmp_path)
    assert export.main(["--path", str(best), "--output", str(tmp_path / "st")]) == 2
    if not multiplies_int8():
        pytest.skip("torch has no exact int8 product for this processor")
    expected = predicted(best, text, tmp_path, "--precision", "int8")
    assert expected != predicted(best, text, tmp_path)
    assert measured("xnli", best, data, tmp_path, "--precision", "int8")["accuracy"] > 90
    assert export.main(["--path", str(best), "--format", "int8", "--output", str(tmp_path / "int8")]) == 0
    tensors = read_tensors(tmp_path / "int8" / "model.safetensors")
    matrices = {name for name, tensor in tensors.items() if tensor.dim() > 1 and tensor.is_floating_point()}
    assert all("embedding" in name or name in ("dense.weight", "output.weight") for name in matrices)
    assert predicted(tmp_path / "int8", text, tmp_path) == expected


def test_tags_of_words(tmp_path: Path) -> None:
    data = write_tags(tmp_path / "data")
    run_training(data, "tagging", "tagging", tmp_path / "run")
    figures = measured("ner", tmp_path / "run" / "best", data, tmp_path)
    assert figures["f1"] > 95 and set(figures) >= {"precision", "recall", "examples", "overlap"}
    (tags,) = predicted(tmp_path / "run" / "best", "mein Onkel singt bei Otto im Zug\n", tmp_path)
    assert tags == "O O O O B-PER O O"


def test_answers_to_questions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_questions(tmp_path / "data")
    run_training(data, "question_answering", "span", tmp_path / "run", "--max-steps", "300")
    figures = measured("qa", tmp_path / "run" / "best", data, tmp_path)
    assert figures["exact_match"] > 80 and figures["f1"] >= figures["exact_match"]
    (line,) = predicted(tmp_path / "run" / "best", "bei wem?\tder Koch lacht bei Bonn im Garten.\n", tmp_path)
    assert line == "Bonn\t19"
    content = json.loads((data / "test-de.json").read_text(encoding="utf-8"))
    for paragraph in content["data"][0]["paragraphs"]:
        for question in paragraph["qas"]:
            question["answers"] = [{"text": "", "answer_start": 0}]  # as XTREME's script writes them
    (data / "test-de.json").write_text(json.dumps(content), encoding="utf-8")
    assert eval.main(["qa", "--path", str(tmp_path / "run" / "best"), "--data", str(data)]) == 2
    assert "no question in German has an answer; name a test with answers" in capsys.readouterr().err


def test_a_frozen_encoder_stays_as_it_is(tmp_path: Path) -> None:
    from xrep.models.directory import open_checkpoint

    data = write_labels(tmp_path / "data")
    run_training(data, "classification", "classification", tmp_path / "run", "--max-steps", "10")
    start = [
        "--encoder",
        str(tmp_path / "run" / "best"),
        "--pooling",
        "mean",
        "--freeze",
        "encoder",
        "--max-steps",
        "9",
    ]
    line = [str(data), "--task", "classification", "--criterion", "classification", "--save-dir", str(tmp_path / "two")]
    options = "--languages de --max-length 48 --device cpu --no-tensorboard --validate-every 9".split()
    assert train.main([*line, *options, *start]) == 0
    before, after = (open_checkpoint(tmp_path / run / "best").tensors() for run in ("run", "two"))
    same = {name for name in before if before[name].equal(after[name])}
    assert {name for name in before if name.startswith("encoder.")} <= same and "output.weight" not in same


@pytest.mark.parametrize(
    ("test", "name", "content", "message"),
    [
        ("amazon", "test-de.tsv", "awake\tdas Haus\nhungry\tdas Kind\n", "test-de.tsv:2: unknown label 'hungry'"),
        ("amazon", "test-de.tsv", "das Haus\tdas Kind\n", "XTREME's script leaves the labels out of its tests"),
        ("amazon", "test-de.tsv", "awake\tdas\textra\nawake\tx\n", "test-de.tsv:2: 2 columns"),
        ("ner", "test-de.tsv", "Kiel\tB-LOC\n", "predicts labels of texts, not tags of words"),
        ("pos", "test.conllu", "1\tIt\tit\t_\t_\t_\t_\t_\t_\t_\n", "test.conllu:1: the word 'It' has no UPOS"),
        ("qa", "test.json", '{"data": [{"paragraphs": [{"context": "", "qas": []}]}]}', "paragraph 1 is empty"),
        ("xnli", "dev-de.tsv", "a\tb\tyes\n", "no test split in it; set --split; there are files of dev"),
    ],
)
def test_bad_tests_are_one_line(
    test: str, name: str, content: str, message: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert eval.main([test, "--path", str(run / "best"), "--data", str(tmp_path)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error and error.startswith("xrep-eval: error: ")
    assert ("XTREME" in error) == ("XTREME" in message)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    run_training(write_labels(folder / "data"), "classification", "classification", folder / "run", "--max-steps", "2")
    return folder / "run"


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        ("Awake\tx\n", "dev-de.tsv:1: the label 'Awake' does not occur in the training text; known: asleep, awake"),
        ("x\n", "dev-de.tsv:1: 1 columns and no header"),
    ],
)
def test_bad_dev_splits_are_one_line(
    dev: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_labels(tmp_path / "data")
    (data / "dev-de.tsv").write_text(dev, encoding="utf-8")
    line = [str(data), "--task", "classification", "--criterion", "classification", "--save-dir", str(tmp_path / "run")]
    assert train.main([*line, *SMALL]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_labels_that_differ_in_case_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.tsv").write_text("good\ta film\nGood\ta book\n", encoding="utf-8")
    line = [str(tmp_path), "--task", "classification", "--criterion", "classification"]
    assert train.main([*line, "--save-dir", str(tmp_path / "run"), "--vocab-size", "30"]) == 2
    assert "the labels 'Good' and 'good' differ only in case" in capsys.readouterr().err

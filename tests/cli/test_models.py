"""Every command with every kind of model: each cell of the table works, or is one line that names the right command."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SENTENCES, write_tatoeba
from tests.support.annotated import write_labels, write_questions, write_tags
from tests.support.commands import Commands
from tests.support.corpus import write_corpus, write_lines
from tests.support.models import write_models
from tests.support.once import made_once
from tests.support.programs import ROOT

KINDS = {
    "encoder": "encode sentences by xrep-encode --path {m}",
    "towers": "encode sentences by xrep-encode --path {m}",
    "int8": "encode sentences by xrep-encode --path {m}",
    "translator": "translate by xrep-generate --path {m}",
    "int8_translator": "translate by xrep-generate --path {m}",
    "classifier": "predict by xrep-predict --path {m}",
    "tagger": "predict by xrep-predict --path {m}",
    "answerer": "predict by xrep-predict --path {m}",
    "huggingface": "encode sentences by xrep-encode --path {m}",
    "huggingface_classifier": "predict by xrep-predict --path {m}, or encode sentences by xrep-encode --path {m}",
    "huggingface_towers": "name one of them: {m}/source or {m}/target",
    "sentence_transformers": "encode sentences by xrep-encode --path {m}",
    "router": "encode sentences by xrep-encode --path {m}",
    "graph": "name the model that it was exported from",
    "vectors": "measure them by xrep-eval TEST --path {m}",
    "encoded": "mine in them by xrep-mine --source-vectors {m}",
    "index": "search it by xrep-search query {m}",
    "data": "train on it by xrep-train {m}",
    "run": "did you mean {m}/best?",
}
"""What a command that cannot use a model or another directory says."""
ENCODERS = "encoder towers int8 huggingface huggingface_classifier sentence_transformers router"
CLASSIFIERS = "classifier tagger answerer"
CHECKPOINTS = f"encoder towers translator {CLASSIFIERS}"
INT8 = "export the original, or to xrep"
OTHER_TASK = {"label": "measure it by xrep-eval xnli, pawsx or amazon", "tags": "measure it by xrep-eval pos or ner"}
TRAIN = "xrep-train DATA --task {task} --encoder {m}"
TRANSLATOR = "xrep-train DATA --task translation --criterion label_smoothed_cross_entropy --encoder {m}"
TRAINED = "use the checkpoint that it was made from"

TABLE: dict[str, tuple[str, str, dict[str, str]]] = {
    "encode": ("encode --path {m} --input de.txt --lang de --output v.npy", ENCODERS,
               {"translator": TRAIN.format(task="bitext", m="{m}")}),
    "mine": ("mine --path {m} --source de.txt --target en.txt --source-lang de --target-lang en --output o.tsv",
             ENCODERS, {}),
    "negatives": ("mine negatives --path {m} --bitext de-en=de.txt,en.txt --output o.tsv", ENCODERS, {}),
    "build": ("search build --path {m} --input en.txt --lang en --output made", ENCODERS, {}),
    "query": ("search query {m} --lang en house", "index",
              dict.fromkeys(KINDS, "name a directory that xrep-search build wrote")),
    "query by another model": ("search query {index} --path {m} --lang en house", "encoder", dict.fromkeys(
        ENCODERS.split(), "vectors were made by another encoder")),
    "tatoeba": ("eval tatoeba --path {m} --data {tatoeba} --langs de", f"{ENCODERS} vectors", {}),
    "sts": ("eval sts --path {m} --data sts", f"{ENCODERS} vectors", {}),
    "all": ("eval all --path {m} --data {tatoeba}", f"{ENCODERS} vectors", {}),
    "translation": ("eval translation --path {m} --data {{lang}}.txt --langs de --target-lang en",
                    "translator int8_translator", {"tagger": TRANSLATOR}),
    "amazon": ("eval amazon --path {m} --data {labels}", "classifier huggingface_classifier",
               {"tagger": OTHER_TASK["tags"], "answerer": "measure it by xrep-eval qa"}),
    "pos": ("eval pos --path {m} --data {tags}", "tagger", {
        "classifier": OTHER_TASK["label"], "huggingface_classifier": OTHER_TASK["label"],
        "answerer": "measure it by xrep-eval qa"}),
    "qa": ("eval qa --path {m} --data {questions}", "answerer", {
        "classifier": OTHER_TASK["label"], "huggingface_classifier": OTHER_TASK["label"],
        "tagger": OTHER_TASK["tags"]}),
    "generate": ("generate --path {m} --input de.txt", "translator int8_translator",
                 {"huggingface": TRANSLATOR}),
    "predict": ("predict --path {m} --input pairs.tsv", f"{CLASSIFIERS} huggingface_classifier",
                {"encoder": TRAIN.format(task="classification", m="{m}")}),
    "export": ("export --path {m} --output made", ENCODERS.replace(" int8", ""), {
        "int8": INT8, "int8_translator": INT8,
        "translator": "set --format to xrep, or to hf for its encoder alone",
        **dict.fromkeys(CLASSIFIERS.split(), "set --format to xrep, or to hf for the encoder and its head")}),
    "export hf": ("export --path {m} --output made --format hf", f"{ENCODERS} {CHECKPOINTS}".replace(" int8", ""),
                  {"int8": INT8, "int8_translator": INT8}),
    "export xrep": ("export --path {m} --output made --format xrep", f"{ENCODERS} {CHECKPOINTS} int8_translator", {}),
    "export int8": ("export --path {m} --output made --format int8",
                    f"{ENCODERS} {CHECKPOINTS}".replace(" int8", ""), {"int8": INT8, "int8_translator": INT8}),
    "export average": ("export --path {m} --output made --format xrep --average 2", "run",
                       dict.fromkeys(KINDS, "has 0 checkpoints, not 2; name the directory of a run")),
    "train from": (
        "train {raw} --task bitext --criterion translation_ranking --encoder {m} --max-steps 1 --batch-size 8 "
        "--max-length 30 --save-dir made --no-tensorboard --device cpu",
        f"encoder translator {CLASSIFIERS} huggingface huggingface_classifier sentence_transformers",
        {"towers": "which of its towers?; {m}/source or {m}/target", "int8": TRAINED, "int8_translator": TRAINED,
         "router": "name one of its towers, such as {m}/source"}),
    "train again": (
        "train {data} --task bitext --criterion translation_ranking --init {m} --max-steps 1 --size tiny "
        "--save-dir made --no-tensorboard --device cpu", "", {
            "encoder": "give the model the same sizes", "towers": "give the model the same sizes", "int8": TRAINED,
            "int8_translator": TRAINED, "translator": TRAIN.format(task="bitext", m="{m}")}),
    "train on": (
        "train {m} --task bitext --criterion translation_ranking --max-steps 1 --size tiny --save-dir made "
        "--no-tensorboard --device cpu", "data", {
            **dict.fromkeys(KINDS, "no parallel training text found; expected train.de-en"),
            **dict.fromkeys([*CHECKPOINTS.split(), "int8", "int8_translator", "index", "encoded"],
                            "name a folder of text, or a directory that xrep-preprocess wrote")}),
    "report": ("report {m} --output o.html", f"run {CHECKPOINTS} int8 int8_translator",
               dict.fromkeys(KINDS, "name the directory of a run")),
}  # fmt: skip
"""Command -> its line, the kinds of models with which it works, and what it says of others beside ``KINDS``."""


@pytest.fixture(scope="session")
def models(shared_encoder, separate_encoder, translator, trained_run, data_directory) -> dict[str, Path]:
    def make(folder: Path) -> None:
        write_models(folder, shared_encoder, separate_encoder, translator, SENTENCES)
        write_tatoeba(folder / "tatoeba")
        write_labels(folder / "labels")
        write_tags(folder / "tags")
        write_questions(folder / "questions")
        write_corpus(folder / "raw", 40, 9, 9)

    made = {path.name: path for path in made_once("models", make).iterdir()}
    others = {"encoder": shared_encoder, "towers": separate_encoder, "translator": translator}
    return {**made, **others, "run": trained_run, "data": data_directory}


@pytest.fixture
def files(cli: Commands) -> None:
    """The texts of the table, in the folder of the test."""
    for code in ("de", "en"):
        write_lines(cli.folder / f"{code}.txt", SENTENCES[code])
    write_lines(cli.folder / "pairs.tsv", ["bei wem?\tder Koch lacht bei Bonn im Garten."])
    pairs = zip(SENTENCES["en"], reversed(SENTENCES["en"]), strict=True)
    rows = [f"main\tx\t2012\t{n}\t{n}.0\t{one}\t{two}" for n, (one, two) in enumerate(pairs)]
    write_lines(cli.folder / "sts" / "STSBenchmark" / "sts-test.csv", rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", TABLE)
@pytest.mark.usefixtures("files")
def test_it_works_or_names_the_right_command(command: str, kind: str, models: dict[str, Path], cli: Commands) -> None:
    line, works, others = TABLE[command]
    done = cli(*(word.format(m=models[kind], **models) for word in line.split()))
    if kind in works.split():
        assert (done.code, done.err.count("error: ")) == (0, 0), done.err
        return
    assert done.code == 2 and not done.wrote and "Traceback" not in done.err, done.err
    last = done.err.splitlines()[-1]
    assert others.get(kind, KINDS[kind]).format(m=models[kind]) in last and done.err.count("error: ") == 1


@pytest.mark.slow
def test_predictions_of_a_pipe_come_as_its_lines_do(models: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "xrep_cli.predict", "--device", "cpu", "--path", str(models["tagger"])]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        for words in ("der Koch", "mein Onkel singt"):
            process.stdin.write(f"{words}\n".encode())
            assert len(process.stdout.readline().split()) == len(words.split())
        process.stdin.close()
    assert process.returncode == 0

"""Runs on scored pairs, and the small recipes of LaBSE and multilingual E5 from their first stage to their last."""

import random
from pathlib import Path

import pytest

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_lines
from tests.support.once import made_once
from tests.support.runs import SMALL_MODEL, figures, going_on_is_never_stopping, options

pytestmark = pytest.mark.slow
SMALLER = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL_MODEL.items() if name != "max_positions"]
QUICK = [*SMALLER, "--log-every=1", "--no-tensorboard", "--device=cpu", "--max-steps=2"]


@pytest.fixture(scope="module")
def scored() -> Path:
    """Pairs of English sentences; the score is the number of words that they share, of which 5 is the most."""

    def make(folder: Path) -> None:
        choose, texts = random.Random(1), [english for _, english in sentence_pairs(2048)]
        some = [choose.sample(texts, 2) for _ in range(700)]
        rows = [f"{min(5, len({*one.split()} & {*other.split()}))}\t{one}\t{other}" for one, other in some]
        write_lines(folder / "train.tsv", rows[:600])
        write_lines(folder / "dev.tsv", rows[600:])

    return made_once("scored", make)


@pytest.mark.parametrize("criterion", ["cosent", "angle"])
def test_similarities_come_into_the_order_of_the_scores(criterion: str, scored: Path, cli: Commands) -> None:
    given = {"task": "similarity", "criterion": criterion, "vocab_size": 70, "max_steps": 60, "validate_every": 30}
    assert cli("train", scored, *options(**given, save_dir="run", batch_size=60)).code == 0
    first, second = (record["accuracy"] for record in figures(cli.folder / "run", "valid"))
    assert second > max(first, 58), (first, second)


def test_a_run_that_stops_ends_like_another(scored: Path, tmp_path: Path) -> None:
    given = {"task": "similarity", "criterion": "cosent", "vocab_size": 70, "warmup_steps": 0, "validate_every": 3}
    going_on_is_never_stopping(scored, tmp_path, **given, matryoshka=8, micro_batch=7)


def test_the_stages_of_labse(data_directory: Path, cli: Commands) -> None:
    for name, side in (("train", 0), ("valid", 1)):
        write_lines(cli.folder / "mono" / f"{name}.de", [pair[0] for pair in sentence_pairs(200)][side::2])
    mlm, tlm = (f"stages.language_model.parts.{part}.task" for part in ("mlm", "tlm"))
    data = [f"{mlm}.data=mono", f"{mlm}.tokenizer={data_directory}", f"{tlm}.data={data_directory}"]
    data += [f"stages.ranking.task.data={data_directory}", "checkpoint.save_dir=run"]
    assert cli("train", "--config", "labse/small", *QUICK, *data).code == 0
    assert {*figures(cli.folder / "run/language_model")[0]} >= {"loss_mlm/mlm", "loss_tlm/tlm"}
    assert {*figures(cli.folder / "run/ranking", "valid")[0]} >= {"accuracy_de-en", "accuracy_es-en"}


def test_the_stages_of_e5(data_directory: Path, cli: Commands) -> None:
    data = ["task.batch_size=60", f"task.data={data_directory}"]
    assert cli("train", "--config", "e5/small", *QUICK, *data, "checkpoint.save_dir=weak").code == 0
    german, english = zip(*sentence_pairs(600), strict=True)
    files = [write_lines(cli.folder / f"train.{code}", side) for code, side in (("de", german), ("en", english))]
    given = ["--bitext", f"de-en={files[0]},{files[1]}", "--device", "cpu", "--output", "negatives.tsv"]
    assert cli("mine", "negatives", "--path", "weak/best", *given).code == 0
    data += ["--init=weak/best", "checkpoint.save_dir=labelled"]
    assert cli("train", "--config", "e5/small_labelled", *QUICK, *data).code == 0
    assert "hard negatives: " in (cli.folder / "labelled/log.txt").read_text()

"""STS during training: the figures of xrep-eval sts, and the best checkpoint by them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.support.corpus import sentence_pairs
from tests.support.runs import compose_run
from xrep.errors import UserError
from xrep.evaluation.encoders import open_encoder
from xrep.evaluation.sts import correlations, find_sets, select, similarities
from xrep.models.dual_encoder import DualEncoder
from xrep.training.run import train
from xrep.validation.sts import StsValidator


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write STS-B in German, English and French, 40 pairs each; scores rise with the number of shared words."""
    folder, pairs = tmp_path_factory.mktemp("sts"), sentence_pairs(80)
    for language, column in (("de", 0), ("en", 1), ("fr", 0)):
        rows = []
        for n in range(40):
            one, other = pairs[n][column], pairs[79 - n][column]
            score = 5 * len(set(one.split()) & set(other.split())) / len(set(one.split()) | set(other.split()))
            rows.append(f"{one},{other},{score + 0.001 * n:.3f}\n")
        for split in ("dev", "test"):
            (folder / f"stsb-{language}-{split}.csv").write_text("".join(rows[split == "test" :]), encoding="utf-8")
    return folder


def test_it_measures_the_languages_of_the_text_and_leaves_the_model_as_it_was(sets, text, tokenizer, tmp_path):
    torch.manual_seed(0)
    sizes = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}
    model = DualEncoder(DualEncoder.Config(**sizes, dropout=0.5), text).train()
    task = SimpleNamespace(tokenizers={"shared": tokenizer}, text=text)
    validate = StsValidator(StsValidator.Config(sts_path=str(sets)), task)
    found = validate(model, nn.Identity())
    assert set(found) == {"spearman", "spearman-STS-B-de", "spearman-STS-B-en"}
    assert validate(model, nn.Identity()) == found
    assert found["spearman"] == pytest.approx((found["spearman-STS-B-de"] + found["spearman-STS-B-en"]) / 2)
    assert found["spearman-STS-B-de"] > 20, "words in common count even in random vectors"
    config = StsValidator.Config(sts_path=str(sets), sts_languages=["de"], sts_split="test")
    alone = StsValidator(config, task)(model, nn.Identity())
    assert set(alone) == {"spearman", "spearman-STS-B-de"} and alone["spearman"] != found["spearman-STS-B-de"]
    (tmp_path / "stsb-fr-dev.csv").write_bytes((sets / "stsb-fr-dev.csv").read_bytes())
    with pytest.raises(UserError, match=r"languages of the training text \(de, en\); it has fr"):
        StsValidator(StsValidator.Config(sts_path=str(tmp_path)), task)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["sts", "loss"])
def test_the_best_checkpoint_is_the_one_that_xrep_eval_finds_best(sets, data_directory, tmp_path, first):
    """Or, of several validations, the one with the lowest loss, if the loss comes first."""
    given = {"sts_path": sets, "validate_every": 2, "save_every": 2, "keep_last": 9}
    several = {"criterion": "translation_ranking", "validate_with": {"sts": "sts,loss", "loss": "loss,sts"}[first]}
    run = train(compose_run(data_directory, tmp_path / "run", max_steps=6, **given, **several)).directory
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = {record["step"]: -record["loss/loss"] for record in records if record["kind"] == "valid"}
    for step in found if first == "sts" else ():
        encoder = open_encoder(run / f"checkpoint-{step:08d}")
        each = [correlations(test, similarities(encoder, test)) for test in select(find_sets(sets, "dev"), "de,en")]
        found[step] = sum(own["cosine"]["spearman"]["all"] for own in each) / 2
    summary = json.loads((run / "summary.json").read_text())
    assert summary["best"]["metric"] == {"sts": "sts/spearman", "loss": "loss/loss"}[first]
    assert abs(summary["best"]["value"]) == pytest.approx(abs(max(found.values())), abs=1e-3)
    best = int((run / "best").resolve().name.split("-")[1])
    assert found[best] == pytest.approx(max(found.values()), abs=1e-3)
    assert len(found) == 3 and len({round(value, 2) for value in found.values()}) > 1

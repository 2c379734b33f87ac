"""Heads that predict masked tokens are shared by the parts of a run, and are those of the run it starts from."""

import copy
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.corpus import sentence_pairs
from tests.support.once import made_once
from tests.support.runs import SMALL_MODEL, contents
from xrep.config import Part, runs_of
from xrep.criteria.hictl import HiCTL
from xrep.criteria.mlm import MLM
from xrep.criteria.multitask import Multitask
from xrep.criteria.tlm import TLM
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.data.batch import TextSpec
from xrep.models.directory import load_matching, open_checkpoint
from xrep.models.dual_encoder import DualEncoder
from xrep.training.run import train

HEAD = ["bias", "dense.bias", "dense.weight", "norm.bias", "norm.weight"]
RANK = ("rank", TranslationRanking, {})
BOTH = [("mono", MLM, {}), ("bi", TLM, {})]
QUIET = {"language_model": False}


def make_model(text: TextSpec) -> DualEncoder:
    torch.manual_seed(0)
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "normalize": False}
    return DualEncoder(DualEncoder.Config(**{**SMALL_MODEL, "max_positions": 96}, **rates), text).double()


def make(model: DualEncoder, text: TextSpec, kinds: list[tuple[str, type, dict]], mixing: Any = "weight") -> Multitask:
    torch.manual_seed(1)
    parts = [Part(name, kind, kind.Config(**given), 1.0, 1.0) for name, kind, given in kinds]
    return Multitask(Multitask.Config(parts=parts, mixing=mixing), model, text).double()


def heads_in(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if ".heads." in name)


@pytest.mark.parametrize("mixing", ["weight", "proportion"])
def test_parts_share_a_head_that_has_one_name(text: TextSpec, mixing: str) -> None:
    model = make_model(text)
    criterion, fresh = (make(model, text, [RANK, *BOTH], mixing) for _ in range(2))
    names = [f"parts.mono.masked_lm.heads.shared.{name}" for name in HEAD]
    assert heads_in(dict(criterion.named_parameters())) == heads_in(criterion.state_dict()) == names
    copied = copy.deepcopy(criterion)
    for each in (criterion, copied):
        assert each.parts["mono"].masked_lm.heads is each.parts["bi"].masked_lm.heads
    assert copied.parts["bi"].masked_lm.heads is not criterion.parts["bi"].masked_lm.heads
    nn.init.constant_(criterion.parts["bi"].masked_lm.heads["shared"].bias, 0.5)
    assert load_matching(fresh, criterion.state_dict()) == []
    assert (fresh.parts["bi"].masked_lm.heads["shared"].bias == 0.5).all()


def test_the_first_part_with_a_language_model_owns_the_head(text: TextSpec) -> None:
    kinds = [("a", HiCTL, QUIET), ("b", HiCTL, {}), ("c", HiCTL, {"monolingual": True}), ("d", MLM, {})]
    criterion = make(make_model(text), text, kinds)
    assert heads_in(criterion.state_dict()) == [f"parts.b.masked_lm.heads.shared.{name}" for name in HEAD]


def layout(sentences: Path, pairs: Path, save_dir: Path, steps: int, **sections: Any) -> dict[str, Any]:
    """Train mlm on text of two languages, then tlm on pairs."""
    own = {"batch_size": 12, "max_length": 24}
    mono = {"name": "monolingual", "data": str(sentences), "tokenizer": str(pairs), **own}
    bitext = {"name": "bitext", "data": str(pairs), **own}
    parts = [
        {"name": "mono", "task": mono, "criterion": {"name": "mlm"}},
        {"name": "bi", "task": bitext, "criterion": {"name": "tlm"}},
    ]
    if sections.pop("ranking", False):
        parts = [{"name": "rank", "task": bitext, "criterion": {"name": "translation_ranking"}}]
    return {
        "mixing": "proportion", "parts": parts,
        "model": {"name": "dual_encoder", **SMALL_MODEL, "max_positions": 48},
        "lr_scheduler": {"name": "constant"}, "trainer": {"max_steps": steps, "device": "cpu"},
        "logging": {"log_every": 1, "tensorboard": False}, "checkpoint": {"save_dir": str(save_dir)}, **sections,
    }  # fmt: skip


@pytest.fixture(scope="module")
def sentences() -> Path:
    def write(folder: Path) -> None:
        for language, side in zip(("de", "en"), zip(*sentence_pairs(300), strict=True), strict=True):
            (folder / f"{language}.txt").write_text("\n".join(side), encoding="utf-8")

    return made_once("sentences-of-heads", write)


@pytest.fixture(scope="module")
def run(sentences: Path, data_directory: Path):
    """Trains a run in a directory, which it returns."""
    return lambda *given, **sections: (
        train(runs_of([("", layout(sentences, data_directory, *given, **sections))])[0]).directory
    )


def saved_heads(directory: Path) -> dict[str, Tensor]:
    tensors = open_checkpoint(directory).tensors("criterion.safetensors")
    return {name: tensors[name] for name in heads_in(tensors)}


@pytest.mark.slow
def test_going_on_is_the_same_as_never_stopping(run, tmp_path: Path, capfd) -> None:
    once = run(tmp_path / "once", 5)
    run(tmp_path / "twice", 2)
    twice = run(tmp_path / "twice", 5)
    one, other = (contents(directory / "checkpoint-00000005") for directory in (once, twice))
    assert all(one[name] == other[name] for name in ("model.safetensors", "criterion.safetensors"))
    heads = saved_heads(once / "last")
    assert list(heads) == [f"parts.mono.masked_lm.heads.shared.{name}" for name in HEAD]
    capfd.readouterr()
    run(tmp_path / "third", 1, init=str(once / "last"), optimizer={"name": "sgd", "lr": 0.0})
    assert "init: 5 of 5 criterion tensors" in capfd.readouterr().err
    assert all(torch.equal(tensor, heads[name]) for name, tensor in saved_heads(tmp_path / "third" / "last").items())


@pytest.fixture(scope="module")
def trained(run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("runs") / "shared", 2) / "best"


def start(encoder: Path, text: TextSpec) -> tuple[DualEncoder, MLM]:
    short = dataclasses.replace(text, max_length=24)
    model = DualEncoder(DualEncoder.Config(towers="shared", encoder=str(encoder)), short)
    return model, MLM(MLM.Config(), model, short)


@pytest.mark.slow
@pytest.mark.parametrize("place", [".", "shared"])
def test_the_head_of_the_run_that_is_started_from(trained: Path, text: TextSpec, place: str) -> None:
    _, criterion = start(trained / place, text)
    assert criterion.warnings(None) == []
    saved = saved_heads(trained)
    assert len(saved) == 5
    for name, tensor in criterion.masked_lm.heads.state_dict().items():
        assert torch.equal(tensor, saved[f"parts.mono.masked_lm.heads.{name}"]) and tensor.any()


@pytest.mark.slow
def test_a_run_without_a_head(text: TextSpec, run, tmp_path: Path) -> None:
    none = run(tmp_path / "none", 1, ranking=True) / "best"
    model, criterion = start(none, text)
    assert criterion.warnings(None) == [f"{none}/shared has no masked language head; tower shared gets a new one"]
    criterion = make(model.double(), text, BOTH)
    parts = {"mono": None, "bi": None}
    assert len(criterion.warnings(type("Tasks", (), {"parts": parts}))) == 1, "of the part that has the head"

"""Low-rank adaptation: the changes of weights are those of LoRA, and runs go on and save as all others."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of
from tests.support.runs import compose_run
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.models.directory import CRITERION, open_checkpoint
from xrep.models.dual_encoder import DualEncoder
from xrep.training.lora import LowRank
from xrep.training.run import train


def make_model(text, **options: Any) -> DualEncoder:
    torch.manual_seed(0)
    sizes = {"layers": 2, "hidden_size": 16, "heads": 2, "feedforward_size": 24, "max_positions": 48}
    return DualEncoder(DualEncoder.Config(**sizes, dropout=0.0, attention_dropout=0.0, **options), text)


class Pairs(nn.Module):
    """The loss of translation ranking by a plain formula."""

    def __init__(self, model: DualEncoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Tensor:
        x, y = self.model.encode_pair(batch.source, batch.target)
        scores, places = x @ y.t() / 0.05, torch.arange(len(x))
        return sum(F.cross_entropy(side, places, reduction="sum") for side in (scores, scores.t()))  # type: ignore[return-value]


def test_steps_are_those_of_factors_inside_of_the_model(text, make_batch) -> None:
    """Three steps of SGD in float64, against automatic differentiation of W + s B A."""
    model = make_model(text, towers="shared", projection_size=8).double()
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    lora = LowRank(model, set(start), 3, 6.0).double()
    assert {name.split(".")[-2] for name in lora.targets} == {"qkv", "output", "feedforward_in", "feedforward_out"}
    assert len(lora.targets) == 8 and start.keys() - {*lora.targets, *lora.others} == {
        "projections.shared.weight", "projections.shared.bias",
    }  # fmt: skip
    with lora.changing():
        for b in lora.b:
            nn.init.normal_(b, std=0.1)
    factors = [(a.detach().clone(), b.detach().clone()) for a, b in zip(lora.a, lora.b, strict=True)]
    plain = Pairs(make_model(text, towers="shared", projection_size=8).double())
    criterion = TranslationRanking(TranslationRanking.Config(), model, text)
    for step in range(3):
        batch = make_batch(sentence_pairs(20)[6 * step : 6 * step + 6])
        loss_of(criterion, model, batch).terms["translation_ranking"].sum.backward()
        lora.collect()
        with lora.changing(), torch.no_grad():
            for factor in (*lora.a, *lora.b):
                assert factor.grad is not None
                factor -= 0.05 * factor.grad
        model.zero_grad()
        own = [(a.requires_grad_(), b.requires_grad_()) for a, b in factors]
        weights = {n: start[n] + 2.0 * b @ a for n, (a, b) in zip(lora.targets, own, strict=True)}
        loss = torch.func.functional_call(plain, {f"model.{n}": w for n, w in {**start, **weights}.items()}, (batch,))
        gradients = iter(torch.autograd.grad(loss, [factor for pair in own for factor in pair]))
        factors = [(a.detach() - 0.05 * next(gradients), b.detach() - 0.05 * next(gradients)) for a, b in own]
    found = dict(model.named_parameters())
    for name, (a, b) in zip(lora.targets, factors, strict=True):
        assert (found[name] - start[name]).abs().max() > 0.01
        torch.testing.assert_close(found[name].detach(), start[name] + 2.0 * b @ a)


@pytest.mark.slow
def test_the_saved_model_has_the_merged_weights(data_directory: Path, tmp_path: Path) -> None:
    """Of the encoder, the linear layers alone change, each by a matrix of the rank; the run is used like any other."""
    given = {"criterion": "translation_ranking", "warmup_steps": 0, "lr_scheduler": "constant"}
    before = train(compose_run(data_directory, tmp_path / "start", **given, max_steps=1)).directory / "last"
    given |= {"init": before, "lora_rank": 3, "max_steps": 5, "lr": 0.01}
    last = train(compose_run(data_directory, tmp_path / "run", **given)).directory / "last"
    old, new = (open_checkpoint(path).tensors() for path in (before, last))
    assert old.keys() == new.keys()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert len(changed) == 4 and all(".layers." in name and name.endswith(".weight") for name in changed)
    for name in changed:
        assert torch.linalg.matrix_rank(new[name] - old[name], rtol=1e-4) == 3
    assert SentenceEncoder.load(last, device="cpu").encode(["das Haus"], "de").shape == (1, 32)
    state = open_checkpoint(last).training_state()["optimizer"]["state"]
    assert all(3 in own["exp_avg"].shape for own in state.values()) and len(state) == 8


@pytest.mark.slow
def test_options_name_factors_as_the_weights_that_they_change(data_directory: Path, tmp_path: Path) -> None:
    given = {
        "criterion": "dap",
        "rtl_layers": 1,
        "warmup_steps": 0,
        "lr_scheduler": "constant",
        "lr": 0.01,
        "optimizer": "adamw",
    }
    given |= {"lora_rank": 3, "max_steps": 1}
    sizes = list[float]()
    rates = ({"lr_multipliers": [f"{name}.*=10"]} for name in ("criterion", "encoders"))
    for number, more in enumerate(({}, {"freeze": ["criterion"]}, *rates)):
        last = train(compose_run(data_directory, tmp_path / str(number), **given, **more)).directory / "last"
        factors = open_checkpoint(last).tensors(CRITERION)
        sizes.append(max(float(own.abs().max()) for name, own in factors.items() if name.startswith("lora.b.")))
    assert sizes == pytest.approx([0.01, 0.01, 0.01, 0.1], rel=1e-3)


def test_frozen_towers_keep_their_weights(text) -> None:
    model = make_model(text, towers="separate")
    trained = {name for name, _ in model.named_parameters() if name.startswith("encoders.target")}
    assert {name.split(".")[1] for name in LowRank(model, trained, 2, 1.0).targets} == {"target"}

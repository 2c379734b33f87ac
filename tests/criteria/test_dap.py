"""dap on real pairs against its equations in float64; the start of its head, and the tokens that it may see."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.criteria.dap_reference import Chosen, reference
from tests.criteria.test_batches import NoWaiting
from tests.support.corpus import sentence_pairs, spanish_pairs
from tests.support.planning import loss_of, plan, sizes_of
from tests.support.runs import compose_run, contents, environment, make_trainer
from xrep.config import Part
from xrep.criteria.criterion import Loss, Planned
from xrep.criteria.dap import DAP
from xrep.criteria.multitask import Multitask
from xrep.criteria.reconstruction import PLACE
from xrep.data.batching import PairBatch, TextSpec, collate
from xrep.errors import UserError
from xrep.models.directory import open_checkpoint
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.bitext import BitextTask
from xrep.tasks.task import ParallelTask
from xrep.training.run import train

SMALL = {"hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48, "pooling": "cls"}
DE, EN, ES = range(3)


@pytest.fixture(scope="module")
def spec(text: TextSpec) -> TextSpec:
    """A task on text in which English is on either side."""
    return dataclasses.replace(text, source_languages=["de", "en"], target_languages=["en", "es"])


@pytest.fixture(scope="module")
def batch(make_batch) -> PairBatch:
    """Return nine mixed pairs of de-en and en-es of different lengths."""
    pairs, languages = [], []
    for number, ((german, english), (spanish, other)) in enumerate(
        zip(sentence_pairs(5), spanish_pairs(), strict=False)
    ):
        pairs += [(german * (1 + number % 2), english), (other, spanish)]
        languages += [(DE, EN), (EN, ES)]
    made = make_batch(pairs[:9])
    made.languages = torch.tensor(languages[:9])
    made.indices = torch.tensor([4, 7, 1, 2, 2, 9, 3, 5, 8])
    return made


def make(spec: TextSpec, layers: int = 3, **options: Any) -> tuple[DualEncoder, DAP]:
    """A model and its criterion, with weights that are all different."""
    torch.manual_seed(0)
    of_model = {name: options.pop(name) for name in ("norm", "pooled_layer", "dropout", "pooling") if name in options}
    rates = {"dropout": 0.0, "attention_dropout": 0.0}
    config = DualEncoder.Config(towers="shared", layers=layers, **{**SMALL, **rates, **of_model})
    model = DualEncoder(config, spec).double()
    shake(model)
    dap = DAP(DAP.Config(**options), model, spec).double()
    shake(dap)
    return model, dap


@torch.no_grad()
def shake(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))


def task_of(pairs: list[tuple[str, str]], subwords: dict[str, list[int]] | None = None) -> ParallelTask:
    """A task of translations that has these language pairs and, by language, subwords."""
    return Mock(spec=ParallelTask, language_pairs=pairs, subwords=lambda language: (subwords or {})[language])


def chosen_tokens(planned: Planned) -> Chosen:
    """The tokens of a batch that are predicted by its plan."""
    batch: PairBatch = planned.batch
    places, width = (
        set(planned.details.predicted[PLACE].tolist()),
        max(batch.source.tokens.size(1), batch.target.tokens.size(1)),
    )
    keys = ((side, row, position) for side in (0, 1) for row in range(len(batch)) for position in range(width))
    return {(side, row, at): (side * len(batch) + row) * width + at in places for side, row, at in keys}


def objective(loss: Loss, sizes: dict[str, float]) -> Tensor:
    return sum(term.weight * term.sum / sizes[name] for name, term in loss.terms.items())


CASES = {
    "to the pivot": {},
    "one layer": {"rtl_layers": 1, "temperature": 0.3},
    "from the pivot": {"rtl_direction": "from_pivot"},
    "both": {"rtl_direction": "both"},
    "both, own subwords": {"rtl_direction": "both", "rtl_vocabulary": "target-language"},
    "own subwords, pre-norm": {"rtl_vocabulary": "target-language", "norm": "pre", "rtl_layers": 3},
    "half of the tokens": {"reconstruction_ratio": 0.5},
    "a fifth of the tokens, both": {"reconstruction_ratio": 0.2, "rtl_direction": "both"},
    "sentences": {"rtl_average": "sentences"},
    "sentences, a third of the tokens": {"rtl_average": "sentences", "reconstruction_ratio": 0.3},
    "sentences, both, own subwords": {
        "rtl_average": "sentences",
        "rtl_direction": "both",
        "rtl_vocabulary": "target-language",
    },
    "own subwords, many unseen": {"rtl_vocabulary": "target-language"},
    "both, half of the tokens, many unseen": {
        "rtl_vocabulary": "target-language",
        "rtl_direction": "both",
        "reconstruction_ratio": 0.5,
    },
    "sentences, both, many unseen": {
        "rtl_average": "sentences",
        "rtl_direction": "both",
        "rtl_vocabulary": "target-language",
    },
    "masks without positions": {"mask_positions": "none", "pooling": "mean"},
    "pooled below the last layer": {"pooled_layer": 2, "rtl_layers": 1},
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient(spec: TextSpec, batch: PairBatch, name: str) -> None:
    model, dap = make(spec, **CASES[name])
    words = {side: set(getattr(batch, side).tokens.unique().tolist()) for side in ("source", "target")}
    subwords = dict.fromkeys(range(3), words["source"] | words["target"])
    if dap.config.rtl_vocabulary == "target-language":
        eos = dap._vocabulary.eos_id
        if "unseen" in name:  # the largest number of the batch among them
            subwords = {k: {eos, *sorted(words["source"] | words["target"])[k:-20:2]} for k in range(3)}
        subwords[EN] = subwords[EN] | {11, 12}
        dap.prepare(task_of([("de", "en")], {n: sorted(subwords[k] - {eos}) for k, n in enumerate(("de", "en", "es"))}))
    exact, exact_dap = copy.deepcopy(model), copy.deepcopy(dap)
    restricted = subwords if dap.config.rtl_vocabulary == "target-language" else None
    planned = plan(dap, batch, 5)
    expected = reference(exact, exact_dap, batch, EN, chosen_tokens(planned), restricted)
    weights = {"rtl_to_pivot": 0.5, "rtl_from_pivot": 0.5}
    wanted = sum(weights.get(name, 1.0) * loss / expected.count[name] for name, loss in expected.loss.items())
    wanted.backward()

    loss, sizes = dap(model, planned), planned.sizes
    assert sizes == expected.count and list(loss.terms) == list(sizes)
    for term, value in loss.terms.items():
        torch.testing.assert_close(value.sum, expected.loss[term], rtol=1e-12, atol=0, msg=term)
    objective(loss, sizes).backward()
    named = [*nn.ModuleDict({"model": model, "dap": dap}).named_parameters()]
    theirs = [*exact.parameters(), *exact_dap.parameters()]
    for (parameter, mine), other in zip(named, theirs, strict=True):
        assert (mine.grad is None) == (other.grad is None), parameter
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-12, msg=parameter)
    assert 0 <= float(loss.metrics["rtl_accuracy"]) <= 100


@pytest.mark.parametrize(("layers", "options"), [(3, {}), (2, {"norm": "pre"}), (1, {"pooled_layer": 2})])
def test_the_head_begins_as_the_last_layers(spec: TextSpec, layers: int, options: dict) -> None:
    torch.manual_seed(1)
    model = DualEncoder(DualEncoder.Config(towers="shared", layers=3, **SMALL, **options), spec)
    head = DAP(DAP.Config(rtl_layers=layers), model, spec).head
    encoder, depth = model.encoders["shared"], options.get("pooled_layer", 3)
    own = head.layers.state_dict()
    last = nn.ModuleList(encoder.layers[depth - layers : depth]).state_dict()
    assert list(own) == list(last) and all(torch.equal(own[name], last[name]) for name in own)
    if options.get("norm") == "pre":
        assert all(torch.equal(a, b) for a, b in zip(head.norm.parameters(), encoder.norm.parameters(), strict=True))
    assert (head.norm is not None) == (options.get("norm") == "pre") and not head.bias.any()
    kept = {parameter.data_ptr() for parameter in model.parameters()}
    assert kept.isdisjoint(parameter.data_ptr() for parameter in head.parameters()), "the head trains on its own"
    assert {tuple(p.shape) for p in head.parameters()}.isdisjoint({tuple(encoder.token_embedding.weight.shape)})


class Spied(nn.Module):
    """A model whose token vectors can be read and changed before the criterion gets them."""

    def __init__(self, model: DualEncoder) -> None:
        super().__init__()
        self.model, self.encoders = model, model.encoders
        self.change = lambda states: states

    def encode(self, tower: str, tokens: Any) -> tuple[Tensor, Tensor]:
        sentence, states = self.model.encode(tower, tokens)
        self.states = self.change(states)
        if self.states.requires_grad:
            self.states.retain_grad()
        return sentence, self.states


@pytest.mark.parametrize("name", ["to the pivot", "both", "half of the tokens"])
def test_the_head_sees_x_and_never_cls(spec: TextSpec, batch: PairBatch, name: str) -> None:
    model, dap = make(spec, **CASES[name])
    spied = Spied(model)

    def rtl() -> Tensor:
        terms = loss_of(dap, spied, batch, seed=2).terms
        return torch.stack([terms[name].sum for name in terms if name != "translation_ranking"])

    plain = rtl()
    plain.sum().backward()
    gradient = spied.states.grad
    assert not gradient[:, 0].any(), "[CLS] has gradient of L_RTL"
    side = 1 + batch.source.tokens.size(1)
    assert gradient[: len(batch), 1:side].abs().sum() > 0
    spied.change = lambda states: torch.cat([states[:, :1] + 100, states[:, 1:]], dim=1)
    assert torch.equal(rtl(), plain), "[CLS] has a say in L_RTL"
    spied.change = lambda states: torch.cat([states[:, :1], states[:, 1:] + torch.randn_like(states[:, 1:])], dim=1)
    assert not torch.isclose(rtl(), plain).any()


def test_the_prediction_follows_the_words_of_x(spec: TextSpec, make_batch) -> None:
    """The predictions for a translation depend on the other sentence; another [CLS] token changes them only through
    attention."""
    model, dap = make(spec)
    english = sentence_pairs(1)[0][1]
    losses = [
        float(loss_of(dap, model, make_batch([(german, english)])).terms["rtl"].sum.detach())
        for german in (sentence_pairs(1)[0][0], "die junge Frau sucht das offene Fenster")
    ]
    assert losses[0] != pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("name", ["both", "half of the tokens", "from the pivot"])
def test_parts_of_a_batch_sum_up_to_it(spec: TextSpec, batch: PairBatch, name: str) -> None:
    model, dap = make(spec, **{**CASES[name], "reconstruction_ratio": 1.0})
    planned = plan(dap, batch)
    whole = dap.encode(model, planned).loss
    parts = [plan(dap, batch.rows(*bounds)) for bounds in ((0, 4), (4, 4), (4, 5), (5, 9))]
    losses, sizes = [dap.encode(model, part).loss for part in parts], [part.sizes for part in parts]
    for term, expected in whole.terms.items():
        torch.testing.assert_close(sum(loss.terms[term].sum for loss in losses), expected.sum, rtol=1e-12, atol=0)
        assert sum(size[term] for size in sizes) == planned.sizes[term]
        assert all(term in size for size in sizes) and sizes[1][term] == 0
    for vectors, again in zip(dap.encode(model, planned).vectors, dap.vectors(model, planned), strict=True):
        assert torch.equal(vectors, again)


@pytest.mark.parametrize("kind", ["float32", "float64", "bf16 autocast"])
@pytest.mark.parametrize("name", ["to the pivot", "both, own subwords", "half of the tokens"])
def test_a_batch_of_no_rows_is_worth_nothing(spec: TextSpec, batch: PairBatch, name: str, kind: str) -> None:
    model, dap = make(spec, **CASES[name], dropout=0.1)
    dap.prepare(task_of([("de", "en")], dict.fromkeys(("de", "en", "es"), range(150))))
    both = nn.ModuleList([model, dap]).train()
    both.double() if kind == "float64" else both.float()
    for part in (batch, batch.rows(3, 3), batch.rows(0, 1)):
        both.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in kind):
            loss = loss_of(dap, model, part)
        objective(loss, {name: max(size, 1) for name, size in sizes_of(dap, part).items()}).backward()
        assert all(term.sum.isfinite() for term in loss.terms.values())
        assert all(metric.isfinite() and not metric.requires_grad for metric in loss.metrics.values())
        for parameter in both.parameters():  # the engine waits for gradients of all parameters on every rank
            assert parameter.grad is not None and parameter.grad.isfinite().all()
            assert len(part) or not parameter.grad.any()
        assert len(part) or not any(float(term.sum.detach()) for term in loss.terms.values())


@pytest.mark.parametrize("name", CASES)
def test_a_step_does_not_wait_for_the_device(spec: TextSpec, batch: PairBatch, name: str) -> None:
    model, dap = make(spec, **CASES[name])
    dap.prepare(task_of([("de", "en")], dict.fromkeys(("de", "en", "es"), range(150))))
    planned = plan(dap, batch).to("cpu")
    with NoWaiting():
        objective(dap(model, planned), planned.sizes).backward()


def test_cut_sentences(spec: TextSpec, batch: PairBatch, tokenizer) -> None:
    """Of a sentence that ``max_length`` cuts, only the remaining tokens are predicted."""
    model, dap = make(spec)
    sides = [[np.array(ids) for ids in tokenizer.encode(list(side))] for side in zip(*sentence_pairs(9), strict=True)]
    short = [collate(side, spec.vocabulary("shared"), 5) for side in sides]
    cut = dataclasses.replace(batch, source=short[0], target=short[1], languages=torch.tensor([[DE, EN]] * 9))
    assert sizes_of(dap, cut)["rtl"] == 9 * 4 and loss_of(dap, model, cut).terms["rtl"].sum.isfinite()


def test_going_on_is_the_same_as_never_stopping(data_directory, tmp_path: Path) -> None:
    """Random draws, dropout and the head continue exactly after a resumption."""
    dap = {"criterion": "dap", "rtl_layers": 1, "rtl_direction": "both", "rtl_vocabulary": "target-language"}
    given = {**dap, "reconstruction_ratio": 0.5, "lr_scheduler": "constant", "save_every": 4, "log_every": 1}
    once = train(compose_run(data_directory, tmp_path / "once", max_steps=7, **given))
    train(compose_run(data_directory, tmp_path / "twice", max_steps=4, **given))
    twice = train(compose_run(data_directory, tmp_path / "twice", max_steps=7, **given))
    one, other = (contents(summary.directory / "checkpoint-00000007") for summary in (once, twice))
    for name in ("model.safetensors", "criterion.safetensors"):
        assert one[name] == other[name]
    saved = open_checkpoint(twice.directory / "last").tensors("criterion.safetensors")
    assert "head.language_embedding.weight" in saved and not [name for name in saved if "subwords" in name]
    metrics = json.loads((once.directory / "metrics.jsonl").read_text().splitlines()[0])
    assert {"loss_translation_ranking", "loss_rtl_to_pivot", "loss_rtl_from_pivot", "rtl_accuracy"} <= set(metrics)


def test_micro_batches_change_nothing(data_directory, tmp_path: Path) -> None:
    states = []
    for name, given in (("whole", {}), ("pieces", {"micro_batch": 7})):
        exact = {
            "criterion": "dap",
            "rtl_layers": 1,
            "dropout": 0,
            "attention_dropout": 0,
            "optimizer": "sgd",
            "lr": 0.1,
        }
        run = compose_run(data_directory, tmp_path / name, max_steps=3, **exact, **given)
        torch.set_default_dtype(torch.float64)
        try:
            trainer = make_trainer(run, tmp_path / name)
            trainer.train()
        finally:
            torch.set_default_dtype(torch.float32)
        states.append(trainer.module.state_dict())
    assert "criterion.head.bias" in states[0] and states[0]["criterion.head.bias"].any()
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=0, atol=1e-11, msg=name)


def test_a_part_of_a_mixture_is_prepared_with_its_own_task(spec: TextSpec) -> None:
    model, _ = make(spec)
    part = Part("align", DAP, DAP.Config(rtl_vocabulary="target-language"), 1.0, 1.0)
    both = Multitask(Multitask.Config(parts=[part], mixing="weight"), model, spec)
    both.prepare(SimpleNamespace(parts={"align": task_of([("de", "en")], {"en": [9, 7]})}))
    assert both.parts["align"].get_buffer(f"subwords_{EN}").tolist() == [spec.vocabulary("shared").eos_id, 7, 9]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"rtl_layers": 4}, "the encoder has 3 layers; lower `rtl_layers` from 4"),
        ({"rtl_layers": 2, "pooled_layer": 1}, "the encoder has 1 layers; lower `rtl_layers` from 2"),
        ({"pivot_language": "fr"}, "pivot_language 'fr' is none of the text's; choose one of: de, en, es"),
    ],
)
def test_refusals(spec: TextSpec, options: dict, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        make(spec, **options)


def test_text_that_does_not_fit(text: TextSpec, spec: TextSpec) -> None:
    separate = DualEncoder(DualEncoder.Config(layers=1, **SMALL), text)
    with pytest.raises(UserError, match="all languages share one encoder; set `towers` to shared"):
        DAP(DAP.Config(rtl_layers=1), separate, text)
    vocabulary = dataclasses.replace(text.vocabularies["shared"], mask_id=None)
    unmasked = dataclasses.replace(text, vocabularies={"shared": vocabulary})
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        make(unmasked)
    _, dap = make(spec)
    dap.prepare(task_of([("de", "en"), ("en", "es")]))
    with pytest.raises(UserError, match="de-es: no side is in the pivot language 'en'"):
        dap.prepare(task_of([("de", "en"), ("de", "es")]))


def test_subwords_of_a_language(data_directory) -> None:
    task = BitextTask(BitextTask.Config(data=str(data_directory)), seed=0)
    assert sorted(task.language_pairs) == [("de", "en"), ("es", "en")]
    seen: dict[str, set[int]] = {}
    for pair in task._train:
        for language, column in zip(pair.languages, (pair.source, pair.target), strict=True):
            seen.setdefault(language, set()).update(*(column[row].tolist() for row in range(len(column))))
    found = {language: task.subwords(language).tolist() for language in ("de", "en", "es")}
    assert found == {language: sorted(ids) for language, ids in seen.items()}
    assert found["en"] != found["de"] and len(found["es"]) < task.text.vocabularies["shared"].size


def test_problems() -> None:
    config = DAP.Config(rtl_layers=0, reconstruction_ratio=0.0, temperature=0.0)
    assert [problem.split()[0] for problem in config.problems()] == [
        "temperature",
        "rtl_layers",
        "reconstruction_ratio",
    ]
    assert DAP.Config().problems() == []


def test_help_shows_what_is_inherited_and_waits_for_no_torch() -> None:
    code = "import sys; from xrep_cli.train import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    line = [sys.executable, "-c", code, "--task", "bitext", "--criterion", "dap", "--help"]
    finished = subprocess.run(line, env=environment(), capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert all(f"\n  --{name} " in finished.stdout for name in ("temperature", "margin", "rtl-layers"))
    assert finished.stdout.count("--directions {both,forward}") == 1
    assert "(default: forward)" in " ".join(finished.stdout.split())

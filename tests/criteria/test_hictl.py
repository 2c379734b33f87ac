"""hictl on real pairs against its equations in float64, in parts and as a whole; its history; its sampled words."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.criteria.hictl_reference import put_together, reference
from tests.criteria.test_batches import NoWaiting
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, plan, sizes_of, token_batch
from tests.support.runs import compose_run, contents, make_trainer
from xrep.config import compose, read_yaml
from xrep.criteria import hictl as module
from xrep.criteria.criterion import Loss
from xrep.criteria.hictl import BATCHES, Hardness, HiCTL, bag_of_words
from xrep.data.batching import PairBatch, TextSpec
from xrep.data.masking import mask_counts
from xrep.errors import UserError
from xrep.models.directory import open_checkpoint
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.task import Examples
from xrep.training.run import train

SMALL = {"hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 96, "pooling": "cls"}
EVERYTHING = 10_000
"""More samples than words: all words are sampled."""


@pytest.fixture(scope="module")
def batch(make_batch) -> PairBatch:
    """Return nine pairs of different lengths, two with the same German sentence."""
    pairs = [(german * (1 + n % 2), english) for n, (german, english) in enumerate(sentence_pairs(9))]
    pairs[4] = (pairs[0][0], pairs[4][1])
    return make_batch(pairs)


def make(text: TextSpec, **options: Any) -> tuple[DualEncoder, HiCTL]:
    """A model and its criterion, with weights that are all different and a history of three steps."""
    torch.manual_seed(0)
    names = ("norm", "dropout", "pooling", "normalize", "projection_size", "towers")
    of_model = {name: options.pop(name) for name in names if name in options}
    fixed = {"layers": 2, "dropout": 0.0, "attention_dropout": 0.0, "towers": "shared", "normalize": False}
    model = DualEncoder(DualEncoder.Config(**{**SMALL, **fixed, **of_model}), text).double()
    shake(model)
    hictl = HiCTL(HiCTL.Config(**{"word_samples": EVERYTHING, **options}), model, text).double()
    shake(hictl)
    if hictl.hardness is not None:
        hictl.hardness.history[:3] = torch.tensor([0.5, 0.9, 0.7])
        hictl.hardness.steps.fill_(3)
    return model, hictl


@torch.no_grad()
def shake(part: nn.Module) -> None:
    for parameter in part.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))


def objective(loss: Loss, sizes: dict[str, float]) -> Tensor:
    return sum(term.weight * term.sum / sizes[name] for name, term in loss.terms.items())


CASES = {
    "all": {},
    "all, cool, of a projection": {"temperature": 0.1, "word_temperature": 0.05, "projection_size": 12},
    "unmasked query": {"word_query": "unmasked", "pooling": "mean"},
    "monolingual": {"monolingual": True, "norm": "pre"},
    "more masked": {"mask_rate": 0.5},
    "without a language model": {"language_model": False, "temperature": 0.2},
    "without sentences": {"sentence_contrast": False},
    "without words": {"word_contrast": False},
    "without hard negatives": {"hard_negatives": False, "temperature": 0.1},
    "sentences alone, of length 1": {"language_model": False, "word_contrast": False, "normalize": True},
    "words alone": {"language_model": False, "sentence_contrast": False},
    "language model alone": {"sentence_contrast": False, "word_contrast": False},
    "equal sentences masked": {"mask_equal_sentences": True, "temperature": 0.1},
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient(text: TextSpec, batch: PairBatch, name: str) -> None:
    model, hictl = make(text, **CASES[name])
    exact, exact_hictl = copy.deepcopy(model), copy.deepcopy(hictl)
    same = torch.eye(9, dtype=torch.bool)
    if hictl.config.mask_equal_sentences:
        same[0, 4] = same[4, 0] = True
    masked = None
    if hictl.language is not None:
        read = batch.source
        if not hictl.config.monolingual:
            read = put_together(batch, hictl._vocabulary.pad_id)
        masked = hictl.language.mask("shared", read, torch.Generator().manual_seed(5))
        rate = hictl.config.mask_rate or (0.15 if hictl.config.monolingual else 0.25)
        assert len(masked.labels) == pytest.approx(rate * int((read.lengths - 2).sum()), rel=0.15)
    expected = reference(exact, exact_hictl, batch, masked, same)
    sum(expected.losses.values()).backward()

    planned = plan(hictl, batch, 5)
    loss, sizes = hictl(model, planned), planned.sizes
    assert {*sizes} == {*loss.terms} == {*expected.losses}
    for term, value in loss.terms.items():
        torch.testing.assert_close(value.sum / sizes[term], expected.losses[term], rtol=1e-11, atol=0, msg=term)
    objective(loss, sizes).backward()
    named = [*nn.ModuleDict({"model": model, "hictl": hictl}).named_parameters()]
    for (parameter, mine), other in zip(named, [*exact.parameters(), *exact_hictl.parameters()], strict=True):
        assert (mine.grad is None) == (other.grad is None), parameter
        assert mine.grad is not None or hictl.idle_parameters, parameter
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-8, atol=1e-11, msg=parameter)
    if hictl.hardness is not None:
        assert expected.farther > 50 and expected.nearer > 20, "both cases of equation 5 occur"
        assert float(loss.metrics["lambda"]) == pytest.approx(expected.mixing, rel=1e-10) and expected.mixing < 0.99
    assert all(0 <= float(value) <= 100 and not value.requires_grad for value in loss.metrics.values())


def test_sizes(text: TextSpec, batch: PairBatch) -> None:
    _, hictl = make(text)
    together = put_together(batch, hictl._vocabulary.pad_id)
    masked = int(mask_counts(together, text.vocabulary("shared"), 0.25).sum())
    assert sizes_of(hictl, batch) == {"tlm": masked, "sentence": 18, "word": 9}


def test_p_positive_is_of_the_last_steps() -> None:
    hardness = Hardness(0.9)
    assert float(hardness.exponent()) == 0
    losses = [0.1 + 0.01 * step for step in range(130)]
    for step, loss in enumerate(losses):
        for part in (0.25, 0.75):  # two batches of one step
            hardness.note(torch.tensor(loss * part * 40), int(20 * 2 * part))
        hardness.update()
        last = torch.tensor(losses[max(0, step + 1 - BATCHES) : step + 1]).neg().exp().mean()
        assert float(hardness.p_positive()) == pytest.approx(float(last), rel=1e-5)
    assert float(hardness.exponent()) == pytest.approx(0.9 * float(last), rel=1e-5)
    before = copy.deepcopy(hardness.state_dict())
    hardness.update()
    hardness.note(torch.zeros(()), 0)
    hardness.update()
    assert all(torch.equal(tensor, before[name]) for name, tensor in hardness.state_dict().items()), "of no pairs"


def test_only_training_is_noted(text: TextSpec, batch: PairBatch) -> None:
    model, hictl = make(text)
    loss_of(hictl.eval(), model, batch)
    hictl.after_step(model)
    assert int(hictl.hardness.steps) == 3
    loss = loss_of(hictl.train(), model, batch)
    hictl.after_step(model)
    assert int(hictl.hardness.steps) == 4
    expected = torch.exp(-loss.terms["sentence"].sum.detach() / 18)
    assert float(hictl.hardness.history[3]) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.slow
def test_negatives_become_harder_once_sentences_are_told_apart(data_directory, tmp_path: Path) -> None:
    given = {"temperature": 0.05, "word_temperature": 0.1, "word_samples": 64, "mask_equal_sentences": None}
    run = compose_run(
        *(data_directory, tmp_path), criterion="hictl", lr_scheduler="constant", max_steps=110, max_positions=64,
        lr=1e-2, log_every=10, pooling="mean", no_normalize=None, dropout=0, attention_dropout=0, **given,
    )  # fmt: skip
    train(run)
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    lines = [line for line in lines if line["kind"] == "train"]
    first, last = lines[0], lines[-1]
    assert first["lambda"] > 0.9 and last["lambda"] < 0.9, (first, last)
    assert last["sentence_accuracy"] > 90 > first["sentence_accuracy"] and last["p_positive"] > first["p_positive"]
    for name in ("loss_tlm", "loss_word", "loss"):
        assert last[name] < first[name]


def test_special_tokens_are_neither_in_the_bag_nor_sampled(text: TextSpec, make_batch, monkeypatch) -> None:
    vocabulary = text.vocabulary("shared")
    specials = {vocabulary.pad_id, vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id, vocabulary.mask_id}
    assert set(vocabulary.special_ids) == specials and len(specials) == 5
    pairs = [(f"漢字 {german}", english) for german, english in sentence_pairs(6)]
    unknown = make_batch(pairs)
    assert (unknown.source.tokens == vocabulary.unk_id).any()
    seen = []

    def spy(query: Tensor, embedding: Tensor, words: Tensor, bag: Tensor, *given: Any, **options: Any) -> Any:
        found = kept(query, embedding, words, bag, *given, **options)
        seen.append((words, bag, found.sampled))
        return found

    kept = module.word_infonce
    monkeypatch.setattr(module, "word_infonce", spy)
    for samples in (20, EVERYTHING):
        model, hictl = make(text, word_samples=samples)
        # Some pretrained encoders have a table that is longer than their vocabulary.
        small = dataclasses.replace(text, vocabularies={"shared": dataclasses.replace(vocabulary, size=140)})
        for criterion in (hictl, HiCTL(hictl.config, model, small).double()):
            loss_of(criterion, model, unknown)
            words, bag, sampled = seen.pop()
            together = put_together(unknown, vocabulary.pad_id).tokens
            for row in range(len(unknown)):
                inside = words[row][bag[row]].tolist()
                assert len(inside) == len(set(inside)) and set(inside) == set(together[row].tolist()) - specials
                drawn = set(sampled[row].tolist()) - {-1}
                assert not drawn & {*inside, *specials} and drawn
                assert max(drawn) < criterion._vocabulary.size <= vocabulary.size
                assert len(drawn) == 20 or samples == EVERYTHING


def test_bag_of_words_by_hand(text: TextSpec) -> None:
    vocabulary = dataclasses.replace(text.vocabulary("shared"), pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=4)
    tokens = torch.tensor([[2, 9, 7, 9, 3, 1, 7, 3], [2, 5, 3, 3, 0, 0, 0, 0]])
    found = bag_of_words(token_batch(tokens, torch.tensor([8, 4])), vocabulary)
    assert [found.words[row][found.bag[row]].tolist() for row in range(2)] == [[7, 9], [5]]
    assert found.together.tokens.equal(tokens)


def test_monolingual_text_is_masked_on_one_side_alone(text: TextSpec, batch: PairBatch) -> None:
    """Words that are masked in x cannot be read in y, which has the same words."""
    model, hictl = make(text, monolingual=True, word_contrast=False, sentence_contrast=False)
    other = dataclasses.replace(batch, target=batch.source)
    assert torch.equal(*(loss_of(hictl, model, given, seed=1).terms["mlm"].sum for given in (batch, other)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "float64", "bf16 autocast"])
@pytest.mark.parametrize("name", CASES)
def test_a_batch_of_no_rows_is_worth_nothing(text: TextSpec, batch: PairBatch, name: str, kind: str) -> None:
    model, hictl = make(text, **{**CASES[name], "dropout": 0.1, "word_samples": 30})
    both = nn.ModuleList([model, hictl]).train()
    both.double() if kind == "float64" else both.float()
    for part in (batch, batch.rows(3, 3), batch.rows(0, 1)):
        both.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in kind):
            loss = loss_of(hictl, model, part)
        objective(loss, {name: max(size, 1) for name, size in sizes_of(hictl, part).items()}).backward()
        hictl.after_step(model)
        assert all(term.sum.isfinite() for term in loss.terms.values())
        assert all(metric.isfinite() and not metric.requires_grad for metric in loss.metrics.values())
        for parameter in both.parameters():  # the engine waits for gradients of all parameters on every rank
            assert parameter.grad is not None or hictl.idle_parameters
            assert parameter.grad is None or parameter.grad.isfinite().all()
            assert parameter.grad is None or len(part) or not parameter.grad.any()
        assert len(part) or not any(float(term.sum.detach()) for term in loss.terms.values())
    assert hictl.hardness is None or int(hictl.hardness.steps) == 5


@pytest.mark.parametrize("name", CASES)
def test_a_step_does_not_wait_for_the_device(text: TextSpec, batch: PairBatch, name: str) -> None:
    model, hictl = make(text, **CASES[name])
    planned = plan(hictl, batch).to("cpu")
    with NoWaiting():
        objective(hictl(model, planned), planned.sizes).backward()
        hictl.after_step(model)


@pytest.mark.slow
def test_going_on_is_the_same_as_never_stopping(data_directory, tmp_path: Path) -> None:
    """Masks, sampled words, dropout and the history continue exactly after a resumption."""
    given = {
        "criterion": "hictl",
        "temperature": 0.1,
        "word_samples": 20,
        "max_positions": 64,
        "word_query": "unmasked",
    }
    given |= {"lr_scheduler": "constant", "save_every": 4, "log_every": 1}
    once = train(compose_run(data_directory, tmp_path / "once", max_steps=7, **given))
    train(compose_run(data_directory, tmp_path / "twice", max_steps=4, **given))
    twice = train(compose_run(data_directory, tmp_path / "twice", max_steps=7, **given))
    one, other = (contents(summary.directory / "checkpoint-00000007") for summary in (once, twice))
    for name in ("model.safetensors", "criterion.safetensors"):
        assert one[name] == other[name]
    saved = open_checkpoint(twice.directory / "last").tensors("criterion.safetensors")
    assert int(saved["hardness.steps"]) == 7 and (saved["hardness.history"][:7] > 0).all()
    assert "special" not in saved and "language.heads.shared.bias" in saved


def test_micro_batches_change_nothing(data_directory, tmp_path: Path) -> None:
    """Results differ only by masks and sampled words; here nothing is masked and all words are sampled."""
    states = []
    for name, given in (("whole", {}), ("pieces", {"micro_batch": 7})):
        exact = {
            "criterion": "hictl", "no_language_model": None, "word_samples": EVERYTHING, "temperature": 0.1,
            "dropout": 0, "attention_dropout": 0, "optimizer": "sgd", "lr": 0.1, "max_positions": 64,
        }  # fmt: skip
        run = compose_run(data_directory, tmp_path / name, max_steps=3, **exact, **given)
        torch.set_default_dtype(torch.float64)
        try:
            trainer = make_trainer(run, tmp_path / name)
            trainer.train()
        finally:
            torch.set_default_dtype(torch.float32)
        states.append(trainer.module.state_dict())
    assert states[0]["criterion.hardness.history"][:3].all()
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=0, atol=1e-11, msg=name)


def test_both_passes_over_a_piece_draw_alike(text: TextSpec, batch: PairBatch) -> None:
    model, hictl = make(text, dropout=0.3)
    states, planned = [], plan(hictl, batch)
    for read in (hictl.vectors, lambda *given: hictl.encode(*given).vectors):
        torch.manual_seed(2)
        states.append(read(model, planned))
    assert all(torch.equal(*sides) for sides in zip(*states, strict=True))


def test_text_without_translations_beside_bitext(data_directory, tmp_path: Path, monkeypatch) -> None:
    """The run has the criteria of the recipe at the paper's scale, with smaller numbers."""
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    for language, sentences in zip(("de", "en"), zip(*sentence_pairs(300), strict=True), strict=True):
        (tmp_path / f"{language}.txt").write_text("\n".join(sentences), encoding="utf-8")
    recipe = read_yaml(Path(__file__).parents[2] / "examples" / "hictl" / "hictl.yaml")
    own = [{"data": str(data_directory)}, {"data": str(tmp_path), "tokenizer": str(data_directory)}]
    for part, task in zip(recipe["parts"], own, strict=True):
        part["task"] |= {"batch_size": 20, "max_length": 24, **task}
        part["criterion"] |= {"word_samples": 30}
    small = {
        "model": {"name": "dual_encoder", "towers": "shared", "layers": 1, **SMALL, "projection_size": 12},
        "trainer": {"max_steps": 6},
        "logging": {"log_every": 1},
        "checkpoint": {"save_dir": str(tmp_path / "run")},
    }
    directory = train(compose([("", {**recipe, **small})])).directory
    saved = open_checkpoint(directory / "last").tensors("criterion.safetensors")
    steps = [int(saved[f"parts.{part}.hardness.steps"]) for part in ("parallel", "monolingual")]
    assert sum(steps) == 6 and min(steps) >= 2
    heads = {name.partition(".heads")[0] for name in saved if ".heads." in name}
    assert heads == {"parts.parallel.language"}, "the model that goes on has one"
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    terms = {name for line in lines for name in line if name.startswith("loss_")}
    assert terms == {
        *(f"loss_parallel/{name}" for name in ("tlm", "sentence", "word")),
        *(f"loss_monolingual/{name}" for name in ("mlm", "sentence", "word")),
    }


@pytest.mark.parametrize(
    ("gives", "monolingual", "problem"),
    [
        (Examples.SENTENCES, True, "reads translations or reordered sentences, .* gives single .*`units` to reordered"),
        (Examples.NEIGHBOURS, False, "gives neighbouring sentences; set `task` to bitext, or .*`units` to reordered"),
        (Examples.REORDERED, False, "reveal each other's masked words; set `monolingual` to true"),
    ],
)
def test_text_that_does_not_fit(text: TextSpec, gives: Examples, monolingual: bool, problem: str) -> None:
    _, hictl = make(text, monolingual=monolingual)
    with pytest.raises(UserError, match=problem):
        check(hictl, gives)
    check(hictl, Examples.TRANSLATIONS)
    if monolingual:
        check(hictl, Examples.REORDERED)


def check(hictl: HiCTL, gives: Examples) -> None:
    """Check a task that gives examples of this kind, as is done before training."""
    task = SimpleNamespace(gives=gives, has_hard_negatives=False)
    hictl.check_task(task)
    hictl.prepare(task)


def test_refusals(text: TextSpec) -> None:
    with pytest.raises(UserError, match="hictl: all languages share one encoder; set `towers` to shared"):
        make(text, towers="separate")
    vocabulary = dataclasses.replace(text.vocabularies["shared"], mask_id=None)
    unmasked = dataclasses.replace(text, vocabularies={"shared": vocabulary})
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        make(unmasked)
    model, hictl = make(unmasked, language_model=False)
    assert len(hictl.special) == 4


def test_warnings(text: TextSpec) -> None:
    _, hictl = make(text)
    (warning,) = hictl.warnings(None)
    assert "a `temperature` of 1.0" in warning
    for cure in ({"temperature": 0.05}, {"hard_negatives": False}, {"sentence_contrast": False}):
        assert make(text, **cure)[1].warnings(None) == []


def test_problems() -> None:
    config = HiCTL.Config(
        language_model=False, sentence_contrast=False, word_contrast=False, temperature=0, word_temperature=-1,
        mask_rate=1.5, slack=1.0, word_samples=0,
    )  # fmt: skip
    assert [problem.split()[0].rstrip(",") for problem in config.problems()] == [
        "temperature", "word_temperature", "mask_rate", "slack", "word_samples", "language_model",
    ]  # fmt: skip
    assert HiCTL.Config().problems() == []

"""The plan of a batch, for every criterion: what it depends on, and where its data are."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, plan
from xrep.config import Part
from xrep.criteria.contrastive import ContrastiveCriterion
from xrep.criteria.criterion import Criterion, Planned
from xrep.criteria.multitask import Multitask
from xrep.data.batching import PairBatch, TextSpec
from xrep.models.dual_encoder import DualEncoder
from xrep.models.translation import Translation
from xrep.registry import CRITERIA
from xrep.tasks.mixture import MixedBatch
from xrep.tasks.monolingual import SentenceBatch
from xrep.tasks.nli import NliBatch
from xrep.tasks.task import Examples

SMALL = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 96}
PARTS = {"hictl": {}, "mlm": {}, "dap": {"rtl_layers": 1}, "translation_ranking": {}}
ANNOTATED = ("classification", "span", "tagging")
OWN = [name for name in CRITERIA.names() if CRITERIA.target(name).startswith("xrep.") and name not in ANNOTATED]
"""Every criterion, without those of plugins and those of annotated text, whose plans are the batch and a number."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in OWN if name != "dap"},
    "dap": ("dap", {"rtl_layers": 1}),
    "dap, half of the tokens": ("dap", {"rtl_layers": 1, "reconstruction_ratio": 0.5}),
    "mlm, whole words": ("mlm", {"whole_word": True, "mask_rate": 0.4}),
    "hictl, monolingual": ("hictl", {"monolingual": True}),
    "hictl, no language model": ("hictl", {"language_model": False}),
    "multitask": ("multitask", {}),
    "multitask, in pieces": ("multitask", {"micro_batch": 4}),
    "hictl, in pieces": ("hictl", {"micro_batch": 4}),
    "nli_triplet, in pieces": ("nli_triplet", {"micro_batch": 4}),
}
DRAWING = {"cmlm", "hictl", "mlm", "tlm", "dap, half of the tokens", "mlm, whole words", "hictl, monolingual",
           "multitask", "multitask, in pieces", "hictl, in pieces"}  # fmt: skip
"""Cases in which the plan needs random numbers."""

Make = Callable[[str], tuple[nn.Module, Criterion, Any]]


@pytest.fixture(scope="module")
def make(text: TextSpec, tokenizer, make_batch) -> Make:
    """A case's name -> model, criterion and a batch of 9 ragged examples."""
    pairs = make_batch([(german * (1 + n % 2), english) for n, (german, english) in enumerate(sentence_pairs(9))])
    task = SimpleNamespace(tokenizers={"shared": tokenizer}, gives=Examples.TRANSLATIONS)

    def made(name: str) -> tuple[nn.Module, Criterion, Any]:
        kind, options = CASES[name]
        torch.manual_seed(0)
        if kind == "label_smoothed_cross_entropy":
            model: nn.Module = Translation(Translation.Config(decoder_layers=1, **SMALL), text)
        else:
            towers = "separate" if kind == "frozen_source" else "shared"
            model = DualEncoder(DualEncoder.Config(towers=towers, **SMALL), text)
        rows = options.get("micro_batch")
        criterion = build(kind, {key: value for key, value in options.items() if key != "micro_batch"}, model, text)
        if options.get("whole_word"):
            criterion.prepare(task)
        if rows is not None:
            criterion.set_micro_batch(rows)
        return model, criterion, batch_for(kind, pairs)

    return made


def build(kind: str, options: dict[str, Any], model: nn.Module, text: TextSpec) -> Criterion:
    if kind != "multitask":
        loaded = CRITERIA.load(kind)
        return loaded(loaded.Config(**options), model, text)
    loaded = {name: CRITERIA.load(name) for name in PARTS}
    parts = [Part(name, of, of.Config(**PARTS[name]), 1.0, 1.0) for name, of in loaded.items()]
    return Multitask(Multitask.Config(parts=parts, mixing="weight"), model, text)


def batch_for(kind: str, pairs: PairBatch) -> Any:
    """The pairs in the form that a criterion reads."""
    count, sides = len(pairs), (pairs.source, pairs.target)
    if kind == "mlm":
        return SentenceBatch(pairs.source, pairs.indices, pairs.languages[:, 0])
    if kind == "multitask":
        return MixedBatch({name: batch_for(name, pairs) for name in PARTS})
    if kind not in ("nli", "nli_triplet"):
        return pairs
    own = torch.arange(count)
    columns = [own, own + count] if kind == "nli" else [own, own + count, own.flip(0) + count]
    places = torch.stack(columns, dim=1)
    labels = own % 3 if kind == "nli" else torch.full_like(own, -1)
    return NliBatch(sides, places, labels, places, own, torch.zeros_like(places))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors, arrays and numbers in a plan, with their places."""
    if is_dataclass(value):
        yield path, type(value).__name__
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, f"{path}.{name}")
    else:
        yield path, value


def contents(planned: Planned) -> list[tuple[str, Any]]:
    """What a plan says, such that equal plans are equal."""
    found = []
    for path, value in leaves(planned):
        listed = isinstance(value, Tensor | np.ndarray)
        found.append((path, (type(value).__name__, str(value.dtype), value.tolist()) if listed else value))
    return found


def global_state() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), [str(part) for part in np.random.get_state()]]


@pytest.mark.parametrize("name", CASES)
def test_a_plan_depends_only_on_the_batch_and_the_generator(make: Make, name: str) -> None:
    _, criterion, batch = make(name)
    before = contents(batch)
    planned = plan(criterion, batch, 3)
    torch.manual_seed(100)
    state = global_state()
    assert contents(plan(criterion, batch, 3)) == contents(planned)
    assert contents(plan(copy.deepcopy(criterion).eval(), batch, 3)) == contents(planned)
    assert plan(criterion, batch, 3).sizes == planned.sizes != {} and len(planned) == len(batch)
    assert global_state() == state and contents(batch) == before
    other = plan(criterion, batch, 4)
    assert (contents(other) != contents(planned)) is (name in DRAWING)
    assert other.sizes == planned.sizes or name == "dap, half of the tokens"  # of which each is drawn by itself
    generator = Generator().manual_seed(3)
    first, second = (contents(criterion.plan(batch, generator)) for _ in range(2))
    assert first == contents(planned) and (second != first) is (name in DRAWING), "later batches have other masks"


@pytest.mark.parametrize("name", CASES)
def test_a_plan_does_not_touch_the_weights(make: Make, name: str) -> None:
    """Where plans are made there may be no GPU, and the weights change meanwhile. On meta nothing can be read."""
    _, criterion, batch = make(name)
    assert contents(plan(copy.deepcopy(criterion).to("meta"), batch, 3)) == contents(plan(criterion, batch, 3))


def send_plans(criteria: dict[str, tuple[Criterion, Any]], pipe: Connection) -> None:
    torch.set_num_threads(1)
    pipe.send_bytes(pickle.dumps({name: plan(criterion, batch, 3) for name, (criterion, batch) in criteria.items()}))


def test_a_plan_is_the_same_wherever_it_is_made(make: Make) -> None:
    """As in a worker process, from which plans come pickled: contents and loss are the same."""
    made = {name: make(name) for name in CASES}
    given = {name: (criterion, batch) for name, (_, criterion, batch) in made.items()}
    context = multiprocessing.get_context("fork")  # as for the trainer's workers
    mine, their_end = context.Pipe(duplex=False)
    worker = context.Process(target=send_plans, args=(given, their_end), daemon=True)
    worker.start()
    assert mine.poll(120), "the worker sent nothing"
    found = pickle.loads(mine.recv_bytes())
    worker.join(60)
    for name, (model, criterion, batch) in made.items():
        nn.ModuleList([model, criterion]).eval()
        own, theirs = plan(criterion, batch, 3), found[name]
        assert contents(own) == contents(theirs), name
        losses = []
        for planned in (own, theirs):
            torch.manual_seed(0)  # words are sampled
            losses.append({term: float(each.sum.detach()) for term, each in criterion(model, planned).terms.items()})
        assert losses[0] == losses[1] and losses[0].keys() == own.sizes.keys(), name


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_what_python_reads_stays_in_host_memory(
    make: Make, name: str, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths, languages and indices; all else goes to the device, and before that into page-locked memory."""
    _, criterion, batch = make(name)
    planned = plan(criterion, batch)
    assert contents(planned.to("cpu")) == contents(planned)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor.to("meta"))  # real pinning needs a GPU
    there = planned.pin_memory() if pinned else planned.to("meta")
    assert type(there) is type(planned) and there.sizes == planned.sizes and len(there) == len(planned)
    assert there.token_count == planned.token_count
    here = dict(leaves(planned))
    for path, value in leaves(there):
        if isinstance(value, Tensor):
            on_host = path.endswith((".indices", ".languages"))
            assert value.is_meta is not on_host, path
            assert value.shape == here[path].shape and value.dtype == here[path].dtype
        if path.endswith("host_lengths"):
            assert isinstance(value, np.ndarray) and np.array_equal(value, here[path])
    assert [path for path, _ in leaves(there)] == list(here)


@pytest.mark.parametrize("name", [name for name, (_, options) in CASES.items() if "micro_batch" in options])
def test_pieces_are_the_rows_of_the_batch(make: Make, name: str) -> None:
    """Each piece is planned for itself, and what a term counts in all pieces is what it counts in the batch."""
    _, criterion, batch = make(name)
    planned = plan(criterion, batch)
    found = [indices(piece) for piece in planned.pieces]
    for part, expected in indices(planned).items():
        assert [row for rows in found for row in rows.get(part, [])] == expected == list(range(9))
    sizes: dict[str, float] = {}
    for piece in planned.pieces:
        for term, size in piece.sizes.items():
            sizes[term] = sizes.get(term, 0) + size
    assert sizes == planned.sizes
    compared = [len(piece) for piece in planned.pieces][: 3 if name != "multitask, in pieces" else 9]
    assert compared == [4, 4, 1] * (len(compared) // 3)
    _, criterion, _ = make(CASES[name][0])
    assert plan(criterion, batch).sizes == planned.sizes and not plan(criterion, batch).pieces


def indices(planned: Planned) -> dict[str, list[int]]:
    """The examples of a plan, by part."""
    examples = planned.examples
    parts = examples.parts if isinstance(examples, MixedBatch) else {"": examples}
    return {name: part.indices.tolist() for name, part in parts.items()}


def test_only_criteria_that_compare_rows_have_pieces(make: Make) -> None:
    for name, (_, options) in CASES.items():
        _, criterion, batch = make(name)
        assert bool(plan(criterion, batch).pieces) is ("micro_batch" in options), name
        if isinstance(criterion, ContrastiveCriterion):
            criterion.set_micro_batch(9)
            pieces = plan(criterion, batch).pieces
            assert bool(pieces) is (name.startswith("multitask")), "a batch of no more rows is encoded at once"
    model, criterion, batch = make("hictl")
    assert loss_of(criterion, model, batch).terms.keys() == {"tlm", "sentence", "word"}

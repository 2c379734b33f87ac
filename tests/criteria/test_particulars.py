"""What is particular to single objectives: dropout of simcse, heads of nli, hard negatives, options and their help."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.criteria.objectives import OBJECTIVES, Maker, Objective, align, cmlm, frozen, hictl, mlm, nli, rank, tlm
from tests.support.planning import plan
from xrep.config import problems_of
from xrep.criteria.all_ranks import AllRows
from xrep.criteria.dap import DAP
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.errors import UserError
from xrep.registry import CRITERIA
from xrep.tasks.task import ExampleKind


def test_a_contrast_of_its_own_does_not_inherit_that_it_exchanges() -> None:
    class Same(TranslationRanking):
        pass

    class Other(TranslationRanking):
        def contrast(self, vectors: Any, planned: Any) -> Any:
            return super().contrast(vectors, planned)

    assert Same.exchanges and DAP.exchanges and not Other.exchanges


def test_what_is_not_known_of_all_rows_is_refused() -> None:
    rows = AllRows(2, {"ids": torch.zeros(2, 2)}, None)
    assert len(rows) == len(rows.ids) == 2 and rows.negatives is None
    with pytest.raises(AttributeError, match="`source` of a batch cannot be read in `contrast`"):
        rows.source  # noqa: B018


@pytest.mark.parametrize(("dropout", "same"), [(0.2, False), (0.0, True)])
def test_dropout_makes_the_two_encodings(make: Maker, dropout: float, same: bool) -> None:
    model, criterion, batch = make("simcse", dropout=dropout, attention_dropout=dropout)
    one, other, *_ = criterion.encode(model, plan(criterion, batch)).vectors
    assert torch.allclose(one, other, rtol=1e-9) is same
    warnings = criterion.warnings(SimpleNamespace(examples=100))
    assert [w.startswith("simcse without dropout") for w in warnings] == [True] * same


def test_the_head_of_nli_has_dropout(make: Maker) -> None:
    _, mlp = make.build(nli(head="mlp", head_size=256, head_dropout=0.1))
    x = torch.randn(500, 64, dtype=torch.float64)
    share = (mlp.train().hidden(x) == 0).double().mean() - (mlp.eval().hidden(x) == 0).double().mean()
    assert 0.03 < float(share) < 0.07  # a tenth of the half that passes ReLU


@pytest.mark.parametrize("name", OBJECTIVES)
def test_who_has_use_for_hard_negatives(make: Maker, name: str) -> None:
    own = OBJECTIVES[name]
    _, criterion = make.build(own)
    reads = criterion.reads[0] if criterion.reads else ExampleKind.TRANSLATIONS
    task = SimpleNamespace(gives=reads, has_hard_negatives=True)
    uses = own.kind in ("translation_ranking", "dap", "dual_moco")
    uses |= own.kind == "hictl" and own.options.get("sentence_contrast", True)
    uses |= own.kind == "frozen_source" and "source_side" in own.options and "loss" not in own.options
    if uses:
        criterion.check_task(task)
        return
    with pytest.raises(UserError, match="^`negatives`: this criterion, as it is set, has no use for them; "):
        criterion.check_task(task)


UNUSABLE: dict[str, tuple[Objective, str]] = {
    "as wide as the vectors": (rank(matryoshka=[8, 16]), "`matryoshka` has 16, and the model's vectors have 16"),
    "deeper than the encoder": (align(rtl_layers=4), "the encoder has 3 layers; lower `rtl_layers` from 4"),
    "deeper than the pooled layer": (align(pooled_layer=1), "the encoder has 1 layers; lower `rtl_layers` from 2"),
    "pivot": (align(pivot_language="fr"), "pivot_language 'fr' is none of the text's; choose one of: de, en, es"),
    "narrow": (cmlm(projection_size=8), "the width 8, token vectors 16; leave out `projection_size`"),
    "spaces": (cmlm(projection="spaces"), "3 projections, but the model has 15 spaces; give `projections` and"),
    "towers of hictl": (hictl(towers="separate"), "set `towers` to shared"),
    "towers of tlm": (tlm(towers="separate"), "set `towers` to shared"),
    "frozen": (frozen(towers="shared"), "set `towers` to separ"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_options_that_do_not_fit_the_model(make: Maker, name: str) -> None:
    own, problem = UNUSABLE[name]
    with pytest.raises(UserError) as refused:
        make.build(own)
    assert problem in str(refused.value)


@pytest.mark.parametrize("own", [align(), hictl(), mlm()], ids=lambda own: own.kind)
def test_a_vocabulary_without_a_mask(text, own: Objective) -> None:
    blind = dataclasses.replace(text.vocabulary("shared"), mask_id=None)
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        Maker(dataclasses.replace(text, vocabularies={"shared": blind})).build(own)


def test_text_that_does_not_fit(make: Maker) -> None:
    _, criterion = make.build(align(rtl_vocabulary="target-language"))
    with pytest.raises(UserError, match="de-es: no side is in the pivot language 'en'"):
        criterion.prepare(make.task([("de", "en"), ("de", "es")]))
    for monolingual in (True, False):
        _, own = make.build(hictl(monolingual=monolingual))
        own.prepare(SimpleNamespace(gives=ExampleKind.TRANSLATIONS))
        if monolingual:
            own.prepare(SimpleNamespace(gives=ExampleKind.REORDERED))
        else:
            with pytest.raises(UserError, match="reveal each other's masked words; set `monolingual` to true"):
                own.prepare(SimpleNamespace(gives=ExampleKind.REORDERED))


TRAINED = {"source": "trained"}
PROBLEMS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("translation_ranking", {"temperature": -0.1, "margin": -1.0}, ["temperature", "margin"]),
    ("dap", {"rtl_layers": 0, "reconstruction_ratio": 0.0}, ["rtl_layers", "reconstruction_ratio"]),
    ("mlm", {"mask_rate": 1.0}, ["mask_rate"]),
    ("label_smoothed_cross_entropy", {"label_smoothing": 1.0}, ["label_smoothing"]),
    ("simcse", {"temperature": 0.0, "matryoshka": [4, 4]}, ["matryoshka", "temperature"]),
    ("frozen_source", {"temperature": 0.0, "learnable_temperature": False}, ["temperature"]),
    ("frozen_source", {"loss": "mse", "queue_size": 5}, ["queue_size"]),
    ("frozen_source", {"loss": "mse", "mask_margin": 0.1}, ["mask_margin"]),
    ("frozen_source", {"teacher_text": "x"}, ["teacher_vectors"]),
    ("translation_ranking", {"mask_margin": math.nan, "guide": "x"}, ["mask_margin", "guide"]),
    ("dual_moco", {"mask_margin_relative": True}, ["mask_margin_relative"]),
    ("dual_moco", {"mask_margin": 1e6}, ["mask_margin"]),  # the scores beside it would be rounded
    ("simcse", {"mask_margin": 0.0, "guide": "x", "guide_text": "y"}, ["mask_margin"]),
    ("frozen_source", {**TRAINED, "queue_size": 5}, ["queue_size"]),
    ("frozen_source", {**TRAINED, "loss": "mse"}, ["loss"]),
    ("frozen_source", {**TRAINED, "teacher_text": "x", "teacher_vectors": "y"}, ["teacher_vectors"]),
    ("frozen_source", {"teacher": "z", "teacher_text": "x", "teacher_vectors": "y"}, ["teacher"]),
    ("frozen_source", {**TRAINED, "teacher": "z", "sides": "both"}, ["teacher", "sides"]),
    ("hictl", {"language_model": False, "sentence_contrast": False, "word_contrast": False}, ["language_model,"]),
    ("hictl", {"language_model": False, "sentence_contrast": False}, []),
    ("hictl", {"sentence_contrast": False, "matryoshka": [8], "mask_margin": 0.1}, ["matryoshka", "mask_margin"]),
    ("hictl", {"temperature": 0, "word_temperature": -1, "mask_rate": 1.5, "slack": 1.0, "word_samples": 0},
     ["temperature", "word_temperature", "mask_rate", "slack", "word_samples"]),
    ("cmlm", {"projections": 0, "mask_rate": 0.0}, ["projections", "mask_rate"]),
    ("nli", {"features": ["product", "sum"], "head_size": 0, "head_dropout": 1.0},
     ["head_size", "head_dropout", "features"]),
    ("nli_triplet", {"temperature": 0}, ["temperature"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "named"), PROBLEMS)
def test_values_out_of_range(kind: str, options: dict[str, Any], named: list[str]) -> None:
    config = CRITERIA.load(kind).Config
    assert {problem.split()[0] for problem in problems_of(config(**options))} == {*named}
    assert problems_of(config()) == []

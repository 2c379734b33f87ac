"""dap: the start of its head, the tokens that it may see, and the subwords that it may predict."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.criteria.equations_vectors import DE, EN
from tests.criteria.objectives import Maker, align
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, pair_batch, sizes_of
from xrep.config import Part
from xrep.criteria.dap import DAP
from xrep.criteria.multitask import Multitask
from xrep.data.batch import collate
from xrep.tasks.bitext import BitextTask


@pytest.mark.parametrize(("layers", "given"), [(3, {}), (2, {"norm": "pre"}), (1, {"pooled_layer": 2})])
def test_the_head_begins_as_the_last_layers(make: Maker, layers: int, given: dict) -> None:
    model, _ = make.build(align(**given))
    head = DAP(DAP.Config(rtl_layers=layers), model, make.languages).double().head
    encoder, depth = model.encoders["shared"], given.get("pooled_layer", 3)
    own = head.layers.state_dict()
    last = nn.ModuleList(encoder.layers[depth - layers : depth]).state_dict()
    assert list(own) == list(last) and all(torch.equal(own[name], last[name]) for name in own)
    assert (head.norm is not None) == (given.get("norm") == "pre") and not head.bias.any()
    if head.norm is not None:
        assert all(torch.equal(a, b) for a, b in zip(head.norm.parameters(), encoder.norm.parameters(), strict=True))
    kept = {parameter.data_ptr() for parameter in model.parameters()}
    assert kept.isdisjoint(parameter.data_ptr() for parameter in head.parameters()), "the head trains on its own"
    assert {tuple(p.shape) for p in head.parameters()}.isdisjoint({tuple(encoder.token_embedding.weight.shape)})


def test_cut_sentences(make: Maker, tokenizer) -> None:
    """Of a sentence that ``max_length`` cuts, only the remaining tokens are predicted."""
    model, criterion, batch = make("dap")
    sides = [[np.array(ids) for ids in tokenizer.encode(list(side))] for side in zip(*sentence_pairs(9), strict=True)]
    source, target = (collate(side, make.text.vocabulary("shared"), 5) for side in sides)
    cut = pair_batch(source, target, batch.ids, batch.indices, torch.tensor([[DE, EN]] * 9))
    assert sizes_of(criterion, cut)["rtl"] == 9 * 4 and loss_of(criterion, model, cut).terms["rtl"].sum.isfinite()


def test_a_part_of_a_mixture_is_prepared_with_its_own_task(make: Maker) -> None:
    model, _ = make.build(align())
    part = Part("align", DAP, DAP.Config(rtl_vocabulary="target-language"), 1.0, 1.0)
    criterion = Multitask(Multitask.Config(parts=[part], mixing="weight"), model, make.languages)
    task = make.task([("de", "en")])
    criterion.prepare(SimpleNamespace(parts={"align": task}))
    eos = make.text.vocabulary("shared").eos_id
    expected = sorted({eos, *task.subwords("en")})
    assert criterion.parts["align"].get_buffer(f"subwords_{EN}").tolist() == expected
    assert "subwords" not in str(list(criterion.state_dict()))


def test_subwords_of_a_language(data_directory) -> None:
    task = BitextTask(BitextTask.Config(data=str(data_directory)), seed=0)
    assert sorted(pair.languages for pair in task.train) == [("de", "en"), ("es", "en")]
    seen: dict[str, set[int]] = {}
    for pair in task.train:
        for language, column in zip(pair.languages, (pair["source"], pair["target"]), strict=True):
            seen.setdefault(language, set()).update(*(column[row].tolist() for row in range(len(column))))
    found = {language: task.subwords(language).tolist() for language in ("de", "en", "es")}
    assert found == {language: sorted(ids) for language, ids in seen.items()}
    assert found["en"] != found["de"] and len(found["es"]) < task.text.vocabularies["shared"].size


@pytest.mark.parametrize("name", ["dap", "dap, both"])
def test_the_weight_of_the_reconstruction(make: Maker, name: str) -> None:
    model, criterion, batch = make(name)
    whole = loss_of(criterion, model, batch).terms
    criterion.config.rtl_weight = 0.1
    tenth = loss_of(criterion, model, batch).terms
    assert {term: tenth[term].weight / whole[term].weight for term in tenth} == pytest.approx(
        {term: 0.1 if term.startswith("rtl") else 1.0 for term in whole}
    )
    assert all(torch.equal(tenth[term].sum, whole[term].sum) for term in whole)

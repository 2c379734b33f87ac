from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.planning import pair_batch
from xrep.data.batch import Batch, TokenBatch, Vocabulary, collate
from xrep.errors import UserError
from xrep.tasks.task import Pool
from xrep.validation.retrieval import RetrievalValidator

VOCABULARY = Vocabulary(size=60, pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=4)


class BagOfSubwords(nn.Module):
    """A small encoder: one table for each tower, the mean over real tokens, and dropout."""

    def __init__(self, *towers: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ModuleDict({tower: nn.Embedding(60, 24) for tower in towers})
        self.dropout = nn.Dropout(0.5)

    def tower(self, language: str) -> str:
        return language if language in self.tables else "shared"

    def encode(self, tower: str, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        tokens = self.dropout(self.tables[tower](batch.tokens)) * batch.mask.unsqueeze(-1)
        return tokens.sum(1) / batch.lengths.unsqueeze(-1), tokens


def draw(count: int, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(5, 60, size=random.integers(4, 14)) for _ in range(count)]


def pool_of(source: list[np.ndarray], target: list[np.ndarray], language: str = "de", size: int = 16) -> Pool:
    """Return a pool of pairs with English, in batches of pairs of similar length."""
    order = np.argsort([len(sentence) for sentence in source], kind="stable")

    def batches() -> Iterator[Batch]:
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            sides = (collate([side[row] for row in rows], VOCABULARY, 32) for side in (source, target))
            nothing = torch.zeros(len(rows), 2, dtype=torch.int64)
            yield pair_batch(*sides, ids=nothing, indices=torch.from_numpy(rows), languages=nothing)

    return Pool(f"{language}-en", language, "en", batches)


def measure(model: nn.Module, *pools: Pool) -> dict[str, float]:
    task = SimpleNamespace(validation_pools=lambda max_pool_size: list(pools))
    return RetrievalValidator(RetrievalValidator.Config(), task)(model, nn.Identity())


def test_translations_are_found_again_whatever_the_batches() -> None:
    same, other, model = draw(70, seed=1), draw(70, seed=2), BagOfSubwords("shared").train()
    found = measure(model, pool_of(same, same), pool_of(same, other, "fr", size=7))
    assert found["accuracy_de-en"] == 100.0  # no dropout during validation
    assert found["accuracy_fr-en"] < 15  # unrelated sentences: the accuracy of guessing
    assert found["accuracy"] == (found["accuracy_de-en"] + found["accuracy_fr-en"]) / 2
    assert set(found) == {"accuracy", "accuracy_de-en", "accuracy_fr-en", "mean_cosine"}
    cosines = []
    for sentences in (same, other):
        unit = nn.functional.normalize(model.eval().encode("shared", collate(sentences, VOCABULARY, 32))[0], dim=1)
        cosines.append(float((unit @ unit.T)[~torch.eye(70, dtype=torch.bool)].mean()))
    assert found["mean_cosine"] == pytest.approx(sum(cosines) / 2, abs=1e-5)
    nn.init.ones_(model.tables["shared"].weight)
    collapsed = measure(model, pool_of(same, same))
    assert collapsed["mean_cosine"] == pytest.approx(1.0, abs=1e-6) and collapsed["accuracy"] < 10


def test_each_side_goes_through_the_tower_of_its_language() -> None:
    same, model = draw(60, seed=3), BagOfSubwords("de", "en")
    assert measure(model, pool_of(same, same))["accuracy"] < 15  # two random tables
    model.tables["de"].load_state_dict(model.tables["en"].state_dict())
    assert measure(model, pool_of(same, same))["accuracy"] == 100.0


def test_too_few_pairs_are_refused_before_training() -> None:
    with pytest.raises(UserError, match="de-en has 1 pair.*at least 2"):
        measure(BagOfSubwords(), pool_of(draw(1, seed=6), draw(1, seed=6)))
    with pytest.raises(UserError, match="no translations to validate on; choose the `validation` nli or sts"):
        measure(BagOfSubwords())

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from xrep.data.batching import PairBatch, TokenBatch, Vocabulary, collate
from xrep.errors import UserError
from xrep.tasks.task import Pool
from xrep.validation.retrieval import RetrievalValidator

VOCABULARY = Vocabulary(size=60, pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=4)


class BagOfSubwords(nn.Module):
    """A small encoder: one table for each tower, the mean over real tokens, and dropout."""

    def __init__(self, *towers: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ModuleDict({tower: nn.Embedding(60, 24) for tower in towers or ("shared",)})
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

    def batches() -> Iterator[PairBatch]:
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            sides = (collate([side[row] for row in rows], VOCABULARY, 32) for side in (source, target))
            nothing = torch.zeros(len(rows), 2, dtype=torch.int64)
            yield PairBatch(*sides, ids=nothing, indices=torch.from_numpy(rows), languages=nothing)

    return Pool(f"{language}-en", language, "en", batches)


def make(*pools: Pool) -> RetrievalValidator:
    task = SimpleNamespace(validation_pools=lambda max_pool_size: list(pools))
    return RetrievalValidator(RetrievalValidator.Config(), task)


def cosine_of(sentences: list[np.ndarray]) -> float:
    vectors, _ = BagOfSubwords().eval().encode("shared", collate(sentences, VOCABULARY, 32))
    unit = nn.functional.normalize(vectors, dim=1).detach().numpy()
    return float((unit @ unit.T)[~np.eye(len(unit), dtype=bool)].mean())


def test_translations_are_found_again_whatever_the_batches() -> None:
    same, other = draw(70, seed=1), draw(70, seed=2)
    measured = make(pool_of(same, same), pool_of(same, other, "fr", size=7))(BagOfSubwords(), nn.Identity())
    assert measured["accuracy_de-en"] == 100.0
    assert measured["accuracy_fr-en"] < 15  # unrelated sentences: the accuracy of guessing
    assert measured["accuracy"] == (measured["accuracy_de-en"] + measured["accuracy_fr-en"]) / 2
    assert set(measured) == {"accuracy", "accuracy_de-en", "accuracy_fr-en", "mean_cosine"}
    assert measured["mean_cosine"] == pytest.approx((cosine_of(same) + cosine_of(other)) / 2, abs=1e-5)
    model = BagOfSubwords()
    nn.init.ones_(model.tables["shared"].weight)
    collapsed = make(pool_of(same, same))(model, nn.Identity())
    assert collapsed["mean_cosine"] == pytest.approx(1.0, abs=1e-6) and collapsed["accuracy"] < 10


def test_each_side_goes_through_the_tower_of_its_language() -> None:
    same, model = draw(60, seed=3), BagOfSubwords("de", "en")
    validate = make(pool_of(same, same))
    assert validate(model, nn.Identity())["accuracy"] < 15  # two random tables
    model.tables["de"].load_state_dict(model.tables["en"].state_dict())
    assert validate(model, nn.Identity())["accuracy"] == 100.0


def test_the_model_is_left_as_it_was() -> None:
    model, same = BagOfSubwords().train(), draw(20, seed=5)
    model.tables.eval()  # a frozen part
    validate = make(pool_of(same, same))
    for _ in range(2):
        assert validate(model, nn.Identity())["accuracy"] == 100.0  # no dropout during validation
    assert model.training and model.dropout.training
    assert not model.tables.training and not model.tables["shared"].training

    def fail(tower: str, batch: TokenBatch) -> None:
        raise RuntimeError("device lost")

    model.encode = fail
    with pytest.raises(RuntimeError):
        validate(model, nn.Identity())
    assert model.dropout.training and torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_too_few_pairs_are_refused_before_training() -> None:
    with pytest.raises(UserError, match="de-en has 1 pair.*at least 2"):
        make(pool_of(draw(1, seed=6), draw(1, seed=6)))
    with pytest.raises(UserError, match="no translations to validate on; choose the `validation` nli or sts"):
        make()
    assert RetrievalValidator.Config(max_pool_size=1).problems() == ["max_pool_size must be at least 2, not 1"]
    assert RetrievalValidator.Config().problems() == []

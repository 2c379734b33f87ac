"""The dual encoder: the vector of a sentence does not depend on its batch, and each language has its tower."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from tests.support.corpus import sentence_pairs
from tests.support.planning import token_batch
from xrep.config import problems_of
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder

SMALL = {"layers": 2, "hidden_size": 32, "heads": 4, "feedforward_size": 64, "max_positions": 48}


def make_model(text, **options) -> DualEncoder:
    torch.manual_seed(0)
    return DualEncoder(DualEncoder.Config(**{**SMALL, **options}), text).eval()


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_vector_does_not_depend_on_the_batch(text, make_batch, pooling: str, norm: str) -> None:
    model = make_model(text, pooling=pooling, norm=norm, projection_size=20)
    # One side has 1 to 9 words; on the other side every second sentence is twice as long.
    pairs = enumerate(sentence_pairs(9))
    batch = make_batch([(" ".join(german.split()[: 1 + n]), english * (1 + n % 2)) for n, (german, english) in pairs])
    for side, tower in ((batch.source, "source"), (batch.target, "target")):
        assert side.is_padded
        together, tokens = model.encode(tower, side)
        assert together.shape == (9, 20) and tokens.shape == (9, side.tokens.size(1), 32)
        torch.testing.assert_close(together.norm(dim=1), torch.ones(9))
        garbage = torch.where(side.mask, side.tokens, torch.randint_like(side.tokens, text.vocabulary("shared").size))
        wider = token_batch(F.pad(garbage.flip(0), (0, 7), value=3), side.lengths.flip(0))
        torch.testing.assert_close(model.encode(tower, wider)[0].flip(0), together, rtol=0, atol=1e-5)
        for row, length in enumerate(side.lengths.tolist()):
            alone = token_batch(side.tokens[row : row + 1, :length], side.lengths[row : row + 1])
            torch.testing.assert_close(model.encode(tower, alone)[0][0], together[row], rtol=0, atol=1e-5)


def test_what_a_sentence_vector_is(text, make_batch) -> None:
    side = make_batch(sentence_pairs(4)).source
    model = make_model(text, normalize=False)
    vectors, tokens = model.encode("source", side)
    for row, length in enumerate(side.lengths.tolist()):
        torch.testing.assert_close(vectors[row], tokens[row, :length].mean(0))
    assert model.output_size == 32 and not torch.allclose(vectors.norm(dim=1), torch.ones(4))
    projected = make_model(text, projection_size=5, normalize=True)
    vectors, tokens = projected.encode("target", side)
    means = torch.stack([tokens[row, :length].mean(0) for row, length in enumerate(side.lengths.tolist())])
    expected = F.normalize(projected.projections["target"](means), dim=1)
    torch.testing.assert_close(vectors, expected)


def test_towers(text, make_batch) -> None:
    batch = make_batch(sentence_pairs(2)).source
    separate = make_model(text)
    assert [separate.tower(language) for language in ("de", "en")] == ["source", "target"]
    assert not torch.allclose(separate.encode("source", batch)[0], separate.encode("target", batch)[0])
    for language, said in (("fr", "no tower for the language 'fr'"), (None, "no language was named")):
        with pytest.raises(UserError, match=f"{said}.*known: de, en"):
            separate.tower(language)
    shared = make_model(text, towers="shared")
    assert {shared.tower(x) for x in ("de", "en", "fr", None)} == {"shared"}
    assert 1.9 * sum(p.numel() for p in shared.parameters()) < sum(p.numel() for p in separate.parameters())


def test_what_it_refuses(text) -> None:
    with pytest.raises(UserError, match="48 subwords, the model has 47 positions; lower `max_length` or raise"):
        make_model(text, max_positions=47)
    both = dataclasses.replace(text, source_languages=["de", "en"])
    with pytest.raises(UserError, match="en: both a source and a target language; set `towers` to shared"):
        make_model(both)
    make_model(both, towers="shared")
    with pytest.raises(UserError, match="projected_side source has no effect: both towers give 32 numbers; leave"):
        make_model(text, projected_side="source")
    assert list(make_model(text, projected_side="source", projection="linear").projections) == ["source"]
    assert problems_of(DualEncoder.Config(layers=0, projection_size=0, dropout=1.0)) == [
        "layers must be at least 1, not 0",
        "dropout must lie in [0, 1), not 1.0",
        "projection_size must be at least 1, not 0",
    ]
    assert problems_of(DualEncoder.Config(hidden_size=30, heads=4)) == ["hidden_size 30 is not divisible by heads 4"]

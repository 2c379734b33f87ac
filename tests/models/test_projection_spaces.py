"""Sentence vectors that are means of projection spaces (CMLM's 'proj'): checkpoints, starts and export."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.config import problems_of
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.models.directory import open_checkpoint
from xrep.models.dual_encoder import DualEncoder
from xrep.models.projection import ProjectionSpaces
from xrep.models.start import find_start
from xrep.nn.pooling import pool

SMALL = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}
SPACES = {"projection": "spaces", "projection_spaces": 4}
ENGLISH = [english for _, english in sentence_pairs(12)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("run") / "last", model_options={"pooling": "mean", **SPACES})


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_a_sentence_vector_is_the_mean(text, make_batch, towers: str) -> None:
    model = DualEncoder(DualEncoder.Config(**SMALL, **SPACES, towers=towers, normalize=False), text).eval()
    side, tower = make_batch(sentence_pairs(5)).source, model.tower("de")
    sentence, tokens = model.encode(tower, side)
    v = pool(tokens, side.mask, "mean")
    spaces = model.projections[tower].spaces
    expected = (v + sum(perceptron(v) for perceptron in spaces.perceptrons)) / 4
    torch.testing.assert_close(sentence, expected)
    torch.testing.assert_close(model.before_projection(tower, side)[0], v)
    assert model.output_size == 16 and model.new_projections == list(model.encoders)
    unit = DualEncoder(DualEncoder.Config(**SMALL, **SPACES, towers=towers), text).eval()
    unit.load_state_dict(model.state_dict())
    torch.testing.assert_close(unit.encode(tower, side)[0], F.normalize(sentence, dim=1))


@pytest.mark.parametrize("width", [16, 256])
def test_projections_begin_as_large_as_the_vector(width: int) -> None:
    torch.manual_seed(0)
    spaces = ProjectionSpaces(width, 15)
    shapes = [tuple(p.shape) for p in spaces.perceptrons[3].parameters() if p.dim() == 2]
    assert len(spaces) == 15 and shapes == [(2 * width, width), (2 * width, 2 * width), (width, 2 * width)]
    vectors = torch.randn(50, width)
    views = spaces(vectors)
    assert views.shape == (50, 15, width) and torch.equal(views[:, 0], vectors)
    sizes = views.square().mean((0, 2)).sqrt()
    assert 0.4 < sizes.min() and sizes.max() < 2.5, sizes


def test_checkpoints_and_exports_keep_them(checkpoint: Path, tmp_path: Path) -> None:
    assert "projections.shared.spaces.perceptrons.2.4.weight" in open_checkpoint(checkpoint).tensors()
    encoder = SentenceEncoder.load(checkpoint, device="cpu")
    vectors = encoder.encode(ENGLISH)
    assert len(encoder.model.projections["shared"].spaces) == 4 and not encoder.model.training
    (copy,) = export_path(checkpoint, tmp_path / "copy", "xrep")
    np.testing.assert_array_equal(SentenceEncoder.load(copy, device="cpu").encode(ENGLISH), vectors)
    half = SentenceEncoder.load(checkpoint, device="cpu", dtype="bfloat16").encode(ENGLISH)
    np.testing.assert_allclose(half, vectors, atol=0.05)
    # Other libraries do not have them.
    with pytest.raises(UserError, match="means of projection spaces.*set `no_projection` to leave them out"):
        export_path(checkpoint, tmp_path / "st", "sentence-transformers")
    (plain,) = export_path(checkpoint, tmp_path / "plain", "sentence-transformers", no_projection=True)
    with torch.no_grad():
        encoder.model.projections.clear()
    found = SentenceEncoder.load(plain, device="cpu").encode(ENGLISH)
    np.testing.assert_allclose(found, encoder.encode(ENGLISH), atol=1e-5)
    with pytest.raises(UserError, match="start from it as a whole, by `init`"):
        find_start(str(checkpoint))


def test_a_pretrained_projection_is_not_dropped(tmp_path: Path) -> None:
    dense = write_encoder(tmp_path / "dense", model_options={"projection_size": 8})
    config = DualEncoder.Config(towers="shared", encoder=str(dense), **SPACES)
    with pytest.raises(UserError, match="shared: the pretrained encoder brings a projection; leave out"):
        DualEncoder(config, open_checkpoint(dense).text)


def test_problems() -> None:
    told = "projection spaces are in all towers, as wide as they: no projection_size, projected_side"
    assert problems_of(DualEncoder.Config(**SPACES, projection_size=8)) == [told]
    assert problems_of(DualEncoder.Config(**SPACES, projected_side="source")) == [told]
    assert problems_of(DualEncoder.Config(projection="spaces", projection_spaces=0))[0].startswith("projection_spaces")
    assert problems_of(DualEncoder.Config(**SPACES)) == []

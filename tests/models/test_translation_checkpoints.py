"""Checkpoints of translation models in place of encoders: for starts, export and sentence vectors."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.corpus import sentence_pairs
from tests.support.vocabulary import small_tokenizer
from xrep.config import to_yaml
from xrep.data.batch import TextSpec, Vocabulary, collate
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.models.directory import Snapshot, load_model, open_checkpoint, write_checkpoint
from xrep.models.dual_encoder import DualEncoder
from xrep.models.start import find_start
from xrep.models.translation import Translation
from xrep.text.sides import open_tokenizer, save_tokenizers
from xrep.text.tokenizer import Tokenizer

OPTIONS = {
    "layers": 2, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 64, "decoder_layers": 1,
}  # fmt: skip
GERMAN, ENGLISH = ([pair[side] for pair in sentence_pairs(100)] for side in range(2))


def write_run(folder: Path, tokenizers: dict[str, Tokenizer]) -> Path:
    """Write two checkpoints of random models, of which the first is the best."""
    own = {side: Vocabulary.of(tokenizer) for side, tokenizer in tokenizers.items()}
    text = TextSpec(vocabularies=own, max_length=64, source_languages=["de"], target_languages=["en"])
    for step in (2, 3):
        torch.manual_seed(step)
        facts = {"config_yaml": to_yaml({"model": {"name": "translation", **OPTIONS}}), "text": text, "step": step}
        facts |= {"model": Translation(Translation.Config(**OPTIONS), text), "criterion": nn.Linear(1, 1)}
        save = partial(save_tokenizers, tokenizers)
        snapshot = Snapshot.of(**facts, save_tokenizers=save, training_state={})
        write_checkpoint(folder / f"checkpoint-{step:08d}", snapshot)
    (folder / "best").symlink_to("checkpoint-00000002")
    return folder


@pytest.fixture(scope="module", params=["shared", "separate"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one vocabulary, or one for each side."""
    sides = {"shared": GERMAN + ENGLISH} if request.param == "shared" else {"source": GERMAN, "target": ENGLISH}
    tokenizers = {side: small_tokenizer(60 + 5 * (side == "source"), lines) for side, lines in sides.items()}
    return write_run(tmp_path_factory.mktemp(request.param), tokenizers)


def states(model: nn.Module, encoder: nn.Module, path: Path) -> torch.Tensor:
    """Return the states [B, T, H] of the encoder of ``model``, with the tokenizer in ``path``."""
    tokenizer = open_tokenizer(path)
    ids = [np.array(sentence) for sentence in tokenizer.encode(GERMAN[:5])]
    with torch.no_grad():
        return encoder(collate(ids, model.source_vocabulary, 64))


def test_its_encoder_is_a_start(run: Path) -> None:
    start = find_start(str(run / "best"))
    model = load_model(open_checkpoint(run / "best"))
    own = run / "best" / "tokenizer" / "source"
    assert start.tokenizer == (own if own.exists() else own.parent) and start.pooling is start.projection is None
    assert start.shape == model.encoder.shape and start.path == run / "best"
    state, unused = start.state(None)
    assert unused == [] and state.keys() == model.encoder.state_dict().keys()
    assert all(torch.equal(tensor, model.encoder.state_dict()[name]) for name, tensor in state.items())
    assert len(start.state(1)[1]) == len([name for name in state if name.startswith("layers.1.")])

    vocabulary = Vocabulary.of(open_tokenizer(start.tokenizer))
    text = TextSpec(vocabularies={"shared": vocabulary}, max_length=64, source_languages=["de"])
    sentences = DualEncoder(DualEncoder.Config(towers="shared", encoder=str(run / "best")), text).eval()
    found = states(model, sentences.encoders["shared"], start.tokenizer)
    assert torch.equal(found, states(model, model.encoder, start.tokenizer)) and sentences.pooling["shared"] == "mean"
    again = Translation(Translation.Config(encoder=str(run / "best"), share_vocabulary=False), model.text)
    assert torch.equal(states(model, again.eval().encoder, start.tokenizer), found)


def test_what_is_no_start(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"best: no tower 'decoder'; name .*best$"):
        find_start(str(run / "best" / "decoder"))
    (tmp_path / "manifest.json").write_text('{"format": "xrep-data"}')  # a name is no tower of the data beside it
    with pytest.raises(UserError, match="absent: no such directory; name a directory"):
        find_start(str(tmp_path / "absent"))
    model = nn.Linear(1, 1)
    model.architecture = dict  # the model is that of a plugin
    text = TextSpec(vocabularies={}, max_length=8)
    facts = {"config_yaml": "{}", "text": text, "save_tokenizers": Path.mkdir, "model": model, "criterion": model}
    snapshot = Snapshot.of(step=1, **facts, training_state={})
    write_checkpoint(tmp_path / "other", snapshot)
    with pytest.raises(UserError, match="other: its model has no encoder to start from; start from another run"):
        find_start(str(tmp_path / "other"))


@pytest.mark.parametrize("average", [None, 2])
def test_its_encoder_goes_to_hugging_face(run: Path, tmp_path: Path, average: int | None) -> None:
    export_path(run if average else run / "best", tmp_path / "out", "hf", average=average)
    assert "to translate from de" in (tmp_path / "out" / "README.md").read_text()
    back = find_start(str(tmp_path / "out"))
    state, _ = back.state(None)
    tensors = [open_checkpoint(run / f"checkpoint-0000000{step}").tensors() for step in ((2, 3) if average else (2,))]
    for name, tensor in state.items():
        expected = sum(each[f"encoder.{name}"].double() for each in tensors) / len(tensors)
        assert torch.equal(tensor, expected.float()), name
    model = load_model(open_checkpoint(run / "best"))
    model.encoder.load_state_dict(state)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(GERMAN[:5], padding=True, return_tensors="pt")
    ours = states(model, model.encoder, find_start(str(run / "best")).tokenizer)
    with torch.no_grad():
        found = theirs(**tokens).last_hidden_state
    real = tokens["attention_mask"].bool()
    torch.testing.assert_close(found[real], ours[real], rtol=0, atol=2e-5)

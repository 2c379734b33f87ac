"""Directories of sentence-transformers: encoders read from them give the same vectors as the library."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.interop.sentence_models import MAXIMUM, SENTENCES, as_batch, library, our_vectors, write_tokenizer
from tests.nn.small_models import edit_json, load, make_model, refusal
from tests.support.closeness import assert_near
from tests.support.planning import token_batch
from xrep.errors import UserError
from xrep.interop.pretrained import read_pretrained


def modules_of(library_model: Path, *, pooling: Any, dense: Any, normalize: bool) -> Any:
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(5)
    modules = [Transformer(str(library_model), max_seq_length=MAXIMUM), Pooling(32, pooling)]
    modules += [] if dense is None else [Dense(32, **dense)]
    return library.SentenceTransformer(modules=[*modules, *([Normalize()] if normalize else [])])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a Hugging Face directory with a tokenizer."""
    directory = tmp_path_factory.mktemp("source")
    make_model("BertModel").save_pretrained(directory)
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    dense = {"out_features": 12, "activation_function": torch.nn.Tanh()}
    modules_of(source, pooling="mean", dense=dense, normalize=True).save(str(directory))
    return directory


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "pooling, dense, normalize",
    [
        ("mean", None, False),
        ("max", None, True),
        ("cls", {"out_features": 12, "activation_function": torch.nn.Tanh()}, True),
        ("mean", {"out_features": 40, "activation_function": torch.nn.Identity(), "bias": False}, False),
    ],
)
def test_the_same_vectors(source: Path, tmp_path: Path, pooling: str, dense: Any, normalize: bool) -> None:
    theirs = modules_of(source, pooling=pooling, dense=dense, normalize=normalize)
    theirs.save(str(tmp_path / "new"))
    pretrained, encoder, _ = load(tmp_path / "new")
    assert (pretrained.pooling, pretrained.normalize) == (pooling, normalize)
    batch = as_batch(write_tokenizer(tmp_path), SENTENCES)
    assert batch.tokens.size(1) == MAXIMUM and batch.is_padded
    expected = torch.from_numpy(theirs.encode(SENTENCES))
    assert_near(our_vectors(pretrained, encoder, batch), expected)


def test_the_old_layout(whole: Path, tmp_path: Path) -> None:
    """Old directories have 0_Transformer, flags for pooling, pytorch_model.bin of the dense layer, no Normalize."""
    shutil.copytree(whole, tmp_path / "0_Transformer", ignore=shutil.ignore_patterns("[0-9]_*", "modules.json"))
    chain = ["Transformer", "Pooling", "Dense", "Normalize"]
    entries = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(chain)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(entries))
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_max_tokens": True}
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({**pooling, "pooling_mode_mean_tokens": False}))
    shutil.copytree(whole / "2_Dense", tmp_path / "2_Dense")
    dense = read_pretrained(whole).projection
    assert dense is not None
    (tmp_path / "2_Dense" / "model.safetensors").unlink()
    torch.save({"linear.weight": dense.weight, "linear.bias": dense.bias}, tmp_path / "2_Dense" / "pytorch_model.bin")

    pretrained, encoder, _ = load(tmp_path)
    assert pretrained.path == tmp_path / "0_Transformer"
    assert (pretrained.pooling, pretrained.normalize) == ("max", True)
    theirs = torch.from_numpy(library.SentenceTransformer(str(tmp_path)).encode(SENTENCES))
    batch = as_batch(write_tokenizer(tmp_path / "tokenizer"), SENTENCES)
    assert_near(our_vectors(pretrained, encoder, batch), theirs)


MODULE = "sentence_transformers.models."
POOLING, DENSE = "1_Pooling/config.json", "2_Dense/config.json"
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "two poolings": (POOLING, {"pooling_mode": ["cls", "mean"]}, "Pooling has the mode cls + mean, xrep has mean, max"),
    "two flags": (
        POOLING,
        {"pooling_mode": ..., "pooling_mode_cls_token": True, "pooling_mode_lasttoken": True},
        "Pooling has the mode cls + lasttoken",
    ),
    "weighted": (POOLING, {"pooling_mode": "weightedmean"}, "Pooling has the mode weightedmean"),
    "odd": (POOLING, {"pooling_mode": 3}, "Pooling has the mode 3"),
    "function": (DENSE, {"activation_function": "torch.nn.modules.activation.GELU"}, "activation torch.nn.modules.act"),
    "own code": (DENSE, {"activation_function": "mine.Tanh"}, "the activation mine.Tanh, xrep has Identity and Tanh"),
    "residual": (DENSE, {"use_residual": True}, "the module Dense has use_residual True"),
    "of tokens": (DENSE, {"module_input_name": "token_embeddings"}, "Dense has module_input_name 'token_embeddings'"),
    "narrow": (DENSE, {"in_features": 31}, "the module Dense should have the tensors"),
    "no bias": (DENSE, {"bias": False}, "the module Dense should have the tensors"),
    "task": ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task 'fill-mask'"),
    "output": (
        "sentence_bert_config.json",
        {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
        "method_output_name 'pooler_output'",
    ),
    "prompt": (
        "config_sentence_transformers.json",
        {"default_prompt_name": "q"},
        "there is no prompt 'q', the default",
    ),
    "prompts": ("config_sentence_transformers.json", {"prompts": {"q": 3}}, "prompts are not texts with names"),
}


@pytest.mark.parametrize("file, changes, message", REFUSED.values(), ids=REFUSED)
def test_refused_options(copy: Path, file: str, changes: dict[str, Any], message: str) -> None:
    edit_json(copy / file, **changes)
    with pytest.raises(UserError) as error:
        read_pretrained(copy)
    refusal(error, copy / Path(file).parent, message)


def test_any_value_is_read_or_refused(copy: Path) -> None:
    for path in sorted(copy.rglob("*.json")):
        if path.name.startswith("tokenizer"):
            continue
        good = path.read_text()
        content = json.loads(good)
        entries = content if isinstance(content, list) else [content]
        for entry in entries:
            for key, before in list(entry.items()):
                for value in (None, "x", -1, True, [3], {"text": 3}, {"query": 3}):
                    entry[key] = value
                    path.write_text(json.dumps(content))
                    try:
                        read_pretrained(copy)
                    except UserError as error:
                        assert "\n" not in str(error)
                entry[key] = before
        path.write_text(good)
    read_pretrained(copy)


@pytest.mark.parametrize(
    "kinds, message",
    [
        (["Transformer", "Pooling", "LSTM"], f"xrep has no counterpart of the module {MODULE}LSTM (2_LSTM)"),
        (
            ["Transformer", "Pooling", "Normalize", "Dense"],
            "Transformer -> Pooling -> Normalize -> Dense, but xrep reads",
        ),
        (["Transformer", "Pooling", "Dense", "Dense"], "modules Transformer -> Pooling -> Dense -> Dense"),
        (["Transformer"], "modules Transformer, but xrep reads"),
        (["Pooling"], "modules Pooling, but xrep reads"),
        ([], "modules (none), but xrep reads"),
    ],
)
def test_refused_chains(copy: Path, kinds: list[str], message: str) -> None:
    chain = [{"path": f"{i}_{kind}" if i else "", "type": MODULE + kind} for i, kind in enumerate(kinds)]
    (copy / "modules.json").write_text(json.dumps(chain))
    with pytest.raises(UserError) as error:
        read_pretrained(copy)
    refusal(error, copy / "modules.json", message, "name that folder without modules.json" if kinds else "")


def test_refused_modules(copy: Path) -> None:
    path = copy / "modules.json"
    good = json.loads(path.read_text())
    for changed, message in (
        ({"type": "mine.Pooling"}, "no counterpart of the module mine.Pooling (1_Pooling)"),
        ({"path": "../elsewhere"}, "it names '../elsewhere', outside of its directory"),
        ({"path": "/etc"}, "it names '/etc', outside of its directory"),
        ({"path": 1}, "not a list of modules with type and path"),
    ):
        path.write_text(json.dumps([good[0], {**good[1], **changed}, *good[2:]]))
        with pytest.raises(UserError) as error:
            read_pretrained(copy)
        refusal(error, path, message)
    path.write_text(json.dumps(good))
    for file in ("1_Pooling/config.json", "2_Dense/config.json", "config.json"):
        moved = (copy / file).rename(copy / "moved")
        with pytest.raises(UserError) as error:
            read_pretrained(copy)
        refusal(error, (copy / file).parent)
        moved.rename(copy / file)
    edit_json(copy / "config.json", hidden_size=64)
    with pytest.raises(UserError) as error:
        read_pretrained(copy)
    refusal(error, copy, "the module Dense takes vectors of 32 numbers, the transformer gives 64")


@pytest.mark.parametrize(
    "name, pooling, normalize, layers", [("minilm", "mean", True, 6), ("m3e-small", None, None, 4)]
)
def test_real_models(name: str, pooling: str | None, normalize: bool | None, layers: int) -> None:
    directory = Path(os.environ["XREP_HOME"]) / "models" / name
    if not (directory / "config.json").is_file():
        pytest.skip(f"no {directory}: xrep-data get {name} fetches it")
    from transformers import AutoModel, AutoTokenizer

    pretrained, encoder, unused = load(directory)
    assert (pretrained.family, pretrained.pooling, pretrained.normalize) == ("bert", pooling, normalize)
    assert unused == ["embeddings.position_ids", "pooler.dense.bias", "pooler.dense.weight"]
    sentences = [*SENTENCES, "我喜欢读书和音乐。", "Ein längerer Satz, der nicht aufhört. " * 5]
    encoded = AutoTokenizer.from_pretrained(directory)(sentences, padding=True, return_tensors="pt")
    batch = token_batch(encoded["input_ids"], encoded["attention_mask"].sum(1))
    model = AutoModel.from_pretrained(directory).eval()
    with torch.no_grad():
        states = model(**encoded, output_hidden_states=True).hidden_states
        for number, expected in enumerate(states):
            expected = expected * batch.mask.unsqueeze(-1)
            assert_near(encoder(batch, number), expected)  # some of the token vectors have lengths of several tens
    assert len(states) == layers + 1
    if pooling is not None:
        theirs = torch.from_numpy(library.SentenceTransformer(str(directory)).encode(sentences))
        assert F.cosine_similarity(our_vectors(pretrained, encoder, batch), theirs).min() > 0.99999

"""``xrep-export``: the line that it prints opens what it has written, with both towers of an encoder that has two."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.planning import token_batch
from xrep import SentenceEncoder
from xrep.errors import UserError
from xrep.interop.sentence_modules import ROUTER
from xrep_cli import train
from xrep_cli.export import main

LANGUAGES = (["de", "es"], ["en"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder with two towers, which is the default."""
    return write_encoder(tmp_path_factory.mktemp("run") / "best", towers="separate", languages=LANGUAGES)


def export(path: Path, output: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """Return the lines that the command prints."""
    assert main(["--path", str(path), "--output", str(output), *options]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_the_printed_line_opens_both_towers(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
    path, line = export(run, tmp_path / "out", capsys)
    assert path == str(tmp_path / "out") and line.endswith('.encode(["..."], task="de")  # or es, en')
    encoder = SentenceEncoder.load(run)
    for language in ("de", "es", "en"):
        typed = line.strip().replace('"..."', '"Haus", "the dog"').replace('task="de"', f'task="{language}"')
        names: dict[str, Any] = {}
        exec(typed.replace("; ", "; vectors = "), names)
        np.testing.assert_allclose(names["vectors"], encoder.encode(["Haus", "the dog"], language), atol=1e-5)


@pytest.mark.slow
def test_the_printed_lines_of_transformers(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target, *lines = export(run, tmp_path / "out", capsys, "--format", "hf")
    assert [Path(source).name, Path(target).name] == ["source", "target"]
    assert [line.partition("#")[2] for line in lines] == [" reads de, es", " reads en"]
    for line in lines:
        names: dict[str, Any] = {}
        exec(line.strip().replace("; ", "; model = "), names)
        assert names["model"].config.hidden_size == 16


def test_the_printed_line_of_a_checkpoint(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, line = export(run, tmp_path / "out", capsys, "--format", "xrep")
    exec(line.strip())


def test_an_export_is_an_encoder_again(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(run, tmp_path / "a", capsys)
    export(tmp_path / "a", tmp_path / "b", capsys)
    first, again = SentenceEncoder.load(run), SentenceEncoder.load(tmp_path / "b")
    assert (again.text.source_languages, again.text.target_languages) == LANGUAGES
    for language in ("es", "en"):
        np.testing.assert_array_equal(first.encode(["Haus"], language), again.encode(["Haus"], language))
    with pytest.raises(UserError, match="no language was named; known: de, en, es"):
        again.encode(["Haus"])
    random = SentenceEncoder.load(tmp_path / "b", random_weights=0)
    assert np.abs(random.encode(["Haus"], "de") - again.encode(["Haus"], "de")).max() > 0.1


ROUTES: dict[str, tuple[object, str]] = {
    "outside": ({"de": ["../best"]}, "names '../best', outside of its directory"),
    "absolute": ({"de": ["/etc"]}, "outside of its directory"),
    "absent": ({"de": ["third", "third/1_Pooling"]}, "third/modules.json: no such file"),
    "others": ({"de": ["source", "target/1_Pooling"]}, "the route 'de' is not one of the directories"),
    "empty": ({"de": []}, "the route 'de' is not one of the directories"),
    "numbers": ({"de": [1]}, "the route 'de' is not one of the directories"),
    "none": ({}, "a Router of 0 towers, xrep has one or two"),
    "a list": ([], "a Router of 0 towers"),
}


@pytest.mark.parametrize("name", ROUTES)
def test_a_damaged_router(run: Path, tmp_path: Path, name: str) -> None:
    structure, message = ROUTES[name]
    SentenceEncoder.load(run).save(tmp_path / "out")
    (tmp_path / "out" / ROUTER).write_text(json.dumps({"structure": structure}))
    with pytest.raises(UserError) as error:
        SentenceEncoder.load(tmp_path / "out")
    assert message in str(error.value) and str(tmp_path / "out") in str(error.value)


def test_no_tower_of_several_is_a_start_by_chance(run: Path, tmp_path: Path) -> None:
    from xrep.models.start import find_start

    SentenceEncoder.load(run).save(tmp_path / "out")
    with pytest.raises(UserError, match="out: has a tower for each side; name one of its towers, such as .*out/source"):
        find_start(str(tmp_path / "out"))
    assert find_start(str(tmp_path / "out" / "target")).pooling == "mean"


def sentences_and_signs() -> tuple[list[str], torch.Tensor]:
    """Return sentences, and the direction into which a training step moves their vectors, float [N, 16]."""
    sentences = [sentence for sentence, _ in sentence_pairs(12)]
    return sentences, torch.sign(torch.randn(len(sentences), 16, generator=torch.Generator().manual_seed(1)))


def step_elsewhere(model: Any) -> None:
    """Train an exported model for one step with sentence-transformers, without dropout."""
    sentences, signs = sentences_and_signs()
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.05)
    vectors = model.eval()(model.preprocess(sentences))["sentence_embedding"]
    (vectors * signs).sum().backward()
    optimizer.step()


@pytest.mark.slow
def test_training_elsewhere_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trained row of token types is added to the positions, so both programs compute the same vectors; it is not
    among the tensors that a training run says it does not use."""
    library = pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
    export(write_encoder(tmp_path / "run"), tmp_path / "out", capsys)
    model = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    step_elsewhere(model)
    model.save(str(tmp_path / "trained"))
    (row,) = (weight for name, weight in model.named_parameters() if "token_type_embeddings" in name)
    assert row.abs().max() > 1e-3
    theirs = library.SentenceTransformer(str(tmp_path / "trained"), device="cpu")
    sentences, _ = sentences_and_signs()
    before, ours = (SentenceEncoder.load(tmp_path / name).encode(sentences, "de") for name in ("run", "trained"))
    np.testing.assert_allclose(theirs.encode(sentences), ours, atol=1e-5)
    assert abs(before - ours).max() > 1e-2
    (tmp_path / "data").mkdir()
    lines = [f"{german}\t{english}\n" for german, english in sentence_pairs(40)]
    for split, some in (("train", lines[:30]), ("valid", lines[30:])):
        (tmp_path / "data" / f"{split}.de-en.tsv").write_text("".join(some), encoding="utf-8")
    line = [str(tmp_path / "data"), "--encoder", str(tmp_path / "trained"), "--save-dir", str(tmp_path / "next")]
    options = "--task bitext --criterion translation_ranking --max-steps 1 --batch-size 8 --max-length 32 --device cpu"
    assert train.main([*line, *options.split(), "--validation", "loss", "--no-tensorboard"]) == 0
    assert "token_type" not in "".join(capsys.readouterr())


@pytest.mark.slow
def test_the_lines_of_the_card_freeze_the_row_of_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step in sentence-transformers is then the same as in xrep, whose encoder has no such row."""
    library = pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
    export(write_encoder(tmp_path / "run"), tmp_path / "out", capsys)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```python\n(for .*?)```", card, flags=re.DOTALL)
    model = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    exec(lines, {"model": model})
    step_elsewhere(model)
    (row,) = (weight for name, weight in model.named_parameters() if "token_type_embeddings" in name)
    assert not row.any()

    ours, (sentences, signs) = SentenceEncoder.load(tmp_path / "run", device="cpu"), sentences_and_signs()
    given = model.preprocess(sentences)
    batch = token_batch(given["input_ids"], given["attention_mask"].sum(1))
    before = ours.encode(sentences, "de")
    (ours.model.encode("shared", batch)[0] * signs).sum().backward()
    torch.optim.SGD(ours.model.parameters(), lr=0.05).step()
    after = ours.encode(sentences, "de")
    np.testing.assert_allclose(model.encode(sentences), after, atol=1e-5)
    assert abs(before - after).max() > 1e-2

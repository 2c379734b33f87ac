"""``xrep-export``: the line that it prints opens what it has written, with both towers of an encoder that has two."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_lines
from tests.support.encoders import write_encoder
from tests.support.once import made_once
from tests.support.planning import token_batch
from tests.support.translators import write_translator
from xrep import SentenceEncoder
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.models.start import find_start

LANGUAGES = (["de", "es"], ["en"])
SENTENCES = [sentence for sentence, _ in sentence_pairs(12)]


@pytest.fixture(scope="module")
def two_towers() -> Path:
    """An encoder with two towers, which is the default."""
    make = lambda folder: write_encoder(folder / "best", towers="separate", languages=LANGUAGES)  # noqa: E731
    return made_once("two-towers", make) / "best"


def export(cli: Commands, path: Path, output: str, *options: str) -> list[str]:
    """Return the lines that the command prints."""
    done = cli("export", "--path", path, "--output", cli.folder / output, *options)
    assert done.code == 0, done.err
    return done.out.splitlines()


@pytest.mark.slow
def test_the_printed_line_opens_both_towers(two_towers: Path, cli: Commands) -> None:
    pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
    path, line = export(cli, two_towers, "out")
    assert path == str(cli.folder / "out") and line.endswith('.encode(["..."], task="de")  # or es, en')
    encoder = SentenceEncoder.load(two_towers)
    for language in ("de", "es", "en"):
        typed = line.strip().replace('"..."', '"Haus", "the dog"').replace('task="de"', f'task="{language}"')
        names: dict[str, Any] = {}
        exec(typed.replace("; ", "; vectors = "), names)
        np.testing.assert_allclose(names["vectors"], encoder.encode(["Haus", "the dog"], language), atol=1e-5)


@pytest.mark.slow
def test_the_printed_lines_of_transformers_and_of_a_checkpoint(two_towers: Path, cli: Commands) -> None:
    source, target, *lines = export(cli, two_towers, "out", "--format", "hf")
    assert [Path(source).name, Path(target).name] == ["source", "target"]
    assert [line.partition("#")[2] for line in lines] == [" reads de, es", " reads en"]
    for line in lines:
        names: dict[str, Any] = {}
        exec(line.strip().replace("; ", "; model = "), names)
        assert names["model"].config.hidden_size == 16
    exec(export(cli, two_towers, "checkpoint", "--format", "xrep")[1].strip())


@pytest.mark.slow
def test_an_export_is_an_encoder_again(two_towers: Path, cli: Commands) -> None:
    export(cli, two_towers, "a")
    export(cli, cli.folder / "a", "b")
    first, again = SentenceEncoder.load(two_towers), SentenceEncoder.load(cli.folder / "b")
    assert (again.text.source_languages, again.text.target_languages) == LANGUAGES
    for language in ("es", "en"):
        np.testing.assert_array_equal(first.encode(["Haus"], language), again.encode(["Haus"], language))
    random = SentenceEncoder.load(cli.folder / "b", random_weights=0)
    assert np.abs(random.encode(["Haus"], "de") - again.encode(["Haus"], "de")).max() > 0.1
    with pytest.raises(UserError, match="a: has a tower for each side; name one of its towers, such as .*a/source"):
        find_start(str(cli.folder / "a"))
    assert find_start(str(cli.folder / "a" / "target")).pooling == "mean"


@pytest.mark.parametrize("change", [{"layer": 1}, {"vocabulary_from": ["lines.txt"]}])
def test_what_would_change_nothing_of_a_translator_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = write_translator(tmp_path / "nmt")
    with pytest.raises(UserError, match=f"nmt: `{next(iter(change))}` is for sentence encoders; leave it out"):
        export_path(path, tmp_path / "out", "hf", **change)


def test_nothing_stays_half_written(shared_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(tokenizer: object, directory: Path, length: int) -> None:
        assert (directory / "model.safetensors").is_file() and directory.parent == tmp_path
        (directory / "tokenizer.json").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("xrep.interop.exported.save_as_huggingface", fail)
    encoder = SentenceEncoder.load(shared_encoder, device="cpu")
    for format in ("hf", "sentence-transformers"):
        with pytest.raises(OSError, match="No space left") as failure:
            encoder.save(tmp_path / "out", format)
        assert failure.value.filename == str(tmp_path / "out") and os.listdir(tmp_path) == []


def signs() -> torch.Tensor:
    """Return the direction into which a training step moves the vectors of SENTENCES, float [12, 16]."""
    return torch.sign(torch.randn(len(SENTENCES), 16, generator=torch.Generator().manual_seed(1)))


def exported(cli: Commands, shared_encoder: Path, card: str | None = None) -> Any:
    """Export an encoder, train it for one step with sentence-transformers, without dropout, and return the model.
    ``card`` is a pattern of lines of its card that are executed before."""
    library = pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
    export(cli, shared_encoder, "out")
    model = library.SentenceTransformer(str(cli.folder / "out"), device="cpu")
    if card:
        (lines,) = re.findall(card, (cli.folder / "out" / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
        exec(lines, {"model": model})
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.05)
    (model.eval()(model.preprocess(SENTENCES))["sentence_embedding"] * signs()).sum().backward()
    optimizer.step()
    return model


def row_of_types(model: Any) -> torch.Tensor:
    """Return the embedding of token types, which transformers adds, [1, 16]."""
    (row,) = (weight for name, weight in model.named_parameters() if "token_type_embeddings" in name)
    return row


@pytest.mark.slow
def test_training_elsewhere_comes_back(shared_encoder: Path, cli: Commands) -> None:
    """A trained row of token types is added to the positions, so both programs compute the same vectors; it is not
    among the tensors that a training run says it does not use."""
    model = exported(cli, shared_encoder)
    model.save(str(cli.folder / "trained"))
    assert row_of_types(model).abs().max() > 1e-3
    theirs = type(model)(str(cli.folder / "trained"), device="cpu")
    before, ours = (SentenceEncoder.load(x).encode(SENTENCES, "de") for x in (shared_encoder, cli.folder / "trained"))
    np.testing.assert_allclose(theirs.encode(SENTENCES), ours, atol=1e-5)
    assert abs(before - ours).max() > 1e-2
    lines = [f"{german}\t{english}" for german, english in sentence_pairs(40)]
    write_lines(cli.folder / "data" / "train.de-en.tsv", lines[:30])
    write_lines(cli.folder / "data" / "valid.de-en.tsv", lines[30:])
    options = "--task bitext --criterion translation_ranking --max-steps 1 --batch-size 8 --max-length 32 --device cpu"
    line = f"data --encoder trained --save-dir next {options} --validation loss --no-tensorboard"
    done = cli("train", *line.split())
    assert done.code == 0 and "token_type" not in done.out + done.err


@pytest.mark.slow
def test_the_lines_of_the_card_freeze_the_row_of_types(shared_encoder: Path, cli: Commands) -> None:
    """A step in sentence-transformers is then the same as in xrep, whose encoder has no such row."""
    model = exported(cli, shared_encoder, card=r"```python\n(for .*?)```")
    assert not row_of_types(model).any()
    ours, given = SentenceEncoder.load(shared_encoder, device="cpu"), model.preprocess(SENTENCES)
    batch = token_batch(given["input_ids"], given["attention_mask"].sum(1))
    before = ours.encode(SENTENCES, "de")
    (ours.model.encode("shared", batch)[0] * signs()).sum().backward()
    torch.optim.SGD(ours.model.parameters(), lr=0.05).step()
    after = ours.encode(SENTENCES, "de")
    np.testing.assert_allclose(model.encode(SENTENCES), after, atol=1e-5)
    assert abs(before - after).max() > 1e-2

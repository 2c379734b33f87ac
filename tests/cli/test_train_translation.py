"""Runs of xrep-train that learn to translate: digits, a frozen encoder in two steps, several ranks."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.test_train_ranks import finish, start_ranks
from tests.support.corpus import write_corpus, write_lines
from tests.support.first_tokens import write_tokenizer_without_first_token
from tests.support.runs import contents, figures
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.inference.generation.decoding import DecodingOptions
from xrep.inference.generation.translator import Translator
from xrep.models.directory import MODEL, open_checkpoint
from xrep.tasks.translation import TranslationTask
from xrep.text.find import discover_bitext
from xrep_cli.train import main

pytestmark = pytest.mark.slow
STEADY = {
    "layers": 1, "hidden_size": 32, "heads": 2, "feedforward_size": 64, "max_positions": 32,
    "task": "translation", "criterion": "label_smoothed_cross_entropy", "decoder_layers": 1, "max_length": 32,
    "max_tokens": 300, "lr": 3e-3, "warmup_steps": 3, "lr_scheduler": "constant", "log_every": 5,
    "max_sentences": 4, "beam": 1, "device": "cpu", "no_tensorboard": None,
}  # fmt: skip


def arguments(data: Path, save_dir: Path, **given: Any) -> list[str]:
    """Return ``STEADY`` and the given options as a command line; None is a flag."""
    line = [str(data)]
    for name, value in {**STEADY, "save_dir": save_dir, **given}.items():
        line += [f"--{name.replace('_', '-')}", *([] if value is None else [str(value)])]
    return line


def train(data: Path, save_dir: Path, **given: Any) -> Path:
    assert main(arguments(data, save_dir, **given)) == 0
    return save_dir


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return open_checkpoint(run / "last").tensors(MODEL)


def validations(run: Path) -> list[dict[str, Any]]:
    return [record for record in figures(run) if record["kind"] == "valid"]


def test_no_digit_is_lost_without_a_first_token(tmp_path: Path) -> None:
    """Digits become letters. With a tokenizer like T5's, which has no [CLS], translations and references begin with
    the first word."""
    letters, draw = "abcdefghij", random.Random(1)
    drawn = {tuple(draw.randrange(10) for _ in range(draw.randint(3, 5))) for _ in range(5500)}
    pairs = [(" ".join(map(str, line)), " ".join(letters[digit] for digit in line)) for line in sorted(drawn)]
    draw.shuffle(pairs)
    splits = {"train": pairs[160:], "valid": pairs[:60], "test": pairs[60:160]}
    for split, some in splits.items():
        write_lines(tmp_path / "raw" / f"{split}.de-es.tsv", ["\t".join(pair) for pair in some])
    tokenizer = write_tokenizer_without_first_token(tmp_path / "tokenizer", "0123456789" + letters)
    options = PreprocessOptions(tokenizers={"shared": str(tokenizer)})
    preprocess(discover_bitext(tmp_path / "raw"), tmp_path / "bin", options, progress=False)
    run = train(
        tmp_path / "bin", tmp_path / "run", hidden_size=64, heads=4, feedforward_size=128, tie_embeddings="all",
        norm="pre", dropout=0.0, attention_dropout=0.0, max_tokens=1000, max_steps=160, max_length=6, max_sentences=60,
    )  # fmt: skip
    translator = Translator.load(run / "best", device="cpu")
    assert translator.model.target_vocabulary.bos_id is None
    sources, references = map(list, zip(*splits["test"], strict=True))
    found = [best[0].text for best in translator.translate(sources, "es", DecodingOptions(beam=2))]
    assert [line.split()[0] for line in found] == [line.split()[0] for line in references]
    assert sum(line == reference for line, reference in zip(found, references, strict=True)) >= 95
    (valid,) = validations(run)
    assert valid["bleu_de-es"] == pytest.approx(100)
    task = TranslationTask(TranslationTask.Config(data=str(tmp_path / "bin"), max_length=6), seed=1)
    (pool,) = task.validation_pools(60)
    found = sorted(line for batch in pool.batches() for line in task.references(batch))
    assert found == sorted(target for _, target in splits["valid"])


def test_a_run_that_stops_ends_as_if_it_had_not(data_directory: Path, tmp_path: Path) -> None:
    """Dropout, both directions and the order of batches continue where they were."""
    given = {"save_every": 4, "validate_every": 4, "log_every": 1, "direction": "both", "sampling_alpha": 0.5}
    whole, halves = train(data_directory, tmp_path / "whole", max_steps=12, **given), tmp_path / "halves"
    for steps in (4, 12):
        train(data_directory, halves, max_steps=steps, **given)
    one, other = contents(whole / "last"), contents(halves / "last")
    assert one[MODEL] == other[MODEL] and figures(whole) == figures(halves)


def test_two_ranks_train_what_one_process_does(data_directory: Path, tmp_path: Path) -> None:
    """Each rank fills a budget of its own; a single process computes both parts one after the other."""
    # The biases of keys have no gradient, except for rounding errors, which a small epsilon would make large.
    steady = {"max_steps": 6, "dropout": 0.0, "attention_dropout": 0.0, "log_every": 1, "norm": "pre", "adam_eps": 1e-4}
    line = arguments(data_directory, tmp_path / "ranks", **steady)
    for done in finish(start_ranks(line, line)):
        assert done.returncode == 0, done.stderr
    train(data_directory, tmp_path / "one", **steady, update_freq=2)
    one, ranks = tensors(tmp_path / "one"), tensors(tmp_path / "ranks")
    start = tensors(train(data_directory, tmp_path / "start", **{**steady, "max_steps": 1, "lr": 0.0}))
    for name, tensor in one.items():
        torch.testing.assert_close(ranks[name], tensor, rtol=0, atol=2e-4, msg=name)
    assert max(float((one[name] - start[name]).abs().max()) for name in one) > 0.01
    steps = [[x["loss"] for x in figures(tmp_path / run) if x["kind"] == "train"] for run in ("ranks", "one")]
    assert steps[0] == pytest.approx(steps[1], rel=1e-4) and len(steps[0]) == 6


def test_two_steps(data_directory: Path, tmp_path: Path, trained_run: Path, capfd) -> None:
    """A frozen encoder stays equal to the last bit; then everything is trained."""
    encoder = trained_run / "best"
    first = train(data_directory, tmp_path / "first", encoder=encoder, max_steps=4, freeze="encoder")
    said = capfd.readouterr().err
    assert f"encoder (de, es): frozen, 0.0M parameters, from {encoder / 'shared'} (de, en, es, " in said
    assert "decoder (en): trained, 0.0M parameters, random weights" in said
    before, after = open_checkpoint(encoder).tensors(MODEL), tensors(first)
    kept = [name for name in after if name.startswith("encoder.")]
    assert len(kept) > 10
    for name in kept:
        assert torch.equal(after[name], before[f"encoders.shared.{name.removeprefix('encoder.')}"]), name
    second = train(data_directory, tmp_path / "second", init=first / "best", max_steps=3, lr=1e-3)
    assert f"init: {len(after)} of {len(after)} model tensors from {first / 'best'}" in capfd.readouterr().err
    moved = {name for name, tensor in tensors(second).items() if not torch.equal(tensor, after[name])}
    assert moved & {*kept} and len(moved) > 0.8 * len(after)


def test_from_the_source_side_of_two_towers(separate_encoder: Path, tmp_path: Path, capfd) -> None:
    train(write_corpus(tmp_path / "raw", 40, 9, 9), tmp_path / "run", encoder=separate_encoder, max_steps=1)
    said = capfd.readouterr().err
    assert f"encoder (de): trained, 0.0M parameters, from {separate_encoder / 'source'} (de, " in said
    assert "warning: BLEU 0.0 on the dev split: most translations will be poor" in said


def test_from_english(data_directory: Path, tmp_path: Path) -> None:
    run = train(data_directory, tmp_path / "run", direction="reverse", max_steps=2)
    assert {name for name in validations(run)[0] if name.startswith("bleu_")} == {"bleu_en-de", "bleu_en-es"}
    translator = Translator.load(run / "best", device="cpu")
    assert translator.model.target_languages == ["de", "es"]
    assert translator.text.source_languages == ["en"]

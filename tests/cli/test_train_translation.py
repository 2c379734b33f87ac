"""Runs of xrep-train that learn to translate: digits, a frozen encoder in two steps, several ranks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.test_train_ranks import finish, start_ranks
from tests.support.corpus import spanish_pairs
from tests.support.first_tokens import write_tokenizer_without_first_token
from tests.support.runs import contents, figures
from xrep.config import to_yaml
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.errors import UserError
from xrep.inference.generation.options import SearchOptions
from xrep.inference.generation.translator import Translator
from xrep.metrics.translation import bleu
from xrep.models.directory import MODEL, open_checkpoint
from xrep.models.translation import Translation
from xrep.tasks.translation import TranslationTask
from xrep.text.readers import discover_bitext
from xrep_cli.train import main

pytestmark = pytest.mark.slow
MODEL_SIZES = {"layers": 1, "hidden_size": 32, "heads": 2, "feedforward_size": 64, "max_positions": 32}
STEADY = {
    **MODEL_SIZES, "task": "translation", "criterion": "label_smoothed_cross_entropy", "decoder_layers": 1,
    "max_length": 32, "max_tokens": 300, "lr": 3e-3, "warmup_steps": 3, "lr_scheduler": "constant", "log_every": 5,
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


def tensors(run: Path, of: str = "last") -> dict[str, torch.Tensor]:
    return open_checkpoint(run / of).tensors(MODEL)


def validations(run: Path) -> list[dict[str, Any]]:
    return [record for record in figures(run) if record["kind"] == "valid"]


LETTERS = "abcdefghij"
TARGETS = {
    "en": lambda digits: digits[::-1],
    "fr": sorted,
    "es": lambda digits: [LETTERS[digit] for digit in digits],  # plain copies would be dropped as untranslated
}


def write_digits(folder: Path, languages: tuple[str, ...] = tuple(TARGETS)) -> dict[str, list[tuple[str, str]]]:
    """Write raw text of three to five digits in German and the languages; return the held-out pairs of each."""
    folder.mkdir()
    draw, lines = random.Random(1), dict[tuple[int, ...], None]()
    while len(lines) < 5000:
        lines[tuple(draw.randrange(10) for _ in range(draw.randint(3, 5)))] = None
    every, held_out = list(lines), {}
    for language in languages:
        translate = TARGETS[language]
        for split, some in (("train", every[160:]), ("valid", every[:60]), ("test", every[60:160])):
            pairs = [(" ".join(map(str, digits)), " ".join(map(str, translate(digits)))) for digits in some]
            for side, column in zip(("de", language), zip(*pairs, strict=True), strict=True):
                (folder / f"{split}.de-{language}.{side}").write_text("".join(f"{line}\n" for line in column))
        held_out[language] = pairs
    return held_out


@pytest.mark.nightly
def test_digits_are_copied_sorted_and_reversed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One model translates a line into each of its target languages."""
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    held_out = write_digits(tmp_path / "raw")
    run = train(
        tmp_path / "raw", tmp_path / "run", hidden_size=256, heads=16, tie_embeddings="all", norm="pre", dropout=0.0,
        attention_dropout=0.0, label_smoothing=0.05, vocab_size=46, max_tokens=1000, max_steps=260, lr=2e-3,
        warmup_steps=50, lr_scheduler="cosine", betas="0.9,0.98", clip_norm=0.5, log_every=100, max_sentences=60,
    )  # fmt: skip
    (valid,) = validations(run)
    assert min(valid[f"bleu_de-{language}"] for language in TARGETS) > 97
    translator = Translator.load(run / "best", device="cpu")
    for language, pairs in held_out.items():
        sources, references = map(list, zip(*pairs, strict=True))
        found = [best[0].text for best in translator.translate(sources, language, SearchOptions(beam=3))]
        assert bleu(found, references).value > 99, language


def test_no_digit_is_lost_without_a_first_token(tmp_path: Path) -> None:
    """With a tokenizer like T5's, which has no [CLS], translations and references begin with the first word."""
    held_out = write_digits(tmp_path / "raw", ("es",))["es"]
    tokenizer = write_tokenizer_without_first_token(tmp_path / "tokenizer", "0123456789" + LETTERS)
    options = PreprocessOptions(tokenizers={"shared": str(tokenizer)})
    preprocess(discover_bitext(tmp_path / "raw"), tmp_path / "bin", options, progress=False)
    run = train(
        tmp_path / "bin", tmp_path / "run", hidden_size=64, heads=4, feedforward_size=128, tie_embeddings="all",
        norm="pre", dropout=0.0, attention_dropout=0.0, max_tokens=1000, max_steps=160, max_length=6, max_sentences=60,
    )  # fmt: skip
    translator = Translator.load(run / "best", device="cpu")
    assert translator.model.target_vocabulary.bos_id is None
    sources, references = map(list, zip(*held_out, strict=True))
    assert [best[0].text for best in translator.translate(sources, "es", SearchOptions(beam=2))] == references
    (valid,) = validations(run)
    assert valid["bleu_de-es"] == pytest.approx(100)
    task = TranslationTask(TranslationTask.Config(data=str(tmp_path / "bin"), max_length=6), seed=1)
    (pool,) = task.validation_pools(60)
    lines = (tmp_path / "raw" / "valid.de-es.es").read_text().splitlines()
    assert sorted(line for batch in pool.batches() for line in task.references(batch)) == sorted(lines)


def test_a_run_that_stops_ends_as_if_it_had_not(data_directory: Path, tmp_path: Path) -> None:
    """Dropout, both directions and the order of batches continue where they were."""
    given = {"save_every": 4, "validate_every": 4, "log_every": 1, "direction": "both", "sampling_alpha": 0.5}
    whole, halves = train(data_directory, tmp_path / "whole", max_steps=12, **given), tmp_path / "halves"
    for steps in (4, 12):
        train(data_directory, halves, max_steps=steps, **given)
    one, other = contents(whole / "last"), contents(halves / "last")
    assert one[MODEL] == other[MODEL] and figures(whole) == figures(halves)
    valid = validations(whole)
    assert [record["step"] for record in valid] == [4, 8, 12]
    pairs = ("de-en", "en-de", "es-en", "en-es")
    assert {"loss", "perplexity", "accuracy", "bleu", *(f"bleu_{pair}" for pair in pairs)} <= set(valid[0])
    assert valid[2]["loss"] < valid[0]["loss"]


def test_two_ranks_train_what_one_process_does(data_directory: Path, tmp_path: Path) -> None:
    """Each rank fills a budget of its own; a single process computes both parts one after the other."""
    steady = {"max_steps": 6, "dropout": 0.0, "attention_dropout": 0.0, "log_every": 1, "norm": "pre"}
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


@pytest.fixture(scope="module")
def encoder(trained_run: Path) -> Path:
    return trained_run / "best"


def test_two_steps_are_two_commands_or_two_stages(data_directory: Path, tmp_path: Path, encoder: Path, capfd) -> None:
    """A frozen encoder stays equal to the last bit; then everything is trained."""
    first, second = {"max_steps": 4, "freeze": "encoder"}, {"max_steps": 3, "lr": 1e-3}
    nmt1 = train(data_directory, tmp_path / "nmt1", encoder=encoder, **first)
    said = capfd.readouterr().err
    assert f"encoder (de, es): frozen, 0.0M parameters, from {encoder / 'shared'} (de, en, es, " in said
    assert "decoder (en): trained, 0.0M parameters, random weights" in said
    before, after = open_checkpoint(encoder).tensors(MODEL), tensors(nmt1)
    kept = {name: tensor for name, tensor in after.items() if name.startswith("encoder.")}
    assert len(kept) > 10 and {f"encoders.shared.{name.removeprefix('encoder.')}" for name in kept} <= set(before)
    for name, tensor in kept.items():
        assert torch.equal(tensor, before[f"encoders.shared.{name.removeprefix('encoder.')}"]), name
    nmt2 = train(data_directory, tmp_path / "nmt2", init=nmt1 / "best", **second)
    assert f"init: {len(after)} of {len(after)} model tensors from {nmt1 / 'best'}" in capfd.readouterr().err
    moved = [name for name, tensor in tensors(nmt2).items() if not torch.equal(tensor, after[name])]
    assert {name for name in moved if name.startswith("encoder.")} and len(moved) > 0.8 * len(after)

    trainer = {"device": "cpu"}
    stages = [
        {"name": "decoder", "model": {"encoder": str(encoder)}, "trainer": {"max_steps": 4, "freeze": ["encoder"]}},
        {"name": "all", "trainer": {"max_steps": 3}, "optimizer": {"lr": second["lr"]}},
    ]
    values = {
        "task": {"name": "translation", "data": str(data_directory), "max_length": 32, "max_tokens": 300},
        "model": {"name": "translation", **MODEL_SIZES, "decoder_layers": 1},
        "criterion": "label_smoothed_cross_entropy", "optimizer": {"lr": STEADY["lr"]}, "trainer": trainer,
        "lr_scheduler": {"name": "constant", "warmup_steps": 3}, "logging": {"log_every": 5, "tensorboard": False},
        "validation": {"name": "translation", "max_sentences": 4, "beam": 1}, "stages": stages,
    }  # fmt: skip
    (tmp_path / "course.yaml").write_text(to_yaml(values))
    assert main(["--config", str(tmp_path / "course.yaml"), "--save-dir", str(tmp_path / "course")]) == 0
    for stage, run in (("decoder", nmt1), ("all", nmt2)):
        assert (tmp_path / "course" / stage / "last" / MODEL).read_bytes() == (run / "last" / MODEL).read_bytes()
    assert Translator.load(tmp_path / "course" / "best", device="cpu").translate(["der alte Mann"])


def test_one_pair_goes_on_from_all_of_them(data_directory: Path, tmp_path: Path, capfd) -> None:
    """The vector of a target language is found again in a model with fewer languages."""
    every = train(data_directory, tmp_path / "every", direction="both", max_steps=3)
    one = train(data_directory, tmp_path / "one", init=every / "best", max_steps=1, lr=0.0)
    assert open_checkpoint(every / "best").text.target_languages == ["de", "en", "es"]
    assert open_checkpoint(one / "best").text.target_languages == ["en"]
    before, after = tensors(every, "best"), tensors(one)
    assert torch.equal(after["language_embedding.weight"][0], before["language_embedding.weight"][1])
    assert f"init: {len(after)} of {len(after)} model tensors" in capfd.readouterr().err


def test_a_frozen_encoder_has_no_dropout(data_directory: Path, tmp_path: Path, encoder: Path, monkeypatch) -> None:
    seen, predict = [], Translation.predict

    def watched(self: Translation, *given: Any) -> Any:
        seen.append(
            (self.encoder.dropout.training, self.decoder.dropout.training, self.encoder(given[0]).requires_grad)
        )
        return predict(self, *given)

    monkeypatch.setattr(Translation, "predict", watched)
    for freeze, expected in (("encoder", (False, True, False)), ("decoder", (True, False, True))):
        train(data_directory, tmp_path / freeze, encoder=encoder, max_steps=2, freeze=freeze, max_sentences=1)
        assert seen[:2] == [expected] * 2
        seen.clear()


def test_from_english(data_directory: Path, tmp_path: Path) -> None:
    run = train(data_directory, tmp_path / "run", direction="reverse", max_steps=2)
    assert {name for name in validations(run)[0] if name.startswith("bleu_")} == {"bleu_en-de", "bleu_en-es"}
    translator = Translator.load(run / "best", device="cpu")
    assert translator.model.target_languages == ["de", "es"]
    assert translator.text.source_languages == ["en"]
    english = [english for _, english in spanish_pairs()[:3]]
    options = SearchOptions(max_length_b=5)
    assert [len(best) for best in translator.translate(english, "es", options)] == [1, 1, 1]
    with pytest.raises(UserError, match="several target languages; name one: de, es"):
        translator.translate(english, options=options)

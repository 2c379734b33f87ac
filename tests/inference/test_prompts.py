"""Prompts: they are put in front of sentences in training, and by every command that encodes them."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_corpus, write_lines
from tests.support.runs import compose_run, make_trainer
from xrep.errors import UserError
from xrep.evaluation.encoders import open_encoder, with_random_weights
from xrep.inference.encoding import HeldEncoder
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.training.run import train

GERMAN, ENGLISH = map(list, zip(*sentence_pairs(20), strict=True))
PROMPTS = {"source_prompt": "Frage: ", "target_prompt": "Text: "}


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder that was trained with prompts, one for each side."""
    folder = tmp_path_factory.mktemp("prompted")
    raw = write_corpus(folder / "raw", train=60, valid=10, test=10)
    given = {"criterion": "translation_ranking", "max_steps": 1, "vocab_size": 80, **PROMPTS}
    return train(compose_run(raw, folder / "run", **given)).directory / "best"


def encoding(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Return a list that receives the prompts with which sentences are encoded."""
    whole, prompts = SentenceEncoder.encode, list[str | None]()

    def noted(self: SentenceEncoder, *rest: Any, prompt: str | None = None, **options: Any) -> np.ndarray:
        prompts.append(self.find_prompt(None) if prompt is None else prompt)
        return whole(self, *rest, prompt=prompt, **options)

    monkeypatch.setattr(SentenceEncoder, "encode", noted)
    return prompts


@pytest.mark.slow
@pytest.mark.parametrize(("command", "expected"), [
    ("encode --input a.txt --output v.npy --lang de", {""}),
    ("encode --input a.txt --output v.npy --lang de --prompt-name query", {"Frage: "}),
    ("encode --input a.txt --output v.npy --lang de --prompt Satz:", {"Satz:"}),
    ("mine --source a.txt --target b.txt --source-lang de --target-lang en --output m.tsv --prompt x", {"x"}),
    ("score --bitext de-en=a.txt,b.txt --output s.tsv --prompt x", {"x"}),
    ("mine negatives --bitext de-en=a.txt,b.txt --output m.tsv --relative-margin -9", {"Frage: ", "Text: "}),
    ("eval sts --data sts --prompt-name document", {"Text: "}),
    ("search build --input a.txt --lang de --output index", {"Text: "}),
])  # fmt: skip
def test_commands(
    command: str, expected: set[str], prompted: Path, tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, lines in (("a.txt", GERMAN), ("b.txt", ENGLISH)):
        write_lines(tmp_path / name, lines)
    rows = [f"m\tM\t1\t{i}\t{i % 6}\t{text}\t{GERMAN[i]}" for i, text in enumerate(ENGLISH)]
    write_lines(tmp_path / "sts" / "sts-test.csv", rows)
    prompts = encoding(monkeypatch)
    name, *words = command.split()
    words.insert(words.index("negatives") + 1 if "negatives" in words else int(name in ("eval", "search")), "--path")
    words.insert(words.index("--path") + 1, str(prompted))
    result = cli(name, *words)
    assert result.code == 0, result.err
    assert {*prompts} == expected


def test_an_encoder_keeps_and_changes_its_prompts(prompted: Path) -> None:
    encoder = SentenceEncoder.load(prompted, device="cpu")
    assert encoder.prompts == {"query": "Frage: ", "document": "Text: "} and encoder.default_prompt_name is None
    before, expected = encoder.fingerprint(), encoder.encode(GERMAN, prompt="Satz: ")
    assert encoder.use_prompt(None) is encoder and encoder.fingerprint() == before
    held = pickle.loads(pickle.dumps(HeldEncoder(encoder.use_prompt("Satz: "))))
    assert held.fingerprint == held.encoder.fingerprint() != before
    np.testing.assert_array_equal(held.encoder.encode(GERMAN), expected)
    measured = open_encoder(prompted, prompt="Satz: ")
    np.testing.assert_array_equal(measured.encode(GERMAN), expected)
    assert with_random_weights(measured, 1).encoder.find_prompt(None) == "Satz: "
    with pytest.raises(UserError, match="`prompt` and `prompt_name`; give one of them"):
        encoder.use_prompt("a", "query")
    with pytest.raises(UserError, match="there is no prompt 'b'; known: query, document, prompt"):
        encoder.use_prompt(None, "b")


def test_training_text_begins_with_its_prompt(prompted: Path, tmp_path: Path, cli: Commands) -> None:
    """Also that of a data directory; if it has other prompts than those that are asked for, it is refused."""
    raw = write_corpus(tmp_path / "raw", train=60, valid=10, test=0)
    same = {"source_prompt": "Satz: ", "target_prompt": "Satz: "}
    flags = [word for name, text in same.items() for word in (f"--{name.replace('_', '-')}", text)]
    files = f"de-en={raw / 'train.de-en.de'},{raw / 'train.de-en.en'}"
    assert cli("preprocess", "--bitext", files, "--vocab-size", 80, *flags, "--destdir", "bin").code == 0
    data = tmp_path / "bin"
    source, target = ((raw / f"train.de-en.{code}").read_text().splitlines() for code in ("de", "en"))
    negatives = write_lines(tmp_path / "n.tsv", map("\t".join, zip(source, target, target[5:], strict=False)))
    given = {"criterion": "translation_ranking", "max_steps": 1}
    run = compose_run(data, tmp_path / "run", **given, negatives=negatives)
    task = make_trainer(run, tmp_path / "run").task
    assert task.as_text(task.train[0], 0).count("'Satz ") == 2
    batch = task.make(np.stack([np.zeros(20, dtype=np.int64), np.arange(20), np.arange(20)], axis=1))
    texts = [task.tokenizers["shared"].decode(ids) for ids in batch.negatives.tokens.tokens.tolist()]
    assert len(texts) > 5 and all(text.startswith("Satz ") for text in texts)
    last = train(compose_run(data, tmp_path / "done", **given)).directory / "last"
    assert SentenceEncoder.load(last, device="cpu").find_prompt(None) == "Satz: "
    with pytest.raises(UserError, match="was tokenised with other prompts; name the raw text, or preprocess it with"):
        train(compose_run(data, tmp_path / "other", **given, source_prompt="x"))

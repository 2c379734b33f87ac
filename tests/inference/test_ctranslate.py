"""Translators in CTranslate2 have the translations of xrep, whatever the form of the model and of its vocabularies."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.test_train_translation import train
from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs
from tests.support.first_tokens import write_tokenizer_without_first_token
from tests.support.translators import make_translator, write_translator
from tests.support.vocabulary import small_tokenizer
from xrep.data.batch import TextSpec, Vocabulary, collate
from xrep.errors import UserError
from xrep.inference import ctranslate
from xrep.inference.ctranslate import language_token, pieces_of, write_ctranslate2
from xrep.inference.export import export_path
from xrep.inference.generation.beam_search import search
from xrep.inference.generation.decoding import DecodingOptions
from xrep.inference.generation.translator import Translator
from xrep.models.translation import Translation
from xrep.text.sides import SIDES, load_tokenizers, open_tokenizer, tokenizer_of

library = pytest.importorskip("ctranslate2", reason="it is in the extra 'ctranslate2'")
GERMAN = [german for german, _ in sentence_pairs(40)]
FORMS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm, one table": {"norm": "pre", "tie_embeddings": "all"},
    "three tables, several languages": {"tie_embeddings": "none", "targets": ["en", "es", "fr"]},
    "one table, several languages": {"tie_embeddings": "all", "targets": ["en", "es"]},
    "another decoder": {"decoder_hidden_size": 24, "decoder_heads": 4, "decoder_feedforward_size": 12},
    "positions and types of XLM-R": {
        "shapes": {
            "encoder": {"position_offset": 2, "type_vocabulary_size": 2, "activation": "relu", "norm_epsilon": 1e-3},
            "decoder": {"activation": "gelu_tanh", "norm_epsilon": 1e-3},
        },
    },
}


def text_of(tokenizers: dict[str, Any], targets: list[str]) -> TextSpec:
    vocabularies = {side: Vocabulary.of(own) for side, own in tokenizers.items()}
    return TextSpec(vocabularies=vocabularies, max_length=32, source_languages=["de"], target_languages=targets)


def check_greedy(model: Translation, tokenizers: dict[str, Any], folder: Path) -> None:
    """Compare the words of greedy translations of real sentences into each language."""
    pieces = {side: pieces_of(tokenizer_of(tokenizers, side)) for side in SIDES}
    write_ctranslate2(model, pieces, folder, "float32")
    translator, targets = library.Translator(str(folder)), model.target_languages
    ids = tokenizer_of(tokenizers, "source").encode(GERMAN)
    batch = collate([torch.tensor(row).numpy() for row in ids], model.source_vocabulary, 32)
    given = [[pieces["source"][i] for i in row] for row in ids]
    for number, language in enumerate(targets):
        languages = torch.full((len(ids),), number)
        ours = search(model, batch, languages, DecodingOptions(beam=1, max_length_a=0.0, max_length_b=20))
        prefix = [[language_token(language)]] * len(ids) if len(targets) > 1 else None
        found = translator.translate_batch(
            given, prefix, beam_size=1, max_decoding_length=20, min_decoding_length=0, max_input_length=32
        )
        expected = [[pieces["target"][i] for i in best[0].tokens] for best in ours]
        same = [each.hypotheses[0] == words for each, words in zip(found, expected, strict=True)]
        assert sum(same) >= len(same) - 1 and len({tuple(words) for words in expected}) > 9  # one may be a tie


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str, tmp_path: Path) -> None:
    options, tokenizers = dict(FORMS[form]), {"shared": small_tokenizer()}
    text = text_of(tokenizers, options.pop("targets", ["en"]))
    check_greedy(make_translator(text, **options), tokenizers, tmp_path)


@pytest.mark.parametrize("turned", [False, True])
def test_vocabularies_of_two_kinds(turned: bool, tmp_path: Path) -> None:
    """A tokenizer of SentencePiece, and one of transformers whose special tokens have other names and lack bos."""
    words = sorted({word for pair in sentence_pairs(40) for side in pair for word in side.split()})
    paths = [write_tokenizer_without_first_token(tmp_path / "words", words), tmp_path / "pieces"]
    small_tokenizer().save(paths[1])
    tokenizers = load_tokenizers(dict(zip(SIDES, paths[::-1] if turned else paths, strict=True)))
    (tmp_path / "out").mkdir()
    check_greedy(make_translator(text_of(tokenizers, ["en"])), tokenizers, tmp_path / "out")


@pytest.fixture(scope="module")
def trained(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("nmt") / "run"
    sizes = {"hidden_size": 64, "feedforward_size": 128, "max_tokens": 600, "max_steps": 160}
    return train(data_directory, run, **sizes, label_smoothing=0.0, dropout=0.0, tie_embeddings="all") / "best"


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_the_lines_of_the_card(several: bool, trained: Path, cli: Commands, capfd) -> None:
    """From text to text, with beam search, or greedy if the weights are random."""
    path = write_translator(cli.folder / "nmt", languages=(["de"], ["en", "fr"])) if several else trained
    done = cli("export", "--path", path, "--format", "ctranslate2", "--output", "out")
    assert done.code == 0 and done.out.startswith("out\n  import ctranslate2; "), done.err
    card = (cli.folder / "out" / "README.md").read_text(encoding="utf-8")
    code, beam = card.split("```python\n")[1].split("```")[0].replace('"out', f'"{cli.folder}/out'), 1 if several else 5
    found = Translator.load(path, device="cpu").translate(
        GERMAN, "en", DecodingOptions(beam=beam, max_length_a=0.0, max_length_b=200)
    )
    expected = [best[0].text for best in found]
    for sentence in GERMAN:
        exec(code.replace("beam_size=5", f"beam_size={beam}").replace('"..."', json.dumps(sentence)), {})
    same = [one == other for one, other in zip(capfd.readouterr().out.splitlines(), expected, strict=True)]
    assert sum(same) >= len(same) - 1 and len(set(expected)) > 5  # two may be as good


@pytest.mark.slow
def test_int8(trained: Path, tmp_path: Path) -> None:
    """The weights are those that CTranslate2 makes itself of float32."""
    for precision in ("float32", "int8"):
        export_path(trained, tmp_path / precision, "ctranslate2", precision=precision)
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("float32", "int8")]
    assert sizes[1] < 0.4 * sizes[0]
    pieces = [open_tokenizer(tmp_path / "int8").processor.encode(line, out_type=str) for line in GERMAN]
    limits, found = {"max_input_length": 32, "max_decoding_length": 20}, list[list[Any]]()
    for name in ("float32", "int8"):
        translator = library.Translator(str(tmp_path / name), compute_type="int8")
        found.append([each.hypotheses for each in translator.translate_batch(pieces, **limits)])
    assert found[0] == found[1] and len({str(each) for each in found[0]}) > 3


def test_other_translations_write_nothing(translator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(module: Any, spec: Any) -> None:
        copy(module, spec)
        if isinstance(module, torch.nn.Linear):
            spec.weight = spec.weight * 0.5

    copy = ctranslate._copy
    monkeypatch.setattr(ctranslate, "_copy", half)
    with pytest.raises(UserError, match="CTranslate2 finds other translations in .* of 32 random sentences; translate"):
        export_path(translator, tmp_path / "out", "ctranslate2")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_expressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizers = {"shared": small_tokenizer()}
    text, pieces = text_of(tokenizers, ["en"]), dict.fromkeys(SIDES, small_tokenizer().pieces())
    model = make_translator(text)
    problems = {
        "two have the same, or that of <2en>; translate with xrep-generate": (model, pieces | {"target": ["a"] * 120}),
        "which its `semantic_bias` adds; translate with": (make_translator(text, semantic_bias=True), pieces),
    }
    for problem, given in problems.items():
        with pytest.raises(UserError, match=problem):
            write_ctranslate2(*given, tmp_path, "float32")
    monkeypatch.setattr("xrep.inference.ctranslate.TransformerEncoder", torch.nn.Linear)
    with pytest.raises(UserError, match="cannot compute its encoder of type transformer"):
        write_ctranslate2(model, pieces, tmp_path, "float32")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"ctranslate2 is not installed; pip install 'xrep\[ctranslate2\]'"):
        write_ctranslate2(model, pieces, tmp_path, "float32")
    assert list(tmp_path.iterdir()) == []

"""Classifiers beside those of transformers with equal weights, in both directions, and their predictions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.text.small_tokenizers import write_wordpiece, write_xlm_roberta
from xrep.errors import UserError
from xrep.nn.weights import Weights
from xrep.text.examples import Example
from xrep.text.sides import SHARED
from xrep.understanding.annotated import Reading, Row, batch_of_rows
from xrep.understanding.classifier import load_classifier
from xrep.understanding.formats import Question
from xrep.understanding.labels import label_rows
from xrep.understanding.sentence_classifier import SentenceClassifier, best_span

pytestmark = pytest.mark.slow  # transformers takes seconds to import
SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 70, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
PAIRS = [("the red house", "a house is red"), ("nobody", "the cats are sleeping in the sun and nobody sees them")]
LABELS = {0: "contradiction", 1: "entailment", 2: "neutral"}


def write_model(folder: Path, family: str, kind: str, labels: dict[int, str] | None = LABELS) -> Any:
    """Write a small random classifier as transformers does, and return it; None: two labels that have no names."""
    torch.manual_seed(len(family) + len(kind))
    if family == "bert":
        write_wordpiece(folder, tokenizer_class="BertTokenizer", do_lower_case=False)
        config: Any = transformers.BertConfig(vocab_size=1500, **SIZES)
    else:
        write_xlm_roberta(folder)
        config = transformers.XLMRobertaConfig(vocab_size=1500, type_vocab_size=1, pad_token_id=1, **SIZES)
    if kind != "QuestionAnswering" and labels:
        config.id2label, config.label2id = labels, {label: number for number, label in labels.items()}
    name = {"bert": "Bert", "xlm-roberta": "XLMRoberta"}[family]
    model = getattr(transformers, f"{name}For{kind}")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return model


def expected_logits(model: Any, batch: Any) -> list[torch.Tensor]:
    """Return the logits of transformers for the tokens of a batch of ours."""
    types = batch.types if batch.types is not None and model.config.type_vocab_size > 1 else None
    with torch.no_grad():
        out = model(input_ids=batch.tokens, attention_mask=batch.mask.long(), token_type_ids=types)
    return [out.start_logits, out.end_logits] if "start_logits" in out else [out.logits]


def _batch(classifier: SentenceClassifier) -> Any:
    examples = [Example(pair, ()) for pair in PAIRS]
    reading = Reading(classifier.tokenizers[SHARED], 64)
    rows = list(label_rows(examples, reading))
    return batch_of_rows(rows, reading.vocabulary).tokens


KINDS = ["SequenceClassification", "TokenClassification", "QuestionAnswering"]


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers_and_an_export_is_bit_equal(family: str, kind: str, tmp_path: Path) -> None:
    theirs = write_model(tmp_path / "model", family, kind)
    classifier = SentenceClassifier.load(tmp_path / "model")
    batch = _batch(classifier)
    expected = expected_logits(theirs, batch)
    with torch.no_grad():
        logits = classifier.model(batch)
    ours = [logits[..., 0], logits[..., 1]] if kind == "QuestionAnswering" else [logits]
    mask = batch.mask if logits.dim() == 3 else torch.ones(len(batch), dtype=torch.bool)
    for own, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(own[mask], other[mask], atol=1e-5, rtol=1e-5)
    if kind == "SequenceClassification":  # a pair is read as transformers reads it
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
        for place, pair in enumerate(PAIRS):
            read, length = tokenizer(*pair), batch.host_lengths[place]
            assert batch.tokens[place, :length].tolist() == read["input_ids"]
            assert family != "bert" or batch.types[place, :length].tolist() == read["token_type_ids"]

    model, tokenizers = load_classifier(tmp_path / "model")
    (tmp_path / "again").mkdir()
    model.write_for_transformers(tmp_path / "again", tokenizers[SHARED], model.text.max_length)
    first, second = Weights(tmp_path / "model"), Weights(tmp_path / "again")
    assert set(second) <= set(first) and all(torch.equal(first[name], second[name]) for name in second)
    loaded = type(theirs).from_pretrained(tmp_path / "again").eval()
    assert all(map(torch.equal, expected_logits(loaded, batch), expected))
    assert SentenceClassifier.load(tmp_path / "again").annotation == model.annotation


def test_predictions_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "bert", "SequenceClassification")
    together, alone = (SentenceClassifier.load(tmp_path / "model", batch_tokens=n) for n in (4096, 1))
    texts = [*PAIRS, "the sun", ""]
    labels, probabilities = together.predict(texts)
    again, one_by_one = alone.predict(texts)
    assert labels == again and set(labels) <= set(LABELS.values())
    np.testing.assert_allclose(probabilities, one_by_one, atol=1e-5)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)


def test_every_word_gets_a_tag(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "xlm-roberta", "TokenClassification")
    classifier = SentenceClassifier.load(tmp_path / "model")
    sentences = [["the", "red", "house"], [], ["\u200b", "sun"], ["house"] * 200]
    assert [len(tags) for tags in classifier.tag(sentences)] == [3, 0, 2, 200]
    with pytest.raises(UserError, match="predicts tags of words, not labels of texts"):
        classifier.predict(["a"])


def test_answers_are_parts_of_the_context(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "xlm-roberta", "QuestionAnswering")
    classifier = SentenceClassifier.load(tmp_path / "model")
    context = "  Die Katze schläft im Haus. 猫在家里睡觉。 แมวนอนหลับ e\u0301te\u0301 " * 9
    questions = [Question("where?", context), Question("who", "the cats")]
    for question, answer in zip(questions, classifier.answer(questions), strict=True):
        assert answer.text and question.context[answer.start : answer.start + len(answer.text)] == answer.text


def test_the_best_span_is_found_by_trying_all() -> None:
    generator = np.random.default_rng(1)
    for _ in range(50):
        row = Row([0] * 19, 4, [0, 0], 0, [(2 * place, 2 * place + 2) for place in range(14)])
        logits = generator.normal(size=(19, 2)).astype(np.float32)
        pairs = [(begin, end) for begin in range(14) for end in range(begin, 14)]
        scores = {(begin, end): float(logits[4 + begin, 0] + logits[4 + end, 1]) for begin, end in pairs}
        begin, end = max(scores, key=lambda pair: scores[pair])
        assert best_span(logits, row) == (2 * begin, 2 * end + 2, scores[begin, end])
    assert best_span(np.zeros((5, 2), dtype=np.float32), Row([0] * 5, 4, [0, 0], 0)) is None


def test_a_context_of_spaces_has_no_answer(tmp_path: Path) -> None:
    write_model(tmp_path, "xlm-roberta", "QuestionAnswering")
    ((text, fields),) = SentenceClassifier.load(tmp_path).predict_lines([("who?", " ")])
    assert text == "\t0" and json.dumps(fields, allow_nan=False) == '{"answer": "", "start": 0, "score": null}'


@pytest.mark.parametrize("changed", [{"id2label": {"0": "LABEL_0"}}, {"problem_type": "multi_label_classification"}])
def test_scores_are_no_labels(changed: dict[str, Any], tmp_path: Path) -> None:
    """A cross-encoder that scores pairs would give every text its one label, with a probability of 1."""
    write_model(tmp_path, "bert", "SequenceClassification")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | changed), encoding="utf-8")
    with pytest.raises(UserError, match="its labels are scores of their own .*; give a classifier that chooses one"):
        SentenceClassifier.load(tmp_path)


def test_two_labels_without_names(tmp_path: Path) -> None:
    write_model(tmp_path, "bert", "SequenceClassification", labels=None)
    assert "id2label" not in (tmp_path / "config.json").read_text(encoding="utf-8")
    assert SentenceClassifier.load(tmp_path).annotation.labels == ["LABEL_0", "LABEL_1"]

"""Rows of annotated text: what is read, where the labels stand, what is cut; and tables, which are built once."""

import itertools
from pathlib import Path

import pytest
import tokenizers

from xrep.data.batch import Vocabulary
from xrep.errors import UserError
from xrep.text.examples import Example
from xrep.text.tokenizer import Tokenizer
from xrep.text.train_tokenizer import train_tokenizer
from xrep.understanding.annotated import IGNORED, Reading, batch_of_rows, sequence
from xrep.understanding.classifier import Annotation
from xrep.understanding.formats import Answer, Question, TaggedSentence
from xrep.understanding.labels import ClassificationTask, label_rows
from xrep.understanding.questions import QuestionAnsweringTask, question_rows
from xrep.understanding.tags import tag_rows


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary.of(tokenizer)


def test_a_pair_is_one_sequence(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    one, two = tokenizer.encode(["der Koch", "the cook"])
    both = [Example(own, ("de",), 7) for own in (("der Koch",), ("der Koch", "the cook"))]
    (single, pair) = label_rows(both, Reading(tokenizer, 64))
    assert single.ids == [vocabulary.bos_id, *one, vocabulary.eos_id] and single.first == len(single.ids)
    assert pair.ids == [*single.ids, vocabulary.eos_id, *two, vocabulary.eos_id] and pair.first == len(single.ids) + 1
    assert single.labels == pair.labels == [7] and (single.example, pair.example) == (0, 1)
    batch = batch_of_rows([pair, single], vocabulary)
    assert batch.labels.tolist() == [[7], [7]] and batch.indices.tolist() == [1, 0]
    types = batch.tokens.types
    assert types is not None and types[0].sum() == len(two) + 1 and types[1].sum() == 0
    assert batch.rows(1, 2).tokens.tokens.shape == (1, len(single.ids))
    assert batch_of_rows([single], vocabulary).tokens.types is None


def test_the_longer_sentence_is_cut_first(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """As the library ``tokenizers`` cuts pairs."""
    extra = vocabulary.leading_count + vocabulary.pair_separators + 1
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, "x"))
    for first, second, room in itertools.product(range(12), range(12), range(1, 16)):
        library.enable_truncation(room)
        cut = library.encode(["x"] * first, ["x"] * second, is_pretokenized=True, add_special_tokens=False)
        ids, begin = sequence(range(first), range(second), Reading(tokenizer, room + extra))
        assert (begin - extra + 1, len(ids) - begin - 1) == (cut.type_ids.count(0), cut.type_ids.count(1))
    assert sequence([7, 7], [7, 7], Reading(tokenizer, extra))[1] == extra - 1


def test_words_carry_their_tags(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    words = ("der", "Bäckermeister", "singt", "\u200b") * 9
    rows = list(tag_rows([TaggedSentence(words, tuple(range(len(words))))], Reading(tokenizer, 20)))
    assert len(rows) > 1 and all(len(row.ids) == len(row.labels) <= 20 for row in rows)
    assert [tag for row in rows for tag in row.labels if tag != IGNORED] == list(range(len(words)))
    for row in rows:
        assert row.ids[0] == vocabulary.bos_id and row.ids[-1] == vocabulary.eos_id
        assert row.labels[0] == row.labels[-1] == IGNORED
    batch = batch_of_rows(rows, vocabulary)
    assert batch.labels.shape == batch.tokens.tokens.shape


def test_a_space_does_not_stand_for_a_word(tmp_path: Path) -> None:
    """SentencePiece encodes words of Chinese as a space and their characters, unless the space is left out."""
    sentences = ["他说中国的经济增长了", "中国说他的经济增长", "the economy grows", "he says that it grows"] * 8
    tokenizer = train_tokenizer(sentences, 32, tmp_path)
    words = ("中国", "经济", "的", "grows")
    pieces = tokenizer.encode([f" {word}" for word in words])
    spaces = [not tokenizer.decode(ids[:1]).strip() for ids in pieces]
    assert spaces[0]
    (row,) = tag_rows([TaggedSentence(words)], Reading(tokenizer, 64))
    assert row.ids[1:-1] == [token for ids, space in zip(pieces, spaces, strict=True) for token in ids[space:]]
    first = [ids[space] for ids, space in zip(pieces, spaces, strict=True)]
    assert [token for token, tag in zip(row.ids, row.labels, strict=True) if tag != IGNORED] == first


@pytest.mark.parametrize("stride", [9, 128])
def test_every_window_knows_its_answer(tokenizer: Tokenizer, stride: int) -> None:
    """Windows overlap, also where the stride is longer than they are."""
    context = "der Koch singt im Haus. " * 8 + "die Ärztin wohnt in Köln. " + "der Maler lacht laut. " * 8
    question = Question("wo?", context, (Answer("Köln", context.index("Köln")),))
    rows = list(question_rows([question], Reading(tokenizer, 40, {"stride": stride, "max_question": 5})))
    with_answer = [row for row in rows if row.labels != [0, 0]]
    assert len(rows) > 5 and with_answer and len(with_answer) < len(rows)
    covered = set[int]()
    for row in rows:
        assert len(row.ids) <= 40 and len(row.ids) == row.first + len(row.spans) + 1
        for start, end in row.spans:
            covered |= set(range(start, end))
    assert covered >= {place for place, character in enumerate(context) if not character.isspace()}
    for row in with_answer:
        begin, end = (row.spans[place - row.first] for place in row.labels)
        assert "Köln" in context[begin[0] : end[1]] and len(context[begin[0] : end[1]].strip()) <= len("Köln.")


def test_a_question_whose_answer_is_not_where_the_file_says_teaches_nothing(tokenizer: Tokenizer) -> None:
    """Its rows would teach that it has no answer. Of one without answers that is what they shall teach."""
    answers = (Answer("Köln", 3),), (), (Answer("Köln", 3), Answer("Köln", 10))
    questions = [Question("wo?", "der Koch. Köln", own) for own in answers]
    none, answered = QuestionAnsweringTask.rows(questions, Reading(tokenizer, 40))
    assert none.labels == [0, 0] and answered.labels != [0, 0]


def test_a_question_without_room_is_refused(tokenizer: Tokenizer) -> None:
    question = Question("wo ist der Bäcker und der Koch und die Katze?", "hier")
    with pytest.raises(UserError, match="no room for a context beside a question of"):
        list(question_rows([question], Reading(tokenizer, 12)))


def test_a_context_of_spaces_has_no_answer(tokenizer: Tokenizer) -> None:
    question = Question("wo?", "   ")
    (row,) = question_rows([question], Reading(tokenizer, 20, {"stride": 5, "max_question": 9}))
    assert row.labels == [0, 0] and not row.spans


def test_labels_in_a_file_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sentences of both sides and their labels are in three files, and read again when one of them has changed."""

    def built() -> tuple[list[str], int, bool]:
        task = ClassificationTask(ClassificationTask.Config(data=str(tmp_path), vocab_size=30), seed=1)
        said = "train: 40 examples, 40 sequences\n" in capsys.readouterr().out
        return Annotation.of(task.text).labels, task.examples, said

    for name in ("s1.train", "s2.train"):
        (tmp_path / name).write_text("".join(f"ein Satz mit der Zahl {n}\n" for n in range(40)), encoding="utf-8")
    (tmp_path / "labels.train").write_text("a\nb\n" * 20, encoding="utf-8")
    assert built() == (["a", "b"], 40, True) and built() == (["a", "b"], 40, False)
    (tmp_path / "labels.train").write_text("a\nb\nc\nd\n" * 10, encoding="utf-8")
    assert built() == (["a", "b", "c", "d"], 40, True)

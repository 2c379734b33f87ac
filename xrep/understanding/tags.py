"""Tags of words: the sequences that are read, the task, its objective and figures.

Entities in IOB2 tags are counted as by seqeval, in its strict mode and by default.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from xrep.data.build import chunks
from xrep.tasks.task import ExampleKind
from xrep.understanding.annotated import IGNORED, AnnotatedTask, AnnotationCriterion, Reading, Row, outcomes, sequence
from xrep.understanding.formats import TaggedSentence, is_tagged, read_tagged

Tags = Sequence[Sequence[str]]
Entity = tuple[int, int, str]
"""First word, word behind the last one, and type."""
TAGGED_WORDS = ExampleKind("tagged words", "`task` to tagging")


def tag_rows(sentences: Iterable[TaggedSentence], reading: Reading) -> Iterator[Row]:
    """Yield the rows of each sentence. The first subword of a word has its tag.

    Every word is encoded alone, as the beginning of a word. A subword that is nothing but the space before a word is
    left out: SentencePiece has it before nearly all words of Chinese, which are written without spaces, and it is the
    same for all of them. A sentence that is too long is divided between words, and a word without subwords is an
    unknown one, so that every word has a tag.
    """
    tokenizer, vocabulary = reading.tokenizer, reading.vocabulary
    is_space = functools.cache(lambda token: not tokenizer.decode([token]).strip())
    room = reading.max_length - vocabulary.special_count
    for chunk in chunks(enumerate(sentences)):
        unique = dict.fromkeys(word for _, sentence in chunk for word in sentence.words)
        encoded = tokenizer.encode([f" {word}" for word in unique])
        visible = [ids[1:] if len(ids) > 1 and is_space(ids[0]) else ids for ids in encoded]
        subwords = {word: (ids or [vocabulary.unk_id])[:room] for word, ids in zip(unique, visible, strict=True)}
        for number, sentence in chunk:
            words = [subwords[word] for word in sentence.words]
            for ids, tags in _divided(words, sentence.tags or [0] * len(words), room):
                whole, first = sequence(ids, None, reading)
                yield Row(whole, first, [*[IGNORED] * vocabulary.leading_count, *tags, IGNORED], number)


def _divided(words: list[list[int]], tags: Sequence[Any], room: int) -> Iterator[tuple[list[int], list[Any]]]:
    """Yield the subwords of as many words as there is room for, and the tag of each first subword."""
    ids, labels = list[int](), list[Any]()
    for word, tag in zip(words, tags, strict=True):
        if len(ids) + len(word) > room:
            yield ids, labels
            ids, labels = [], []
        ids += word
        labels += [tag, *[IGNORED] * (len(word) - 1)]
    yield ids, labels


def entities_of(tags: Sequence[str]) -> set[Entity]:
    """Return the entities of a sentence: B-X, followed by any number of I-X. Other I-X belong to no entity.

    >>> sorted(entities_of(["B-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-PER"]))
    [(0, 2, 'PER'), (4, 5, 'LOC')]
    """
    entities = list[Entity]()
    for word, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix == "B":
            entities.append((word, word + 1, kind))
        elif prefix == "I" and entities and entities[-1][1:] == (word, kind):
            entities[-1] = (entities[-1][0], word + 1, kind)
    return set(entities)


def lenient_entities(sentences: Tags) -> list[set[Entity]]:
    """Return the entities that end in each sentence, as seqeval finds them by default; XTREME scores all tags so.

    The first character of a tag is its prefix, and the rest is its type (without what precedes a hyphen; ``_`` if
    nothing is left). An entity is a sequence of words of one type. A word with B or S begins another one, S and E end
    it, and O is no entity. Unlike in IOB2, an I may begin an entity, and tags without a prefix, such as UPOS, are read
    in the same way: neighbours of one tag are one entity, SCONJ and SYM always stand alone, and the types of CCONJ and
    SCONJ are equal. seqeval reads all sentences as one sequence with an O behind each, and O has the type ``_`` like X.
    So words are counted across all sentences, and an X beside the end of a sentence is joined to what precedes it.

    >>> lenient_entities([["I-LOC", "I-LOC", "O"], ["NOUN", "NOUN", "VERB"]])
    [{(0, 2, 'LOC')}, {(4, 6, 'OUN'), (6, 7, 'ERB')}]
    """
    entities, begin, word, previous, previous_type = list[set[Entity]](), 0, 0, "O", ""
    for tags in sentences:
        ending = set[Entity]()
        for tag in (*tags, "O"):
            prefix, kind = tag[0], tag[1:].split("-", maxsplit=1)[-1] or "_"
            changes = kind != previous_type
            if previous in "ES" or (previous in "BI" and prefix in "BSO") or (previous not in "O." and changes):
                ending.add((begin, word, previous_type))
            if prefix in "BS" or (previous in "OES" and prefix in "EI") or (prefix not in "O." and changes):
                begin = word
            previous, previous_type, word = prefix, kind, word + 1
        entities.append(ending)
    return entities


def entity_counts(gold: Tags, predicted: Tags, *, lenient: bool = False) -> np.ndarray:
    """Return the numbers of right, of expected and of given entities of each sentence, int64 [3, N].

    Entities are those of ``lenient_entities`` or those of ``entities_of``; one is right if ends and type agree.
    """
    find = lenient_entities if lenient else lambda sentences: list(map(entities_of, sentences))
    pairs = zip(find(gold), find(predicted), strict=True)
    counts = [(len(expected & given), len(expected), len(given)) for expected, given in pairs]
    return np.array(counts, np.int64).reshape(-1, 3).T


def is_entity_scheme(labels: Sequence[str]) -> bool:
    """Return whether tags are those of entities: all are O, B-X or I-X, and there is a B-X."""
    return any(tag.startswith("B-") for tag in labels) and all(tag == "O" or tag[:2] in ("B-", "I-") for tag in labels)


class TaggingTask(AnnotatedTask):
    """Sentences whose words have tags: parts of speech (CoNLL-U), named entities (PAN-X, IOB2), own files.

    The files are described in ``xrep.understanding.tags``.
    """

    kind, gives = "tags", TAGGED_WORDS
    what, forms = "tagged words", ".conllu or .tsv"
    accepts, read, rows = staticmethod(is_tagged), staticmethod(read_tagged), staticmethod(tag_rows)
    labels, texts = attrgetter("tags"), staticmethod(lambda example: (example.text,))

    @staticmethod
    def figures(classifier: Any, examples: Sequence[Any]) -> dict[str, np.ndarray]:
        gold, tags = [example.tags for example in examples], classifier.tag([example.words for example in examples])
        right, expected, given = entity_counts(gold, tags, lenient=True)
        of_xtreme = {"xtreme_f1": outcomes(2 * right, expected + given)}
        if not is_entity_scheme(classifier.annotation.labels):
            agree = [sum(map(str.__eq__, *pair)) for pair in zip(gold, tags, strict=True)]
            return {"accuracy": outcomes(agree, list(map(len, gold))), **of_xtreme}
        right, expected, given = entity_counts(gold, tags)
        details = {"precision": outcomes(right, given), "recall": outcomes(right, expected)}
        return {"f1": outcomes(2 * right, expected + given), **details, **of_xtreme}


class Tagging(AnnotationCriterion):
    """Mean cross-entropy of the tags of words, each predicted from the first subword of its word.

    The metric ``accuracy`` is the percentage of words whose tag has the largest logit.

    Use:
        - Needs: words with tags (task tagging), and a pretrained encoder, which is trained, too.
        - Choose it: for parts of speech or named entities, also of languages without tagged text (XTREME's UD-POS and
            PAN-X).
        - Related: classification labels whole texts; span finds one part of a text, which a question asks for.

    Example:
        ```sh
        xrep-train panx/ --task tagging --criterion tagging --encoder minilm
        ```
    """

    reads, term = (TAGGED_WORDS,), "tagging"

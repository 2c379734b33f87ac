"""Baselines of the understanding tasks that know only words, beside which a classifier's figures are read.

- A label of a text or of a pair: logistic regression of scikit-learn on the counts of the words of each sentence, and
  of the words that both sentences share; its strength of regularisation is chosen on a tenth of the training text.
- An answer: the run of rare words that are not in the question, up to a punctuation mark, whose neighbourhood, as long
  as the question on each side, shares most with the question; a word counts the more the fewer contexts have it (the
  sliding window of MCTest, which SQuAD's paper compares with, on runs of words instead of constituents).

  pip install scikit-learn
  python benchmarks/lexical_baselines.py labels --train nli/train-en.tsv --test nli/test-en.tsv
  python benchmarks/lexical_baselines.py answers --test xquad/xquad.en.json xquad/xquad.de.json
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from harness import make_parser, write_json

from xrep.text.examples import Example
from xrep.text.find import discover
from xrep.understanding.formats import Question, read_questions
from xrep.understanding.labels import ClassificationTask, read_labelled
from xrep.understanding.questions import QuestionAnsweringTask, compare

WORD = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+")
MARK = re.compile(r"[.,;:!?()\[\]\"«»„“”，。；：！？、（）《》\n]")


def words_of(text: str) -> list[str]:
    """Return the words in lower case; a Chinese character is a word."""
    return WORD.findall(text.lower())


# -- labels ------------------------------------------------------------------------------------------------------------


def features(example: Example) -> dict[str, int]:
    """Return the counts of words by sentence, and of words that occur in all sentences of the example."""
    words = [Counter(words_of(sentence)) for sentence in example.sentences]
    counts = {f"{place} {word}": count for place, each in enumerate(words) for word, count in each.items()}
    if len(words) == 2:
        counts |= {f"both {word}": 1 for word in words[0].keys() & words[1].keys()}
    return counts


def label_baseline(train: Sequence[Example], test: Sequence[Example]) -> dict[str, float]:
    """Return the accuracy of the bag of words and of the most frequent label, in percent."""
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = DictVectorizer()
    inputs = vectorizer.fit_transform(map(features, train))
    labels = np.array([example.label for example in train])
    gold = np.array([example.label for example in test])
    held_out = np.arange(len(train)) % 10 == 9

    def fitted(strength: float, rows: np.ndarray) -> LogisticRegression:
        return LogisticRegression(C=strength, max_iter=1000).fit(inputs[rows], labels[rows])

    strengths = [10.0**power for power in range(-3, 2)]
    best = max(strengths, key=lambda c: fitted(c, ~held_out).score(inputs[held_out], labels[held_out]))
    accuracy = fitted(best, np.ones(len(train), bool)).score(vectorizer.transform(map(features, test)), gold)
    majority = Counter(labels.tolist()).most_common(1)[0][0]
    return {"bag of words": 100 * accuracy, "most frequent label": 100 * float(np.mean(gold == majority))}


# -- answers -----------------------------------------------------------------------------------------------------------


def answer_baseline(questions: Sequence[Question]) -> dict[str, float]:
    """Return exact match and F1 of the sliding window, in percent."""
    contexts = {question.context: words_of(question.context) for question in questions}
    frequency = Counter(word for words in contexts.values() for word in set(words))
    rarity = {word: math.log(1 + len(contexts) / count) for word, count in frequency.items()}
    frequent = {word for word, count in frequency.items() if count > len(contexts) / 30}
    exact = f1 = 0.0
    for question in questions:
        guess = _window_answer(question, rarity, frequent)
        gold = [answer.text for answer in question.answers]
        scores = compare(guess, gold, question.language)
        f1, exact = f1 + scores[0], exact + scores[1]
    return {"exact match": 100 * exact / len(questions), "f1": 100 * f1 / len(questions)}


def _window_answer(question: Question, rarity: dict[str, float], frequent: set[str]) -> str:
    """Return the run of words that are neither in the question nor frequent, whose neighbours are in the question."""
    asked = set(words_of(question.question))
    words = [(match.group().lower(), match.span()) for match in WORD.finditer(question.context)]
    gaps = ((one[1][1], two[1][0]) for one, two in pairwise(words))
    breaks = {place for place, gap in enumerate(gaps) if MARK.search(question.context, *gap)}
    runs, run = list[list[int]](), list[int]()
    for place, (word, _) in enumerate(words):
        if word not in asked and word not in frequent:
            run.append(place)
        if run and (run[-1] != place or place in breaks or place == len(words) - 1):
            runs.append(run)
            run = []
    weights = np.cumsum([0.0] + [rarity.get(word, 0.0) * (word in asked) for word, _ in words])
    reach = len(asked)
    near = [weights[min(run[-1] + 1 + reach, len(words))] - weights[max(0, run[0] - reach)] for run in runs]
    if not runs:
        return ""
    best = runs[int(np.argmax(near))]
    return question.context[words[best[0]][1][0] : words[best[-1]][1][1]]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("kind", choices=["labels", "answers"], help="what is predicted")
    parser.add_argument("--train", default=None, help="labelled text to learn from (labels only)")
    parser.add_argument("--test", nargs="+", required=True, help="files to measure on")
    parser.add_argument("--language", default="en", help="language of files that do not name it")
    options = parser.parse_args()
    if options.kind == "labels" and options.train is None:
        parser.error("--train is needed for labels")
    figures = {}
    for path in options.test:
        figures[path] = measured(options, path)
        print(path, *(f"{name} {value:.1f}" for name, value in figures[path].items()), sep="  ")
    write_json(options.json, figures)


def measured(options: argparse.Namespace, path: str) -> dict[str, float]:
    if options.kind == "answers":
        (file,) = discover(path, options.language, QuestionAnsweringTask)
        return answer_baseline(list(read_questions(file)))
    (train,) = discover(options.train, options.language, ClassificationTask)
    (test,) = discover(path, options.language, ClassificationTask)
    return label_baseline(list(read_labelled(train)), list(read_labelled(test)))


if __name__ == "__main__":
    main()

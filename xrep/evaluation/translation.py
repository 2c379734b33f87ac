"""Evaluate a translation model on a test set by BLEU and chrF, for each source language.

The source languages may differ from those of training. This measures zero-shot language transfer as in "On Learning
Universal Representations Across Languages" (table 6), where a model trained on German translates Czech and French.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from xrep.errors import UserError
from xrep.evaluation import text_table
from xrep.evaluation.multilingual import files_of_pattern
from xrep.evaluation.overlap import Overlap, find_overlap
from xrep.inference.generation import SearchOptions, Translator
from xrep.metrics.translation import MultiBleu, Score, Tokenizer, bleu, chrf, multi_bleu
from xrep.models.directory import fingerprint, open_checkpoint
from xrep.registry import import_plugin
from xrep.text.languages import canonical, name
from xrep.text.readers import read_lines


class System:
    """A translation model of xrep, loaded from ``path``.

    Args:
        plugins: Modules to import first.

    Raises:
        UserError: There is no translation model at ``path``.
    """

    def __init__(self, path: str | Path, plugins: Sequence[str] = ()) -> None:
        for plugin in plugins:
            import_plugin(plugin)
        self.path = str(path)
        self.translator = Translator.load(path)
        self.training_hashes = open_checkpoint(path).training_hashes

    def fingerprint(self) -> str:
        """Return a digest that changes when the weights or anything else that affects the output changes."""
        return fingerprint(self.translator.model, self.translator.text)

    def target(self, language: str | None) -> str:
        """Return the canonical code of a target language; None is enough if the model has only one.

        Raises:
            UserError: The model does not translate into the language, or ``language`` is None and it has several.
        """
        return self.translator.model.target_languages[self.translator.target(language)]


@dataclass(frozen=True)
class TranslationTest:
    """Sentences in one language and their reference translations."""

    languages: tuple[str, str]
    """Source and target language."""
    sources: list[str]
    references: list[str]
    files: tuple[Path, Path]

    @property
    def name(self) -> str:
        return "-".join(self.languages)


@dataclass(frozen=True)
class Result:
    """Scores of the translations of one test.

    Attributes:
        zero_shot: Whether the model was never trained to translate from this language.
        cut: Number of sentences that exceeded the maximum length of the model and were cut.
        multi_bleu: BLEU of the same words as ``bleu``, without smoothing.
    """

    test: TranslationTest
    bleu: Score
    chrf: Score
    multi_bleu: MultiBleu
    sentences: int
    zero_shot: bool
    cut: int
    overlap: Overlap


def read_tests(pattern: str, languages: str, target: str) -> list[TranslationTest]:
    """Read one test per source language, in the order in which the languages are named.

    Args:
        pattern: Path with ``{lang}`` in place of the language; line i of one file translates line i of the others.
        languages: ``all``, which means all but the target, or codes (``de`` or ``deu``) separated by commas.
        target: Canonical code of the target language.

    Raises:
        UserError: A language has no file, the target is among the source languages, or the files have different numbers
            of lines.
    """
    found = files_of_pattern(pattern)
    wanted = [canonical(code.strip()) for code in languages.split(",") if code.strip()]
    wanted = list(dict.fromkeys(wanted)) if languages != "all" else [code for code in found if code != target]
    there = f"it has {' '.join(found)}" if found else "{lang} stands for the language"
    if missing := [language for language in [*wanted, target] if language not in found]:
        raise UserError(f"no file of {' '.join(missing)}", path=pattern, cure=there)
    if not wanted or target in wanted:
        problem = f"{target} is the target language" if wanted else "no source language"
        raise UserError(problem, path=pattern, cure=f"name others with --langs; {there}")
    references = _lines(found[target])
    tests = []
    for language in wanted:
        sources, files = _lines(found[language]), (found[language], found[target])
        if len(sources) != len(references):
            sizes = sorted(zip((len(sources), len(references)), files, strict=True))
            (fewer, short), (more, long) = sizes
            problem = f"{fewer} lines, but {long.name} has {more}"
            cure = "line i of one must translate line i of the other"
            raise UserError(problem, path=short, line=fewer + 1, cure=cure)
        tests.append(TranslationTest((language, target), sources, references, files))
    return tests


def _lines(path: Path) -> list[str]:
    return [line for _, line in read_lines(path)]


def evaluate(
    system: System,
    tests: Sequence[TranslationTest],
    options: SearchOptions,
    *,
    tokenize: Tokenizer = "13a",
    max_tokens: int = 4096,
    drop_overlap: bool = False,
    keep: Callable[[TranslationTest, list[str]], None] | None = None,
    show_progress: bool = False,
) -> list[Result]:
    """Translate every test and score it.

    Args:
        tokenize: Method by which BLEU splits text into words.
        max_tokens: Size of a batch, see ``Translator.translate``.
        drop_overlap: Whether to leave out the sentences that were in the training text.
        keep: Function that is called with each test and its translations, in the order of the lines.

    Raises:
        UserError: ``drop_overlap`` is set, but there are no training hashes or no sentence is left.
    """
    trained, results = system.translator.text.source_languages, []
    progress = tqdm(tests, disable=not show_progress, leave=False, unit=" languages")
    for test in progress:
        progress.set_postfix_str(test.name)
        rows, overlap = find_overlap(system.training_hashes, test.sources, test.references, drop=drop_overlap)
        if not rows.any():
            problem = f"no sentence of {test.name} is left without those trained on"
            raise UserError(problem, cure="measure without --drop-overlap")
        sources, references = ([side[row] for row in np.flatnonzero(rows)] for side in (test.sources, test.references))
        read = system.translator.read(sources)
        found = system.translator.translate(read, test.languages[1], options, max_tokens)
        hypotheses = [several[0].text for several in found]
        if keep is not None:
            keep(test, hypotheses)
        results.append(
            Result(
                test=test,
                bleu=bleu(hypotheses, references, tokenize),
                chrf=chrf(hypotheses, references),
                multi_bleu=multi_bleu(hypotheses, references, tokenize),
                sentences=len(hypotheses),
                zero_shot=test.languages[0] not in trained,
                cut=len(read.cut),
                overlap=overlap,
            )
        )
    return results


def means(results: Sequence[Result]) -> dict[str, float]:
    """Return the means of BLEU and of chrF over the source languages."""
    return {score: float(np.mean([getattr(result, score).value for result in results])) for score in ("bleu", "chrf")}


def overlap_of(results: Sequence[Result]) -> Overlap:
    """Return the overlap of all tests together."""
    return sum((result.overlap for result in results[1:]), results[0].overlap)


def table(results: Sequence[Result], tokenized: bool = False) -> str:
    """Return one line per source language, the mean, the signatures of the scores and the overlap line.

    Args:
        tokenized: Whether the text is already tokenised. If so, the lines that multi-bleu.perl would print are added.
    """
    rows = [
        [_shown(result), str(result.sentences), f"{result.bleu.value:.2f}", f"{result.chrf.value:.2f}"]
        for result in results
    ]
    mean, first = means(results), results[0]
    total = [
        f"mean of {len(rows)}",
        str(sum(r.sentences for r in results)),
        f"{mean['bleu']:.2f}",
        f"{mean['chrf']:.2f}",
    ]
    target = first.test.languages[1]
    parts = [
        f"into {name(target)} ({target})",
        text_table.table(["source", "sentences", first.bleu.name, first.chrf.name], [*rows, [], total]),
        *(f"{score.name}|{score.signature}" for score in (first.bleu, first.chrf)),
    ]
    if tokenized:
        parts += [f"multi-bleu {result.test.name}: {result.multi_bleu}" for result in results]
    if any(result.cut for result in results):
        cut = ", ".join(f"{result.cut} of {result.test.languages[0]}" for result in results if result.cut)
        parts.append(f"longer than the model reads, and cut: {cut}")
    return "\n".join([*parts, overlap_of(results).line])


def _shown(result: Result) -> str:
    language = result.test.languages[0]
    return f"{name(language)} ({language}){', zero-shot' if result.zero_shot else ''}"


def values(results: Sequence[Result]) -> dict[str, Any]:
    """Return the results for JSON.

    ``mean`` contains the means of ``bleu`` and ``chrf``. ``languages`` maps each source language to ``bleu``, ``chrf``,
    ``signatures``, ``multi_bleu``, ``sentences``, ``zero_shot``, ``cut`` and ``overlap``.
    """
    languages = {
        result.test.languages[0]: {
            "bleu": result.bleu.value,
            "chrf": result.chrf.value,
            "signatures": {score.name: score.signature for score in (result.bleu, result.chrf)},
            "multi_bleu": {**asdict(result.multi_bleu), "text": str(result.multi_bleu)},
            "sentences": result.sentences,
            "zero_shot": result.zero_shot,
            "cut": result.cut,
            "overlap": result.overlap.as_dict(),
        }
        for result in results
    }
    return {"mean": means(results), "languages": languages}


def headline(results: Sequence[Result]) -> dict[str, float]:
    """Return BLEU of each source language and, if there are several, the mean; of more than four only the mean."""
    each = {f"BLEU {result.test.name}": result.bleu.value for result in results}
    mean = {f"BLEU, mean of {len(results)}": means(results)["bleu"]}
    return mean if len(each) > 4 else each if len(each) == 1 else each | mean

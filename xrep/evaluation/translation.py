"""Translations of a test set against its references, for each source language: BLEU and chrF.

Source languages may be others than those of training: zero-shot language transfer as in "On Learning Universal
Representations Across Languages" (table 6), where a model that learnt from German translates Czech and French.
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
from xrep.generation import SearchOptions, Translator
from xrep.metrics.translation import MultiBleu, Score, Tokenizer, bleu, chrf, multi_bleu
from xrep.models.directory import fingerprint, open_checkpoint
from xrep.registry import import_plugin
from xrep.text.languages import canonical, name
from xrep.text.readers import read_lines


class System:
    """A translation model of xrep, at ``path``.

    Args:
        plugins: modules to import first.

    Raises:
        UserError: no translation model there.
    """

    def __init__(self, path: str | Path, plugins: Sequence[str] = ()) -> None:
        for plugin in plugins:
            import_plugin(plugin)
        self.path = str(path)
        self.translator = Translator.load(path)
        self.training_hashes = open_checkpoint(path).training_hashes

    def fingerprint(self) -> str:
        """Changes with what it computes."""
        return fingerprint(self.translator.model, self.translator.text)

    def target(self, language: str | None) -> str:
        """The canonical code of a target language, which need not be named where the model has one.

        Raises:
            UserError: the model does not translate into it, or has several.
        """
        return self.translator.model.target_languages[self.translator.target(language)]


@dataclass(frozen=True)
class TranslationTest:
    """Sentences of one language and their translations."""

    languages: tuple[str, str]
    """Source and target."""
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
        zero_shot: whether the model has not been trained to translate from this language.
        cut: how many sentences were longer than the model reads.
        multi_bleu: of the same words as ``bleu``, without smoothing.
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
    """A test of each source language, in the order in which they are named.

    Args:
        pattern: path with ``{lang}`` in place of the language; line i of one file translates line i of the others.
        languages: ``all`` but the target, or codes (``de`` or ``deu``) separated by commas.

    Raises:
        UserError: no file of a language, files of different numbers of lines.
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
        tokenize: how BLEU cuts text into words.
        max_tokens: size of a batch, see ``Translator.translate``.
        drop_overlap: leave out what was in the training text.
        keep: called with the translations of a test, in the order of its lines.

    Raises:
        UserError: ``drop_overlap`` without training hashes or with nothing left.
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
    """Of BLEU and chrF over the source languages."""
    return {score: float(np.mean([getattr(result, score).value for result in results])) for score in ("bleu", "chrf")}


def overlap_of(results: Sequence[Result]) -> Overlap:
    """Of all tests together."""
    return sum((result.overlap for result in results[1:]), results[0].overlap)


def table(results: Sequence[Result], tokenized: bool = False) -> str:
    """One line per source language, the mean, the signatures of the scores and the overlap line.

    Args:
        tokenized: the text is tokenised already: add the lines of multi-bleu.perl.
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
    """For JSON: ``mean`` of ``bleu`` and ``chrf``; ``languages``: source -> both, ``signatures``, ``multi_bleu``,
    ``sentences``, ``zero_shot``, ``cut`` and ``overlap``."""
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
    """BLEU of each source language where they are few, and the mean."""
    each = {f"BLEU {result.test.name}": result.bleu.value for result in results}
    mean = {f"BLEU, mean of {len(results)}": means(results)["bleu"]}
    return mean if len(each) > 4 else each if len(each) == 1 else each | mean

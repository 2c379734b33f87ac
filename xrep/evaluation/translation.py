"""Evaluate a translation model on a test set by BLEU and chrF, for each source language.

The source languages may differ from those of training. This measures zero-shot language transfer as in "On Learning
Universal Representations Across Languages" (table 6), where a model trained on German translates Czech and French.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.errors import ConfigError, UserError
from xrep.evaluation.evaluation import Evaluation, OverlapOption, progress
from xrep.evaluation.figures import Figures, table
from xrep.evaluation.multilingual import files_of_pattern
from xrep.evaluation.overlap import Overlap, chosen, find_overlap, total
from xrep.evaluation.reading import check_parallel, choose_languages, read_sentences
from xrep.files import check_output, write_aside
from xrep.inference.generation.options import SearchOptions
from xrep.inference.generation.translator import Translator
from xrep.metrics.translation import bleu, chrf, multi_bleu
from xrep.models.directory import fingerprint, open_checkpoint
from xrep.text.languages import name


class System:
    """A translation model of xrep, loaded from ``path``.

    Raises:
        UserError: There is no translation model at ``path``.
    """

    def __init__(self, path: str | Path) -> None:
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


class TranslationQuality(Evaluation):
    """Translate a test set from each of its languages into one: BLEU and chrF.

    The scores are those of sacrebleu, with their signatures.

      xrep-eval translation --path nmt/best --data 'multi30k/test.{lang}' --langs de
      xrep-eval translation --path nmt/best --data 'multi30k/test.{lang}' --langs de,cs,fr --target-lang en
      xrep-eval translation --path nmt/best --data 'iwslt14/test.tok.{lang}' --langs de --tokenize none

    --path is a translation model. --data names files whose line i translates line i of the others, with {lang} in place
    of the language (.gz and .xz, too). A language that the model was not trained to translate from is marked zero-shot:
    it is transfer from the others.

    Papers that give tokenised BLEU tokenise both sides by Moses and score by its multi-bleu.perl. With text that is
    tokenised so, --tokenize none prints the script's line as well.
    """

    @dataclass(kw_only=True)
    class Config(OverlapOption):
        data: str
        """Path of the files, with {lang} in place of the language."""
        langs: str = "all"
        """Languages to translate from (de,fr or deu,fra), or all that are there."""
        target_lang: str | None = None
        """Language to translate into, if the model has several."""
        beam: int = 5
        """Beam size: the number of hypotheses that are kept at each step. 1: greedy search."""
        lenpen: float = 1.0
        """Length penalty: exponent of the length that divides scores. Above 1, longer translations win."""
        lenpen_form: Literal["fairseq", "gnmt"] = "fairseq"
        """Form of the length penalty: length^A, or ((5 + length) / 6)^A as in the GNMT paper."""
        max_length_a: float = 0.0
        """The value a in the maximum length of a translation, a · x + b subwords for a source of x subwords. The
        length that the model was trained on is a limit as well."""
        max_length_b: int = 200
        """The value b in the maximum length of a translation."""
        max_tokens: int = 4096
        """Number of subwords, times the beam size, that are translated at once."""
        tokenize: Literal["13a", "none", "intl", "char", "zh"] = "13a"
        """Method by which BLEU splits text into words. none: the text is tokenised already."""
        save_translations: str | None = None
        """Folder to which the translations of each language are written, as de-en.en."""

    config: Config

    def read(self) -> None:
        config = self.config
        self.search = SearchOptions(
            beam=config.beam,
            length_penalty=config.lenpen,
            length_penalty_form=config.lenpen_form,
            max_length_a=config.max_length_a,
            max_length_b=config.max_length_b,
        )
        problems = self.search.problems()
        if config.max_tokens < 1:
            problems.append(f"max_tokens must be at least 1, not {config.max_tokens}")
        if problems:
            raise ConfigError([f"--{p.replace('length_penalty', 'lenpen').replace('_', '-', 2)}" for p in problems])
        if config.save_translations is not None:
            check_output(config.save_translations, folder=True)
        self.found = files_of_pattern(config.data)
        self.languages = choose_languages(config.langs, sorted(self.found), "file of", config.data)

    def open(self, path: str) -> System:
        return System(path)

    def measure(self, encoder: System) -> Figures:
        target = encoder.target(self.config.target_lang)
        tests = self._read_tests(target)
        found = [self._translate(encoder, test) for test in progress(tests, "languages")]
        values = {test.languages[0]: own for test, (own, _) in zip(tests, found, strict=True)}
        means = {score: float(np.mean([own[score] for own in values.values()])) for score in ("bleu", "chrf")}
        each = {f"BLEU {test.name}": own["bleu"] for test, (own, _) in zip(tests, found, strict=True)}
        mean = {f"BLEU, mean of {len(tests)}": means["bleu"]}
        names = ("beam", "lenpen", "lenpen_form", "max_length_a", "max_length_b", "tokenize")
        return Figures(
            text=_text(values, means, target, is_tokenized=self.config.tokenize == "none"),
            values={"mean": means, "languages": values},
            headline=mean if len(tests) > 4 else each if len(tests) == 1 else each | mean,
            settings={
                "languages": [test.name for test in tests],
                **{name: getattr(self.config, name) for name in names},
            },
            files=list(dict.fromkeys(file for test in tests for file in test.files)),
            overlap=total(overlap for _, overlap in found),
        )

    def _read_tests(self, target: str) -> list[TranslationTest]:
        """Read one test per source language, in the order in which the languages are named."""
        wanted = self.languages
        if self.config.langs == "all":
            wanted = [language for language in wanted if language != target]
        cure = f"the data has {','.join(sorted(self.found))}"
        if target not in self.found:
            raise UserError(f"no file of {target}", path=self.config.data, cure=cure)
        if not wanted or target in wanted:
            problem = f"{target} is the target language" if wanted else "no source language"
            raise UserError(problem, path=self.config.data, cure=f"name others with `langs`; {cure}")
        references, tests = read_sentences(self.found[target]), []
        for language in wanted:
            sources, files = read_sentences(self.found[language]), (self.found[language], self.found[target])
            check_parallel((sources, references), files)
            tests.append(TranslationTest((language, target), sources, references, files))
        return tests

    def _translate(self, system: System, test: TranslationTest) -> tuple[dict[str, Any], Overlap]:
        """Translate a test and return the values for JSON.

        ``multi_bleu`` is BLEU of the same words as ``bleu``, without smoothing. ``zero_shot`` says whether the model
        was never trained to translate from this language, and ``cut`` how many sentences exceeded its maximum length.
        """
        config, folder, columns = self.config, self.config.save_translations, (test.sources, test.references)
        rows, overlap = find_overlap(system.training_hashes, *columns, drop=config.drop_overlap, name=test.name)
        sources, references = chosen(rows, *columns)
        read = system.translator.read(sources)
        found = system.translator.translate(read, test.languages[1], self.search, config.max_tokens)
        hypotheses = [several[0].text for several in found]
        if folder is not None:
            Path(folder).mkdir(exist_ok=True)
            with write_aside(Path(folder) / f"{test.name}.{test.languages[1]}") as aside:
                aside.write_text("".join(f"{line}\n" for line in hypotheses), encoding="utf-8")
        scores = bleu(hypotheses, references, config.tokenize), chrf(hypotheses, references)
        multi = multi_bleu(hypotheses, references, config.tokenize)
        return {
            "bleu": scores[0].value,
            "chrf": scores[1].value,
            "signatures": {score.name: score.signature for score in scores},
            "multi_bleu": {**asdict(multi), "text": str(multi)},
            "sentences": len(hypotheses),
            "zero_shot": test.languages[0] not in system.translator.text.source_languages,
            "cut": len(read.cut),
            "overlap": overlap.as_dict(),
        }, overlap


def _text(values: Mapping[str, dict[str, Any]], means: Mapping[str, float], target: str, is_tokenized: bool) -> str:
    """Return one line per source language, the mean and the signatures of the scores.

    Args:
        is_tokenized: Whether the text is already tokenised. If so, the lines that multi-bleu.perl would print are
            added.
    """
    rows = []
    for language, own in values.items():
        shown = f"{name(language)} ({language}){', zero-shot' if own['zero_shot'] else ''}"
        rows.append([shown, str(own["sentences"]), f"{own['bleu']:.2f}", f"{own['chrf']:.2f}"])
    sentences = str(sum(own["sentences"] for own in values.values()))
    rows += [[], [f"mean of {len(values)}", sentences, f"{means['bleu']:.2f}", f"{means['chrf']:.2f}"]]
    signatures = next(iter(values.values()))["signatures"]
    parts = [
        f"into {name(target)} ({target})",
        table(["source", "sentences", *signatures], rows),
        *(f"{score}|{signature}" for score, signature in signatures.items()),
    ]
    if is_tokenized:
        parts += [f"multi-bleu {language}-{target}: {own['multi_bleu']['text']}" for language, own in values.items()]
    if cut := [f"{own['cut']} of {language}" for language, own in values.items() if own["cut"]]:
        parts.append(f"longer than the model reads, and cut: {', '.join(cut)}")
    return "\n".join(parts)

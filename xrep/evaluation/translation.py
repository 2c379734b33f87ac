"""Evaluate a translation model by BLEU and chrF, also from languages on which it was not trained, as in "On Learning
Universal Representations Across Languages" (table 6), where a model trained on German translates Czech and French."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from xrep.config.fields import Count, check_options
from xrep.errors import UserError
from xrep.evaluation.evaluation import Examples, OverlapOption, PrecisionOption, Result, Score, TableEvaluation
from xrep.evaluation.reading import choose_languages, files_of_pattern, only_files, read_columns
from xrep.files import check_output, write_aside
from xrep.inference.generation.decoding import DecodingOptions
from xrep.metrics.translation import BleuTokenizer, bleu, chrf, multi_bleu, resampled_bleu, usual_tokenizer
from xrep.text.languages import name

if TYPE_CHECKING:
    from xrep.inference.generation.translator import Translator


class TranslationQuality(TableEvaluation):
    """Translate a test set from each of its languages into one: BLEU and chrF.

    The scores are those of sacrebleu, with their signatures.

      xrep-eval translation --path nmt/best --data 'multi30k/test.{lang}' --langs de
      xrep-eval translation --path nmt/best --data 'multi30k/test.{lang}' --langs de,cs,fr --target-lang en
      xrep-eval translation --path nmt/best --data 'iwslt14/test.tok.{lang}' --langs de --tokenize none

    --path is a translation model. --data names files whose line i translates line i of the others, with {lang} in place
    of the language, compressed or not. A language that the model was not trained to translate from is marked zero-shot:
    it is transfer from the others.

    Papers that give tokenised BLEU tokenise both sides by Moses and score by its multi-bleu.perl. With text that is
    tokenised so, --tokenize none prints that BLEU as well, in the form in which sacrebleu writes it.
    """

    @dataclass(kw_only=True)
    class Config(PrecisionOption, OverlapOption):
        data: str
        """Path of the files, with {lang} in place of the language."""
        langs: str = "all"
        """Languages to translate from (de,fr or deu,fra), or all that are there."""
        target_lang: str | None = None
        """Language to translate into, if the model has several."""
        beam: Count = 5
        """Beam size: the number of hypotheses that are kept at each step. 1: greedy search."""
        lenpen: float = 1.0
        """Length penalty: exponent of the length that divides scores. Above 1, longer translations win."""
        lenpen_form: Literal["fairseq", "gnmt"] = "fairseq"
        """Form of the length penalty: length^A, or ((5 + length) / 6)^A as in the GNMT paper."""
        max_length_a: float = 2.0
        """The value a in the maximum length of a translation, a · x + b subwords for a source of x subwords. The
        length that the model was trained on is a limit as well."""
        max_length_b: int = 20
        """The value b in the maximum length of a translation."""
        max_tokens: Count = 4096
        """Number of subwords, times the beam size, that are translated at once."""
        tokenize: Literal["auto", BleuTokenizer] = "auto"
        """Method by which BLEU splits text into words. auto: zh for Chinese, char for other languages without spaces
        between words, 13a for the rest; none: the text is tokenised already."""
        save_translations: str | None = None
        """Folder to which the translations of each language are written, as de-en.en."""

    config: Config
    heading, unit, labels = "source", "sentences", {"bleu": "BLEU", "chrf": "chrF2"}
    unrecorded = TableEvaluation.unrecorded | {"max_tokens", "save_translations"}

    def read(self) -> list[Examples]:
        """Check the options, and return tables that name the files alone. The target language depends on the model, so
        ``check`` reads the text."""
        config = self.config
        penalty = {"length_penalty": config.lenpen, "length_penalty_form": config.lenpen_form}
        lengths = {"max_length_a": config.max_length_a, "max_length_b": config.max_length_b}
        self.search = DecodingOptions(beam=config.beam, **penalty, **lengths)
        check_options(self.search)
        if config.save_translations is not None:
            check_output(config.save_translations, folder=True)
        self.files = files_of_pattern(config.data)
        self.languages = choose_languages(config.langs, sorted(self.files), "file of", config.data)
        named = ((language, file) for language, files in self.files.items() for file in files)
        return [Examples(language, (language,), ([],), files=(file,)) for language, file in named]

    def open(self, path: str) -> Translator:
        from xrep.inference.generation.translator import Translator

        return Translator.load(path, dtype=self.config.precision)

    def check(self, model: Translator) -> None:
        """Read a table for each source language."""
        target = model.model.target_languages[model.target(self.config.target_lang)]
        sources = [language for language in self.languages if language != target]
        if target not in self.files or not sources:
            problem = f"no text in {target}, the target language, and in another language"
            raise UserError(problem, path=self.config.data, cure=f"the data has {','.join(sorted(self.files))}")
        self.tables = []
        for language in sources:
            files = only_files(self.files, [language, target])
            self.tables.append(read_columns(f"{language}-{target}", files))
            written = self._written(self.tables[-1])
            if written and written.resolve() in [file.resolve() for file in files.values()]:
                raise UserError("`save_translations` would replace this file", path=written, cure="name another folder")
        self.seen, tokenize = model.text.source_languages, self.config.tokenize
        self.tokenize: BleuTokenizer = usual_tokenizer(target) if tokenize == "auto" else tokenize

    def _written(self, examples: Examples) -> Path | None:
        """Return the file to which the translations of a table are written, if they are."""
        folder = self.config.save_translations
        return None if folder is None else Path(folder, f"{examples.name}.{examples.languages[1]}")

    def score(self, model: Translator, examples: Examples) -> Score:
        """Translate a test. ``multi_bleu`` is BLEU of the same words as ``bleu``, without smoothing, ``zero_shot`` says
        that the model was not trained to translate from this language, ``cut`` how many sentences were too long."""
        config, (sources, references), (language, target) = self.config, examples.columns, examples.languages
        read = model.read(sources)
        hypotheses = [best.text for best, *_ in model.translate(read, target, self.search, config.max_tokens)]
        if written := self._written(examples):
            written.parent.mkdir(exist_ok=True)
            with write_aside(written) as aside:
                aside.write_text("".join(f"{line}\n" for line in hypotheses), encoding="utf-8")
        scores = {"bleu": bleu(hypotheses, references, self.tokenize), "chrf": chrf(hypotheses, references)}
        multi = multi_bleu(hypotheses, references, self.tokenize)
        return Score(
            {name: score.score for name, (score, _) in scores.items()},
            lambda _: {"bleu": resampled_bleu(hypotheses, references, self.tokenize)},  # every test has the same seed
            {
                "signatures": {score.name: signature for score, signature in scores.values()},
                "multi_bleu": {"value": multi.score, "text": str(multi)},
                "zero_shot": language not in self.seen,
                "cut": len(read.cut),
            },
        )

    def quoted(self, results: Mapping[str, Result]) -> dict[str, tuple[str, list[str]]]:
        each = {f"BLEU {name}": ("bleu", [name]) for name in results}
        mean = {f"BLEU, mean of {len(results)}": ("bleu", list(results))}
        return mean if len(results) > 4 else each if len(results) == 1 else each | mean

    def shown(self, examples: Examples) -> str:
        language = examples.languages[0]
        return f"{name(language)} ({language}){'' if language in self.seen else ', zero-shot'}"

    def text(self, results: Mapping[str, Result], averages: Mapping[str, Mapping[str, float]]) -> str:
        """Return the table, the signatures and, for tokenised text, the BLEU that multi-bleu.perl computes."""
        first, *_ = measured = list(results.values())
        target, signatures = first.examples.languages[1], first.score.details["signatures"]
        lines = [f"into {name(target)} ({target})", super().text(results, averages)]
        lines += [f"{score}|{signature}" for score, signature in signatures.items()]
        if self.config.tokenize == "none":
            lines += [
                f"multi-bleu {name}: {each.score.details['multi_bleu']['text']}" for name, each in results.items()
            ]
        cuts = {result.examples.languages[0]: result.score.details["cut"] for result in measured}
        if cut := ", ".join(f"{count} of {language}" for language, count in cuts.items() if count):
            lines.append(f"longer than the model reads, and cut: {cut}")
        return "\n".join(lines)

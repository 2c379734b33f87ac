"""Evaluate a translation model on a test set by BLEU and chrF, for each source language.

The source languages may differ from those of training. This measures zero-shot language transfer as in "On Learning
Universal Representations Across Languages" (table 6), where a model trained on German translates Czech and French.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.errors import ConfigError, UserError
from xrep.evaluation.evaluation import Evaluation, Figures, OverlapOption, PrecisionOption, progress, table
from xrep.evaluation.multilingual import files_of_pattern
from xrep.evaluation.overlap import Overlap, chosen, find_overlap, total
from xrep.evaluation.reading import check_parallel, choose_languages, read_sentences
from xrep.files import check_output, write_aside
from xrep.inference.generation.options import SearchOptions
from xrep.inference.generation.translator import Translator
from xrep.metrics.translation import bleu, chrf, multi_bleu, resampled_bleu
from xrep.models.directory import fingerprint, open_checkpoint
from xrep.precision import Precision
from xrep.text.languages import name


class System:
    """A translation model of xrep, loaded from ``path``."""

    def __init__(self, path: str | Path, precision: Precision) -> None:
        self.path = str(path)
        self.translator = Translator.load(path, dtype=precision)
        self.training_hashes = open_checkpoint(path).training_hashes

    def fingerprint(self) -> str:
        """Return a digest that changes when the weights or anything else that affects the output changes."""
        return fingerprint(self.translator.model, self.translator.text)

    def target(self, language: str | None) -> str:
        """Return the canonical code of a target language; None is enough if the model has only one."""
        return self.translator.model.target_languages[self.translator.target(language)]


class TranslationQuality(Evaluation):
    """Translate a test set from each of its languages into one: BLEU and chrF.

    The scores are those of sacrebleu, with their signatures.

      xrep-eval translation --path nmt/best --data 'multi30k/test.{lang}' --langs de
      xrep-eval translation --path nmt/best --data 'multi30k/test.{lang}' --langs de,cs,fr --target-lang en
      xrep-eval translation --path nmt/best --data 'iwslt14/test.tok.{lang}' --langs de --tokenize none

    --path is a translation model. --data names files whose line i translates line i of the others, with {lang} in place
    of the language, compressed or not. A language that the model was not trained to translate from is marked zero-shot:
    it is transfer from the others.

    Papers that give tokenised BLEU tokenise both sides by Moses and score by its multi-bleu.perl. With text that is
    tokenised so, --tokenize none prints the script's line as well.
    """

    @dataclass(kw_only=True)
    class Config(PrecisionOption, OverlapOption):
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
            raise ConfigError([re.sub(r"^\w+", r"`\g<0>`", p.replace("length_penalty", "lenpen")) for p in problems])
        if config.save_translations is not None:
            check_output(config.save_translations, folder=True)
        self.files = files_of_pattern(config.data)
        self.languages = choose_languages(config.langs, sorted(self.files), "file of", config.data)

    def open(self, path: str) -> System:
        return System(path, self.config.precision)

    def measure(self, encoder: System) -> Figures:
        target = encoder.target(self.config.target_lang)
        sources, values, overlaps, resamples = self._read_sides(target), {}, [], {}
        references = sources.pop(target)
        for language in progress(list(sources), "languages"):
            sides = sources[language], references
            values[language], overlap, drawn = self._translate(encoder, (language, target), *sides)
            overlaps.append(overlap)
            resamples[f"BLEU {language}-{target}"] = drawn
        names = [f"{language}-{target}" for language in sources]
        means = {score: float(np.mean([own[score] for own in values.values()])) for score in ("bleu", "chrf")}
        each = {f"BLEU {name}": own["bleu"] for name, own in zip(names, values.values(), strict=True)}
        mean = {f"BLEU, mean of {len(names)}": means["bleu"]}
        headline = mean if len(names) > 4 else each if len(names) == 1 else each | mean
        resamples |= dict.fromkeys(mean, np.mean(list(resamples.values()), axis=0))
        options = ("beam", "lenpen", "lenpen_form", "max_length_a", "max_length_b", "tokenize")
        return Figures(
            text=_text(values, means, target, is_tokenized=self.config.tokenize == "none"),
            values={"mean": means, "languages": values},
            headline=headline,
            resamples={label: resamples[label] for label in headline},
            settings={"languages": names, **{option: getattr(self.config, option) for option in options}},
            files=[self.files[language] for language in sorted((*sources, target))],
            overlap=total(overlaps),
        )

    def _read_sides(self, target: str) -> dict[str, list[str]]:
        """Return the sentences of the source languages, in the order in which these are named, and of the target."""
        wanted = self.languages
        if self.config.langs == "all":
            wanted = [language for language in wanted if language != target]
        cure = f"the data has {','.join(sorted(self.files))}"
        if target not in self.files:
            raise UserError(f"no file of {target}", path=self.config.data, cure=cure)
        if not wanted or target in wanted:
            problem = f"{target} is the target language" if wanted else "no source language"
            raise UserError(problem, path=self.config.data, cure=f"name others with `langs`; {cure}")
        texts = {language: read_sentences(self.files[language]) for language in (*wanted, target)}
        for language in wanted:
            check_parallel((texts[language], texts[target]), (self.files[language], self.files[target]))
        return texts

    def _translate(
        self, system: System, languages: tuple[str, str], sources: Sequence[str], references: Sequence[str]
    ) -> tuple[dict[str, Any], Overlap, np.ndarray]:
        """Translate a test and return the values for JSON, the overlap and resampled BLEU.

        ``multi_bleu`` is BLEU of the same words as ``bleu``, without smoothing. ``zero_shot`` says whether the model
        was never trained to translate from this language, and ``cut`` how many sentences exceeded its maximum length.
        """
        config, folder, name = self.config, self.config.save_translations, "-".join(languages)
        columns = sources, references
        rows, overlap = find_overlap(system.training_hashes, *columns, drop=config.drop_overlap, name=name)
        sources, references = chosen(rows, *columns)
        read = system.translator.read(sources)
        translations = system.translator.translate(read, languages[1], self.search, config.max_tokens)
        hypotheses = [several[0].text for several in translations]
        if folder is not None:
            Path(folder).mkdir(exist_ok=True)
            with write_aside(Path(folder) / f"{name}.{languages[1]}") as aside:
                aside.write_text("".join(f"{line}\n" for line in hypotheses), encoding="utf-8")
        scores = bleu(hypotheses, references, config.tokenize), chrf(hypotheses, references)
        multi = multi_bleu(hypotheses, references, config.tokenize)
        return (
            {
                "bleu": scores[0][0].score,
                "chrf": scores[1][0].score,
                "signatures": {score.name: signature for score, signature in scores},
                "multi_bleu": {"value": multi.score, "text": str(multi)},
                "sentences": len(hypotheses),
                "zero_shot": languages[0] not in system.translator.text.source_languages,
                "cut": len(read.cut),
                "overlap": asdict(overlap),
            },
            overlap,
            resampled_bleu(hypotheses, references, config.tokenize),
        )


def _text(values: Mapping[str, dict[str, Any]], means: Mapping[str, float], target: str, is_tokenized: bool) -> str:
    """Return a line for each source language, the mean and the signatures, and for tokenised text the lines that
    multi-bleu.perl would print."""
    rows = []
    for language, own in values.items():
        shown = f"{name(language)} ({language}){', zero-shot' if own['zero_shot'] else ''}"
        rows.append([shown, own["sentences"], own["bleu"], own["chrf"]])
    rows += [[], [f"mean of {len(values)}", sum(own["sentences"] for own in values.values()), *means.values()]]
    signatures = next(iter(values.values()))["signatures"]
    parts = [f"into {name(target)} ({target})", table(["source", "sentences", *signatures], rows)]
    parts += [f"{score}|{signature}" for score, signature in signatures.items()]
    if is_tokenized:
        parts += [f"multi-bleu {language}-{target}: {own['multi_bleu']['text']}" for language, own in values.items()]
    if cut := [f"{own['cut']} of {language}" for language, own in values.items() if own["cut"]]:
        parts.append(f"longer than the model reads, and cut: {', '.join(cut)}")
    return "\n".join(parts)

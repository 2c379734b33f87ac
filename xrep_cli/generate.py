"""xrep-generate: translate the lines of a text."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from xrep.config.fields import Count, check_options
from xrep.errors import UserError
from xrep.inference.generation.decoding import DecodingOptions
from xrep.progress import ProgressLine
from xrep_cli import common
from xrep_cli.command import Command

if TYPE_CHECKING:
    from xrep.inference.generation.hypotheses import Hypothesis
    from xrep.inference.generation.translator import Translator

FLAGS = {"length_penalty": "--lenpen", "length_penalty_form": "--lenpen-form", "top_k": "--sampling-topk",
         "top_p": "--sampling-topp"}  # fmt: skip


@dataclass(kw_only=True)
class Options(common.Computing, common.JsonOption):
    """Translate each line of a text: line i of the output is the translation of line i.

      # Translate a file, and print BLEU and chrF at the end
      xrep-generate --path nmt/best --input test.de --output hyp.en --reference test.en
      # Print the five best translations of each line, as number<TAB>score<TAB>text
      xrep-generate --path nmt/best --input test.de --nbest 5
      # Translate what a pipe gives, with a model of several languages
      echo "Guten Tag" | xrep-generate --path multi/best --target-lang fr

    The text may have any number of lines; memory does not grow with it. The order of lines is kept, and an empty line
    stays empty. Lines from a pipe are translated as they arrive. An output file is written only if all lines were
    translated. Without --source-lang, you can also try a source language on which the model was not trained.

    --jsonl writes an object per line: {"line": 1, "source": ..., "translations": [{"text", "score", "tokens",
    "token_scores"}]}, where "tokens" is their number and "token_scores" has the log-probability of each token and of
    the end of the sentence. The score is the sum of these, divided by length^lenpen (gnmt: ((5 + length) / 6)^lenpen),
    where the length includes the end of the sentence."""

    path: Annotated[str, common.Option(metavar="CHECKPOINT")]
    """A translation model: RUN/best."""
    input: common.TextInput = "-"
    output: common.OutputFile = "-"
    """File to write the translations to; - is standard output."""
    source_lang: common.Language | None = None
    """Language of the lines; it need not be given."""
    target_lang: common.Language | None = None
    """Language to translate into, if the model has several."""
    max_tokens: Count = 4096
    """Size of a batch: lines x hypotheses x subwords of the longest line; larger is faster on a GPU."""
    buffer_lines: Count = 4096
    """Number of lines read and sorted by length at once."""
    jsonl: bool = False
    """Write JSON lines, described above; an output FILE.jsonl has them, too."""
    reference: common.InputFiles = field(default_factory=list)
    """Reference translations: print BLEU, chrF and BLEU of multi-bleu.perl (which does not tokenise: give it tokenised
    text)."""
    search: Annotated[DecodingOptions, common.OptionGroup(flags=FLAGS)]


def run(options: Options) -> None:
    from xrep.inference.generation.translator import Translator
    from xrep.text.examples import read_text
    from xrep.text.languages import canonical, refuse_pair

    check_options(options.search)
    options = replace(options, jsonl=common.is_jsonl(options))
    if options.json and not options.reference:
        raise UserError("`json` without scores to write", cure="give `reference` FILE")
    common.check_text([options.input], options.source_lang, allow_empty=True)
    # They are read once, because they may come from pipes.
    references = [[line for _, line in read_text(file, options.target_lang)] for file in options.reference]
    translator = Translator.load(options.path, options.device, options.precision)
    known = translator.text.source_languages
    refuse_pair(options.source_lang or "", "source_lang", known)
    if options.source_lang is not None and canonical(options.source_lang) not in known:
        cure = f"known: {', '.join(known)}; leave `source_lang` out to try any language that its subwords can spell"
        raise UserError(f"the model was not trained to read {options.source_lang!r}", path=options.path, cure=cure)
    if options.input == "-" and sys.stdin.isatty():
        print("type one sentence per line; Ctrl-D ends", file=sys.stderr)
    with common.text_writer(options.output) as write:
        best = _translate(options, translator, write)
    if references:
        target = translator.model.target_languages[translator.target(options.target_lang)]
        scores = _score(options, best, references, target)
        common.write_summary({**scores, "search": asdict(options.search)}, options.json)


def _translate(options: Options, translator: Translator, write: Callable[[str], object]) -> list[str]:
    """Write the translations of each chunk of lines as soon as they are there; return the best one of each line, if
    there are references to compare them with."""
    from xrep.text.chunks import read_chunks

    translator.translate([], options.target_lang, options.search)  # refuses bad options before a line is read
    # Translations that appear on the same terminal would be mixed with the line.
    line = ProgressLine(shown=options.output != "-" or (sys.stderr.isatty() and not sys.stdout.isatty()))
    problems: dict[str, tuple[int, int]] = {}  # the number of lines of each problem, and the first of them
    counts, best, started = Counter[str](), list[str](), time.monotonic()

    def state(lines: int, details: str) -> str:
        speed = counts["tokens"] / max(time.monotonic() - started, 1e-9)
        return f"{lines:,} line{'s' * (lines != 1)}, {details}{speed:,.0f} tokens a second"

    def progress(sentences: int, tokens: int) -> None:
        counts.update(translated=sentences, tokens=tokens)
        line.show(state(counts["translated"], ""))

    for lines in read_chunks(options.input, options.buffer_lines, options.source_lang):
        first, source = counts["lines"], translator.read(lines)
        found = translator.translate(source, options.target_lang, options.search, options.max_tokens, first, progress)
        rows = zip(range(first + 1, first + 1 + len(lines)), lines, found, strict=True)
        write("".join(_text(options, *row) for row in rows))
        for problem, affected in ((CUT.format(translator.longest_source), source.cut), (UNKNOWN, source.unknown)):
            if affected:
                number, earliest = problems.get(problem, (0, first + affected[0] + 1))
                problems[problem] = number + len(affected), earliest
        counts.update(lines=len(lines), empty=sum(not len(tokens) for tokens in source.tokens))
        if options.reference:
            best += [translations[0].text for translations in found]
    for problem, (number, earliest) in problems.items():
        many = f"{number:,} {'line is' if number == 1 else 'lines are'}"
        line.say(f"warning: {options.input}:{earliest}: {many} {problem}")
    empty = f"{counts['empty']:,} of them empty, " if counts["empty"] else ""
    line.say(state(counts["lines"], f"{empty}{time.monotonic() - started:.1f} s, "))
    return best


CUT = "longer than {} subwords, this one first, and the rest of each is cut off"
UNKNOWN = "mostly of unknown subwords, this one first; another script or language than the model reads?"


def _text(options: Options, number: int, line: str, translations: list[Hypothesis]) -> str:
    """Return what is written of a line: an object of JSON, or a line for each translation."""
    if options.jsonl:
        values = [
            {"text": one.text, "score": round(one.score, 4), "tokens": len(one.tokens)}
            | {"token_scores": [round(score, 4) for score in one.token_scores]}
            for one in translations
        ]
        return json.dumps({"line": number, "source": line, "translations": values}, ensure_ascii=False) + "\n"
    numbered = (f"{number}\t{one.score:.4f}\t" if options.search.nbest > 1 else "" for one in translations)
    return "".join(f"{before}{one.text}\n" for before, one in zip(numbered, translations, strict=True))


def _score(options: Options, best: list[str], references: list[list[str]], target: str) -> dict[str, Any]:
    """Compute and print BLEU, chrF, and BLEU as multi-bleu.perl computes it, of translations into a language."""
    from xrep.metrics.translation import bleu, chrf, multi_bleu, usual_tokenizer

    for file, reference in zip(options.reference, references, strict=True):
        if len(reference) != len(best):
            problem = f"{len(reference):,} lines, but {options.input} has {len(best):,}"
            raise UserError(problem, path=file, cure="give a reference for each line")
    scores = bleu(best, references, usual_tokenizer(target)), chrf(best, references)
    moses = multi_bleu(best, references)
    for text in (*(score.format(signature=signature) for score, signature in scores), f"{moses} (multi-bleu.perl)"):
        print(text, file=sys.stderr if "-" in (options.output, options.json) else sys.stdout)
    values = {score.name: {"score": score.score, "signature": signature} for score, signature in scores}
    return {"lines": len(best), **values, "multi-bleu.perl": {"score": moses.score, "text": str(moses)}}


main = Command("xrep-generate", Options, run)

if __name__ == "__main__":
    sys.exit(main())

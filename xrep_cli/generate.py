"""xrep-generate: lines of text in, their translations out."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrep.inference.generation.options import DEFAULTS, SearchOptions
from xrep_cli.common import choose_device, command_parser, console_script, say_if_slow

if TYPE_CHECKING:
    from xrep.inference.generation.stream import Summary
    from xrep.inference.generation.translator import Translator

DESCRIPTION = """\
Translate each line of a text: line i of the output is the translation of line i.

  echo "Guten Tag" | xrep-generate --path nmt/best
  xrep-generate --path nmt/best --input test.de --output hyp.en --beam 5 --lenpen 1.0
  xrep-generate --path nmt/best --input test.de --output hyp.en --reference test.en       BLEU and chrF at the end
  xrep-generate --path nmt/best --input test.de --nbest 5                  number<TAB>score<TAB>text, five for a line
  xrep-generate --path nmt/best --input test.de --sampling --sampling-topp 0.9 --nbest 3 --seed 1 --jsonl
  xrep-generate --path multi/best --input test.en --target-lang fr

Any number of lines, in constant memory and in their order; an empty line stays empty. What is written into a pipe is
translated as it comes. A file is written when all is translated, and not at all if something fails."""

EPILOG = """\
--jsonl has an object a line: {"line": 1, "source": ..., "translations": [{"text", "score", "tokens", "token_scores"}]},
"tokens" being their number, "token_scores" the log-probability of each and of the end. A score is the sum of these,
divided by length^lenpen (gnmt: ((5 + length) / 6)^lenpen), the end counted.

A language that the model has not been trained on may be tried as a source, without --source-lang."""

# Option of SearchOptions -> its name on the command line, where that is another.
_NAMES = {"length_penalty": "lenpen", "length_penalty_form": "lenpen_form", "top_k": "sampling_topk",
          "top_p": "sampling_topp"}  # fmt: skip
_SECONDS_BETWEEN_LINES = 15.0
_WIDTH = 60
"""Lines on stderr have at least this many characters, to cover the progress that stood there."""
_KEPT_PRODUCTS = {"LRU_CACHE_CAPACITY": "16", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}
"""As in xrep-encode: batches of a long text have hundreds of sizes, and a compiled product of each would be kept."""


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("xrep-generate", DESCRIPTION, EPILOG)
    add, given = parser.add_argument, DEFAULTS
    add("--path", required=True, metavar="CHECKPOINT", help="a translation model: RUN/best")
    add("--input", default="-", metavar="FILE", help="UTF-8 text (.gz and .xz too), one sentence a line; -: stdin")
    add("--output", default="-", metavar="FILE", help="the translations; -: stdout")
    add("--source-lang", metavar="CODE", help="language of the lines; need not be named")
    add("--target-lang", metavar="CODE", help="language to translate into, where the model has several")
    add("--beam", type=int, default=given.beam, metavar="K", help="hypotheses followed at once; 1: greedy")
    add("--nbest", type=int, default=given.nbest, metavar="N", help="translations of each line")
    add("--lenpen", type=float, default=given.length_penalty, metavar="A", help="above 1 longer translations win")
    add("--lenpen-form", choices=("fairseq", "gnmt"), default=given.length_penalty_form, help="length^A, or "
        "((5 + length) / 6)^A as in the GNMT paper")  # fmt: skip
    add("--min-length", type=int, default=given.min_length, metavar="N", help="fewest subwords of a translation")
    add("--max-length-a", type=float, default=given.max_length_a, metavar="A", help="a translation of x subwords has "
        "at most A x + B; what the model was trained on is a limit as well")  # fmt: skip
    add("--max-length-b", type=int, default=given.max_length_b, metavar="B", help="see --max-length-a")
    add("--no-repeat-ngram-size", type=int, default=given.no_repeat_ngram_size, metavar="N", help="no n-gram of this "
        "size comes twice in a translation; 0: any may")  # fmt: skip
    add("--sampling", action="store_true", help="draw translations instead of looking for the best")
    add("--sampling-topk", type=int, default=given.top_k, metavar="K", help="draw among the K best subwords; 0: all")
    add("--sampling-topp", type=float, default=given.top_p, metavar="P", help="draw among the fewest best subwords "
        "that have probability P together")  # fmt: skip
    add("--temperature", type=float, default=given.temperature, metavar="T", help="below 1 the likely gets likelier")
    add("--seed", type=int, default=given.seed, metavar="N", help="of what is drawn")
    add("--max-tokens", type=int, default=4096, metavar="N", help="subwords translated at once: lines x hypotheses x "
        "the longest line; more is faster on a GPU")  # fmt: skip
    add("--buffer-lines", type=int, default=4096, metavar="N", help="lines read and sorted by length at a time")
    add("--jsonl", action="store_true", help="write JSON lines, see below")
    add("--reference", nargs="+", metavar="FILE", help="reference translations: print BLEU, chrF and the line of "
        "multi-bleu.perl (of text as it is: give it tokenised text)")  # fmt: skip
    add("--json", metavar="FILE", help="write the scores as JSON; - prints it on stdout")
    add("--precision", choices=("float32", "bfloat16"), default="float32", help="type the model computes in; "
        "bfloat16 is faster on GPUs and on most CPUs with instructions for it (AMX, AVX512-BF16)")  # fmt: skip
    add("--device", help="cpu, cuda or cuda:1 and so on (default: a GPU if there is one)")
    add("--plugin", metavar="MODULE", action="append", default=[], help="import a module that has the model")
    return parser


def _search_options(options: argparse.Namespace) -> SearchOptions:
    """The options of the search.

    Raises:
        ConfigError: one of them makes no sense; it is named as on the command line.
    """
    from xrep.errors import ConfigError

    names = {field.name: _NAMES.get(field.name, field.name) for field in fields(SearchOptions)}
    found = SearchOptions(**{name: getattr(options, given) for name, given in names.items()})
    problems = []
    for problem in found.problems():
        name, _, rest = problem.partition(" ")
        problems.append(f"--{names[name].replace('_', '-')} {rest}")
    if problems:
        raise ConfigError(problems)
    return found


def _check(options: argparse.Namespace) -> None:
    """Say what is wrong with options and files before the model is loaded.

    Raises:
        UserError: one of them makes no sense, is missing, or references are more or fewer than lines.
    """
    from xrep.errors import UserError
    from xrep.files import check_output
    from xrep.inference.generation.stream import is_regular
    from xrep.text.readers import read_lines

    for name in ("max_tokens", "buffer_lines"):
        if getattr(options, name) < 1:
            cure = "give at least 1"
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)}", cure=cure)
    if options.json and not options.reference:
        raise UserError("--json without scores to write", cure="give --reference FILE")
    if options.json == "-" and options.output == "-":
        raise UserError("--json - and the translations both go to stdout", cure="give --output FILE or --json FILE")
    for file in (options.output, options.json):
        if file not in (None, "-"):
            check_output(file)
    source = Path(options.input)
    if options.input != "-" and (source.is_file() or source.is_dir() or not source.exists()):
        next(read_lines(options.input, allow_empty=True, most_words=None), None)
    counts = [sum(1 for _ in read_lines(file)) for file in options.reference or []]
    if counts and is_regular(options.input):
        _compare(options, sum(1 for _ in read_lines(options.input, allow_empty=True, most_words=None)), counts)


def _compare(options: argparse.Namespace, lines: int, counts: Sequence[int]) -> None:
    from xrep.errors import UserError

    for file, count in zip(options.reference, counts, strict=True):
        if count != lines:
            problem = f"{count:,} lines, but {_named(options.input)} has {lines:,}"
            raise UserError(problem, path=file, cure="give a reference for each line")


def _load(options: argparse.Namespace) -> Translator:
    """The translator, after a look that device and languages are known."""
    from xrep.errors import UserError
    from xrep.inference.generation.translator import Translator
    from xrep.registry import import_plugin
    from xrep.text.languages import canonical

    for plugin in options.plugin:
        import_plugin(plugin)
    translator = Translator.load(options.path, choose_device(options.device), options.precision)
    say_if_slow("xrep-generate", options.precision, next(translator.model.parameters()).device.type)
    known = translator.text.source_languages
    if options.source_lang is not None and canonical(options.source_lang) not in known:
        cure = f"known: {', '.join(known)}; leave --source-lang out to try any language that its subwords can spell"
        raise UserError(f"the model was not trained to read {options.source_lang!r}", path=options.path, cure=cure)
    if options.target_lang is None and len(translator.model.target_languages) > 1:
        cure = f"give --target-lang, one of {', '.join(translator.model.target_languages)}"
        raise UserError("the model has several target languages", path=options.path, cure=cure)
    return translator


@contextmanager
def _writer(output: str) -> Iterator[Callable[[str], object]]:
    """What takes text: for stdout or a device at once, for a file aside, renamed when the block ends well."""
    from xrep.files import naming, write_aside

    if output == "-":
        yield _print_now
    elif Path(output).exists() and not Path(output).is_file():
        with open(output, "w", encoding="utf-8", newline="\n") as file:
            yield lambda text: (file.write(text), file.flush())
    else:
        with write_aside(output) as aside, open(aside, "w", encoding="utf-8", newline="\n") as file:

            def write(text: str) -> None:
                with naming(output):
                    file.write(text)
                    file.flush()

            yield write


def _print_now(text: str) -> None:
    """UTF-8, whatever the locale says, and not kept back."""
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


class _ProgressLine:
    """How far the translation is, on stderr: a line that changes on a terminal, elsewhere now and then."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._terminal = sys.stderr.isatty()
        # Beside translations that appear on the same terminal it would only disturb.
        self._shown = options.output != "-" or (self._terminal and not sys.stdout.isatty())
        self._said = time.monotonic()

    def __call__(self, summary: Summary) -> None:
        now = time.monotonic()
        if not self._shown or (not self._terminal and now - self._said < _SECONDS_BETWEEN_LINES):
            return
        self._said = now
        speed = f"{summary.tokens / max(summary.seconds, 1e-9):,.0f} tokens a second"
        print(_over(f"{_lines(summary.translated)}, {speed}"), end="\r" if self._terminal else "\n", file=sys.stderr)
        sys.stderr.flush()


def _lines(count: int) -> str:
    return f"{count:,} line{'s' * (count != 1)}"


def _over(line: str) -> str:
    """Wide enough to cover the progress line where that stays."""
    return line.ljust(_WIDTH) if sys.stderr.isatty() else line


def _score(options: argparse.Namespace, best: list[str]) -> dict[str, Any]:
    """BLEU, chrF and multi-bleu.perl's line of the translations, printed where they do not come in between."""
    from xrep.metrics.translation import bleu, chrf, multi_bleu
    from xrep.text.readers import read_lines

    references = [[line for _, line in read_lines(file)] for file in options.reference]
    _compare(options, len(best), [len(lines) for lines in references])
    scores, moses = (bleu(best, references), chrf(best, references)), multi_bleu(best, references)
    for line in (*(score.text for score in scores), f"{moses} (multi-bleu.perl)"):
        print(line, file=sys.stderr if "-" in (options.output, options.json) else sys.stdout)
    values = {score.name: {"score": score.value, "signature": score.signature} for score in scores}
    return {"lines": len(best), **values, "multi-bleu.perl": {"score": moses.value, "text": str(moses)}}


def _named(path: str) -> str:
    return "/dev/stdin" if path == "-" else path


def _main(argv: Sequence[str]) -> None:
    options = build_parser().parse_args(argv)
    search = _search_options(options)
    _check(options)
    for name, value in _KEPT_PRODUCTS.items():
        os.environ.setdefault(name, value)  # read at the first product

    from xrep.files import write_aside
    from xrep.inference.generation.stream import translate_stream

    translator = _load(options)
    if options.input == "-" and sys.stdin.isatty():
        print("one sentence a line; Ctrl-D ends", file=sys.stderr)
    with _writer(options.output) as write:
        done = translate_stream(
            translator,
            _named(options.input),
            write,
            target_language=options.target_lang,
            options=search,
            max_tokens=options.max_tokens,
            most_lines=options.buffer_lines,
            form="jsonl" if options.jsonl else "nbest" if options.nbest > 1 else "plain",
            keep_best=bool(options.reference),
            warn=lambda line: print(f"warning: {line}", file=sys.stderr),
            progress=_ProgressLine(options),
        )
    empty = f", {done.empty:,} of them empty" if done.empty else ""
    speed = f"{done.tokens / max(done.seconds, 1e-9):,.0f} tokens a second"
    print(_over(f"{_lines(done.lines)}{empty}, {done.seconds:.1f} s, {speed}"), file=sys.stderr)
    if options.reference:
        values = json.dumps({**_score(options, done.best), "search": asdict(search)}, indent=2) + "\n"
        if options.json == "-":
            print(values, end="")
        elif options.json is not None:
            with write_aside(options.json) as aside:
                aside.write_text(values, encoding="utf-8")


main = console_script(_main)

if __name__ == "__main__":
    sys.exit(main())

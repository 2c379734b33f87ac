"""xrep-predict: predict labels of texts, tags of words and answers to questions."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from xrep.errors import UserError
from xrep_cli import common
from xrep_cli.command import Command

if TYPE_CHECKING:
    from xrep.inference.predictor import Predictor


@dataclass(kw_only=True)
class Options(common.Computing, common.Batches):
    """Predict with a classifier that xrep-train trained: line i of the output belongs to line i of the input.

      # Label pairs of texts: premise<TAB>hypothesis gives label<TAB>probability
      xrep-predict --path xnli-run/best --input pairs.tsv
      # Tag words, one tag for each
      echo "Angela lives in Kiel ." | xrep-predict --path ner-run/best
      # Answer questions: question<TAB>context gives answer<TAB>place in the context
      xrep-predict --path qa-run/best --input asked.tsv

    With --jsonl each line is an object, which has the probabilities of all labels. What the lines are is decided by the
    task that the classifier was trained for. Words are separated by spaces. Lines from a pipe are answered as they
    arrive. An output file is written only if all lines were read."""

    path: Annotated[str, common.Option(metavar="CHECKPOINT")]
    """A classifier: RUN/best."""
    input: common.InputFile = "-"
    """UTF-8 text (also .gz, .bz2, .xz and .zst); - reads standard input."""
    output: common.OutputFile = "-"
    """File to write to; - is standard output."""
    jsonl: bool = False
    """Write an object of JSON per line; an output FILE.jsonl has them, too."""


def run(options: Options) -> None:
    """Write a line for each line of the input; those of a pipe are answered as they arrive."""
    from xrep.models.kinds import model_name
    from xrep.registry import PREDICTORS
    from xrep.text.chunks import read_chunks

    common.check_text([options.input], None, allow_empty=True)
    jsonl, known, name = common.is_jsonl(options), PREDICTORS.names(), model_name(options.path)
    if not known:
        raise UserError("no predictor is installed", cure="reinstall xrep, or install a plugin that has a predictor")
    kinds: list[Any] = [PREDICTORS.load(own) for own in ([name] if name in known else known)]
    # The first one also says what a directory holds that it cannot open.
    kind = next((own for own in kinds if own.opens(options.path)), kinds[0])
    predictor: Predictor = kind.load(
        options.path, device=options.device, dtype=options.precision, batch_tokens=options.batch_tokens
    )
    before, origin = 0, "standard input" if options.input == "-" else options.input
    with common.text_writer(options.output) as write:
        for lines in read_chunks(options.input):
            rows = [line.split("\t") for line in lines]
            for number, row in enumerate(rows, before + 1):
                if len(row) not in predictor.columns:
                    raise UserError(f"{len(row)} columns, where a line is {predictor.form}", path=origin, line=number)
            predicted = predictor.predict_lines(rows)
            shown = (json.dumps(fields, ensure_ascii=False) if jsonl else text for text, fields in predicted)
            write("".join(f"{line}\n" for line in shown))
            before += len(lines)
        if not before:
            raise UserError("the file is empty", path=origin, cure="give a file with text")


main = Command("xrep-predict", Options, run)

if __name__ == "__main__":
    sys.exit(main())

"""What the subcommands of ``xrep-eval`` share: options, the encoder, where a result goes."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrep.errors import UserError

if TYPE_CHECKING:
    from xrep.evaluation.encoders import Encoder, SentenceList


@dataclass(frozen=True)
class Report:
    """What an evaluation found: ``result`` of ``xrep.evaluation.result.make_result`` for --json, ``text`` to print."""

    result: dict[str, Any]
    text: str
    failed: dict[str, str] = field(default_factory=dict)
    """Of several tests those that could not be measured, and why."""


def add_options(parser: argparse.ArgumentParser, *, plot: bool = False, drop_overlap: bool = True) -> None:
    """The options of every evaluation of an encoder.

    Args:
        plot: whether it can draw its result (``--plot``).
        drop_overlap: whether it can leave out what was trained on (``--drop-overlap``).
    """
    add = parser.add_argument
    add(
        "--path",
        metavar="ENCODER",
        help="a checkpoint, a directory of Hugging Face or sentence-transformers, or a folder of vectors.npy [N, D] "
        "and sentences.tsv, whose lines language<TAB>sentence name the rows",
    )
    add("--batch-tokens", type=int, default=4096, metavar="N", help="subwords that go through the encoder at once")
    add("--cache", metavar="DIR", help="keep the vectors here, and take them from here the next time")
    if plot:
        add("--plot", metavar="FILE", help="draw the results as a PNG file (needs the extra 'plot')")
    add(
        "--list-sentences",
        metavar="FILE",
        help="measure nothing: write the sentences that need vectors of another system, lines language<TAB>sentence",
    )
    add_common_options(parser, drop_overlap=drop_overlap)


def add_common_options(parser: argparse.ArgumentParser, *, drop_overlap: bool = True) -> None:
    """Those of every evaluation, whatever it measures; see ``add_options``."""
    add = parser.add_argument
    add("--plugin", metavar="MODULE", action="append", default=[], help="import a module that has the model")
    add("--json", metavar="FILE", help="write the results as JSON; - prints JSON alone on stdout")
    if drop_overlap:
        add("--drop-overlap", action="store_true", help="leave out what was in the training text")


class Encoders:
    """Opens the encoders that the options name, each once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._opened: dict[tuple[str | None, bool], Encoder] = {}
        self.listed: SentenceList | None = None
        """With --list-sentences: what every ``open`` gives. It notes what it is asked to encode."""

    def open(self, path: str | Path | None = None, *, random_weights: bool = False) -> Encoder:
        """The encoder at ``path`` (default: ``--path``); with --list-sentences the one that notes sentences.

        Raises:
            UserError: no ``--path``, or no encoder there.
        """
        from xrep.evaluation import encoders

        options = self._options
        if options.list_sentences:
            self.listed = self.listed or encoders.SentenceList()
            return self.listed
        path = path or options.path
        if path is None:
            raise UserError("no encoder named", cure="give --path, or --list-sentences to measure another system")
        key = str(path), random_weights
        if key not in self._opened:
            self._opened[key] = encoders.open_encoder(
                path,
                options.plugin,
                batch_tokens=options.batch_tokens,
                cache=options.cache,
                random_weights=random_weights,
            )
        return self._opened[key]


def check_options(options: argparse.Namespace) -> None:
    """Find out before the work whether its results can be written.

    Raises:
        UserError: they cannot; a number out of range; matplotlib is missing.
    """
    from xrep.files import check_output

    given = {name: value for name, value in vars(options).items() if value is not None}
    if given.get("batch_tokens", 1) < 1:
        raise UserError(f"--batch-tokens {options.batch_tokens}", cure="give at least 1")
    plot = given.get("plot")
    outputs = [name for name in ("json", "plot", "save_embeddings") if name in given]
    if "list_sentences" in given and outputs:
        option = f"--{outputs[0].replace('_', '-')}"
        raise UserError(f"{option} with --list-sentences, which measures nothing", cure=f"leave {option} out")
    for name in ("json", "list_sentences", "plot"):
        if given.get(name, "-") != "-":
            check_output(given[name])
    for name in ("cache", "save_translations"):
        if name in given:
            check_output(given[name], folder=True)
    if plot is not None:
        from xrep.evaluation.plots import check_matplotlib

        check_matplotlib()

"""Find translations in two texts of any size, in bounded memory, as a job of units that any engine does."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.inference.choosing import ChoosePairs
from xrep.inference.encoding import HeldEncoder, Read
from xrep.inference.nearest import search_stages
from xrep.inference.pair_files import RECORDS, run_pairs_job
from xrep.inference.planted import TrustedPairs
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.settings import MiningOptions
from xrep.inference.text_sides import Text, TextSide, search_origin
from xrep.jobs.engines import LOCAL, Engine
from xrep.jobs.outputs import states_of
from xrep.text.find import Bitext
from xrep.text.languages import canonical
from xrep.text.records import check_format, ending_of, has_records


@dataclass(frozen=True)
class Mined:
    """The result of ``mine``.

    ``sources`` and ``targets`` count the sentences compared; ``empty`` and ``duplicates`` count the lines of (source,
    target) that were left out. ``threshold`` is the lowest score that was written (None: any), and ``judged`` tells of
    the pairs that were written, in percent: the ``precision``, and the ``recall`` of translations that the text has;
    and the share of sources which have one, ``translated``. Trusted pairs add the 95% interval ``precision_low`` to
    ``precision_high``; the numbers of those that were used, ``trusted``, and of those that are in the text,
    ``trusted_in_text``; how many are ``found`` from the threshold on; how many are ``mistaken``, that is, in a pair
    from the threshold on if their translation is not there; and the ``misfit`` of both kinds of text, which says above
    1 that they differ (``planting_misfit``). Without trusted pairs it is a rough judgement of the
    scores alone, and None if there are too few sentences.
    """

    path: str
    pairs: int
    threshold: float | None
    judged: dict[str, float] | None
    sources: int
    targets: int
    empty: tuple[int, int]
    duplicates: tuple[int, int]
    inputs: dict[str, Any]
    """The texts and vectors of both sides, with what changes when a file does, and the fingerprint of the encoder."""
    settings: dict[str, Any]
    version: str
    seconds: float


def mine(
    source: Text,
    target: Text,
    output: str | Path,
    options: MiningOptions,
    *,
    encoder: SentenceEncoder | None = None,
    trusted: Bitext | None = None,
    engine: Engine = LOCAL,
    show_progress: bool = False,
) -> Mined | None:
    """Write pairs that may be translations as lines ``score<TAB>source<TAB>target``, sorted by score, best first; or
    in the format that the name of the output says (``RECORDS``).

    Empty lines are left out, and of equal lines only the first is used. For a side without a text, line numbers (from
    1) are written. Texts, vectors and neighbours are kept in ``{output}.job`` until the pairs are written, and a second
    call with the same arguments continues from there and gives the same output. Memory holds about 10 bytes for each
    sentence.

    Args:
        encoder: Encoder for the sides that have no vectors, and for the trusted pairs.
        trusted: Pairs of the languages of source and target that are right, of the kind of the text, but not in it. It
            is tried whether each is found in the text and, without its target, what its source is paired with. So it is
            known how many pairs are right from a threshold on; if none is given, the one with the best F1 is chosen.
        engine: What does the units. None is returned by processes that share the work and had nothing left to do.

    Raises:
        UserError: If a side is invalid or, for records, without its text or language, there are fewer sentences than
            neighbours, fewer than 30 trusted pairs, no threshold is as precise as is wanted, or there is an unfinished
            job with other inputs or options.
        Interrupted: Ctrl-C was pressed, and what was being worked on is saved.
    """
    check_format(output, RECORDS)
    languages = _languages(source, target, output)
    held = HeldEncoder(encoder) if encoder else None
    # One more neighbour tells what a source would be paired with if its best candidate were not there.
    k = options.neighbours + (trusted is None)
    x, y = sides = [TextSide(text, output, held, options, k) for text in (source, target)]
    _check_vectors(x.made_by, y.made_by)
    found, merge = search_stages(x, y, options)
    pairs = _trusted_pairs(trusted, (x, y), held, options) if trusted else None
    choose = ChoosePairs(x, y, merge, options, pairs, str(output), languages)
    reading = [stage for side in sides for stage in side.stages if isinstance(stage, Read)]
    others = [stage for side in sides for stage in side.stages if stage not in reading]
    stages = [*reading, *pairs.reading, *others, *pairs.searching] if pairs else [*reading, *others]
    inputs = {"source": x.facts, "target": y.facts, "encoder": held and held.fingerprint}
    inputs["trusted"] = trusted and {**asdict(trusted), "files": states_of(trusted.paths)}

    def counts() -> dict[str, Any]:
        (of_x, of_y), names = (side.distinct.counts for side in sides), ("empty", "duplicates")
        lines = {name: (of_x[name], of_y[name]) for name in names}
        return {"sources": of_x["sentences"], "targets": of_y["sentences"], **lines, "inputs": inputs}

    mined = run_pairs_job("mine", output, options, inputs, [*stages, *found, choose], engine, show_progress, counts)
    return Mined(**mined) if mined else None


def _languages(source: Text, target: Text, output: str | Path) -> tuple[str, str]:
    """Return the names of both sides in the output: in records, these are their languages."""
    if not has_records(output):
        return source.name, target.name
    for side in (source, target):
        if side.text is None or side.lang is None:
            problem = f".{ending_of(output)} needs the text and the language of the {side.name}"
            cure = f"give `{side.name}` and `{side.name}_lang`, or an output FILE.tsv"
            raise UserError(problem, path=output, cure=cure)
    codes = canonical(str(source.lang)), canonical(str(target.lang))
    if codes[0] == codes[1]:
        problem = f".{ending_of(output)} names texts by their languages, and both are {codes[0]}"
        raise UserError(problem, path=output, cure="write an output FILE.tsv")
    return codes


def _trusted_pairs(
    trusted: Bitext, sides: tuple[TextSide, TextSide], encoder: HeldEncoder | None, options: MiningOptions
) -> TrustedPairs:
    if encoder is None:
        raise UserError("trusted pairs need an encoder", path=trusted.paths[0], cure="give the one of the vectors")
    x, y = (search_origin(encoder.encoder, side.facts["lang"], options) for side in sides)
    for side in sides:
        _check_vectors(side.made_by, (encoder.path, x.size, encoder.fingerprint))
    return TrustedPairs(trusted, sides, encoder, options, (x, y))


def _check_vectors(one: tuple[str, int, str | None], another: tuple[str, int, str | None]) -> None:
    """Raise a UserError unless vectors can be compared, of which path, size and encoder are given."""
    (path, size, encoder), (other, other_size, other_encoder) = one, another
    problem = f"vectors of {size} numbers, but {other} has {other_size}" if size != other_size else ""
    if encoder and other_encoder and encoder != other_encoder:
        problem = f"vectors of another encoder, precision or prompt than those of {other}"
    if problem:
        raise UserError(problem, path=path, cure="encode both sides in the same way")

"""Parts of the preprocessing of a large text: directories with the cleaned pairs of some of its files.

A shard has the files of its spools and ``shard.json``: what it is a part of, and what cleaning dropped. Every shard is
compared with all validation and test text, which only the first one has.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xrep.data.spool import Spool
from xrep.errors import UserError
from xrep.files import digests_of, write_json
from xrep.text.cleaning import CleaningReport
from xrep.text.readers import Bitext

SHARD_FILE = "shard.json"
_FORMAT, _SCHEMA = "xrep-shard", 1
_CURE = "make it again with xrep-preprocess --shard"


@dataclass(frozen=True)
class Shards:
    """All shards of a text: spools in the order of the text, counts, notes for the user, and the options."""

    spools: list[Spool]
    report: CleaningReport
    notes: list[str]
    options: dict[str, Any]


def check_shard(shard: tuple[int, int], files: int) -> None:
    """Raise UserError if shard (k, n) of a text with so many training files cannot be."""
    number, count = shard
    if not 1 <= number <= count:
        raise UserError(f"shard {number} of {count}", cure="give one from 1/N to N/N")
    if count > files:
        problem = f"{count} shards of a training text with {files} file{'s' if files > 1 else ''}"
        raise UserError(problem, cure="ask for fewer, or split the files")


def part_of(spools: Sequence[Spool], shard: tuple[int, int]) -> list[Spool]:
    """Return the spools that shard (k, n) reads: every n-th of the training text, and all evaluation text."""
    train = [spool for spool in spools if spool.split == "train"][shard[0] - 1 :: shard[1]]
    return [spool for spool in spools if spool.split != "train"] + train


def write_shard(
    spools: Sequence[Spool],
    shard: tuple[int, int],
    options: Any,
    report: CleaningReport,
    notes: list[str],
    output: Path,
) -> dict[str, Any]:
    """Complete the directory ``output``, in whose folder ``work`` the spools are, and return what ``shard.json`` says.

    Args:
        spools: Those of the whole text, of which those of the shard have been filled.
        options: Dataclass of the options of preprocessing.
    """
    own = [spool for spool in part_of(spools, shard) if spool.split == "train" or shard[0] == 1]
    report.counts = {spool.name: report.counts[spool.name] for spool in own}
    for file in (output / "work").iterdir():
        if any(file.stem == spool.stem.name for spool in own):
            file.rename(output / file.name)
        else:
            file.unlink()
    (output / "work").rmdir()
    content = {
        "format": _FORMAT,
        "schema": _SCHEMA,
        "shard": list(shard),
        "options": asdict(options),
        "corpora": [
            {"name": each.name, "split": each.split, "bitext": {"paths": each.bitext.paths}} for each in spools
        ],
        "spools": [
            {
                "corpus": spools.index(spool),
                "bitext": asdict(spool.bitext),
                "chunks": spool.chunks,
                "counts": report.counts[spool.name],
            }
            for spool in own
        ],
        "notes": notes,
        "files": digests_of(output),
    }
    write_json(output / SHARD_FILE, {**content, "sha256": _digest(content)})
    return {"shard": f"{shard[0]}/{shard[1]}"}


def read_shards(directories: Sequence[Path], work: Path) -> Shards:
    """Read all shards of a text.

    Args:
        work: Folder in which the spools will be marked.

    Raises:
        UserError: One is missing, damaged, there twice, or a part of something else than the first.
    """
    contents = {directory: _read(directory) for directory in directories}
    first = contents[directories[0]]
    count, by_number = first["shard"][1], dict[int, Path]()
    for directory, content in contents.items():
        if any(content[key] != first[key] for key in ("options", "corpora")) or content["shard"][1] != count:
            problem = f"is of another text, or has other options, than {directories[0]}"
            raise UserError(problem, path=directory, cure="make all shards with the same command, except --shard")
        if other := by_number.get(content["shard"][0]):
            raise UserError(
                f"is shard {content['shard'][0]} of {count}, as {other} is", path=directory, cure="name one"
            )
        by_number[content["shard"][0]] = directory
    if lacking := [str(number) for number in range(1, count + 1) if number not in by_number]:
        listed = ", ".join(lacking[:10]) + (" and others" if len(lacking) > 10 else "")
        raise UserError(f"shard {listed} of {count} is missing", cure="name the directories of all shards")
    rows = sorted(((row, directory) for directory in contents for row in contents[directory]["spools"]),
                  key=lambda each: each[0]["corpus"])  # fmt: skip
    if [row["corpus"] for row, _ in rows] != list(range(len(first["corpora"]))):
        raise UserError("the shards do not have the corpora that they name", path=directories[0], cure=_CURE)
    notes = [note for number in sorted(by_number) for note in contents[by_number[number]]["notes"]]
    spools = [_spool(row, first["corpora"][row["corpus"]], directory, work) for row, directory in rows]
    counts = {spool.name: row["counts"] for spool, (row, _) in zip(spools, rows, strict=True)}
    return Shards(spools, CleaningReport(counts), notes, first["options"])


def _spool(row: dict[str, Any], corpus: dict[str, Any], directory: Path, work: Path) -> Spool:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row["bitext"].items()
    }
    chunks = [(int(place), int(rows)) for place, rows in row["chunks"]]
    number = str(row["corpus"])
    return Spool(
        corpus["split"], corpus["name"], Bitext(**values), directory / number, work / f"{number}.marks", chunks
    )


def _read(directory: Path) -> dict[str, Any]:
    """Return what ``shard.json`` says, after checking that the files are those that it names."""
    file = directory / SHARD_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError("not a shard (no shard.json)", path=directory, cure="see xrep-preprocess --shard") from None
    except (ValueError, RecursionError):
        raise UserError("not JSON", path=file, cure=_CURE) from None
    if not isinstance(content, dict) or (content.get("format"), content.get("schema")) != (_FORMAT, _SCHEMA):
        raise UserError("not a shard of this version of xrep", path=file, cure=_CURE)
    if content.pop("sha256", None) != _digest(content):
        raise UserError("damaged, or changed by hand", path=file, cure=_CURE)
    found = {name: digest for name, digest in digests_of(directory).items() if name != SHARD_FILE}
    if found != content["files"]:
        raise UserError("its files are not those that shard.json names", path=directory, cure=_CURE)
    return content


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8", "backslashreplace")).hexdigest()

"""What the readers of several evaluations need: the choice of languages, parallel files, and files in subfolders."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from xrep.errors import UserError
from xrep.text.languages import canonical, refuse_pair
from xrep.text.readers import read_lines


def choose_languages(
    languages: str,
    known: Collection[str],
    data: str,
    path: str | Path | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """Return the canonical codes of the named languages, each once, in the order in which they are named.

    Args:
        languages: ``all``, or codes (``de`` or ``deu``) and names of ``groups``, separated by commas.
        known: Canonical codes of the available languages. Raises UserError if another is named, or none.
        data, path: What there is for a language (``STS data for``), and where, for the error message.
    """
    wanted: list[str] = []
    for code in filter(None, (part.strip() for part in languages.split(","))):
        refuse_pair(code, "langs", known)
        wanted += known if code == "all" else (groups or {}).get(code, (canonical(code),))
    wanted = list(dict.fromkeys(wanted))
    missing = [language for language in wanted if language not in known]
    if missing or not wanted:
        problem = f"no {data} {' '.join(missing)}" if missing else "no language named"
        raise UserError(problem, path=path, cure=f"the data has {','.join(known)}")
    return wanted


def check_seed(seed: int) -> None:
    """Raise a UserError if a seed is not in the range that numpy and scikit-learn take."""
    if not 0 <= seed < 2**32:
        raise UserError(f"`seed` {seed}", cure="give a number from 0 to 4294967295")


def existing_folder(path: str | Path, cure: str) -> Path:
    """Return the path of a folder, or raise a UserError that ends with ``cure`` if there is none."""
    if not Path(path).is_dir():
        raise UserError("no such folder", path=path, cure=cure)
    return Path(path)


def read_sentences(path: Path) -> list[str]:
    """Return the lines of a text file."""
    return [line for _, line in read_lines(path)]


def read_columns(path: Path, least: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the tab-separated columns of each line, of which there must be at least ``least``."""
    for number, line in read_lines(path):
        columns = line.split("\t")
        if len(columns) < least:
            problem = f"{len(columns)} columns where {least} are needed"
            raise UserError(problem, path=path, line=number, cure="separate the columns by tabs")
        yield number, columns


def check_parallel(columns: Sequence[Sequence[object]], paths: Sequence[Path]) -> None:
    """Raise a UserError unless files, whose lines are ``columns``, have the same number of lines."""
    sizes = [len(column) for column in columns]
    shortest, longest = sizes.index(min(sizes)), sizes.index(max(sizes))
    if sizes[shortest] < sizes[longest]:
        problem = f"{sizes[shortest]} lines, but {paths[longest].name} has {sizes[longest]}"
        cure = "line i of one must belong to line i of the other"
        raise UserError(problem, path=paths[shortest], line=sizes[shortest] + 1, cure=cure)


def folders_with(folder: Path, pattern: str = ".*") -> dict[Path, list[str]]:
    """Return the folders, up to four levels deep, that have files whose whole name matches a regular expression: folder
    -> their names. Four are enough for SentEval/data/downstream/SST/binary."""
    matching: dict[Path, list[str]] = {}
    for path, folders, names in os.walk(folder):
        folders.sort()
        if len(Path(path).relative_to(folder).parts) >= 4:
            folders.clear()
        if own := sorted(name for name in names if re.fullmatch(pattern, name) and Path(path, name).is_file()):
            matching[Path(path)] = own
    return matching

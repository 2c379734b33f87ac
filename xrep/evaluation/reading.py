"""What the readers of several evaluations need: the choice of languages, parallel files, and files in subfolders."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from xrep.errors import UserError
from xrep.text.languages import canonical, refuse_pair
from xrep.text.readers import read_lines


def named(text: str, option: str) -> list[str]:
    """Return the names in the value of an option, which commas separate, each once."""
    if names := [name for name in map(str.strip, text.split(",")) if name]:
        return list(dict.fromkeys(names))
    raise UserError(f"`{option}` {text!r} names nothing", cure="give names, separated by commas")


def choose_names(
    names: Collection[str], known: Collection[str], data: str, path: str | Path | None = None
) -> list[str]:
    """Return which of the ``known`` names are among ``names``, of which ``all`` stands for all of them.

    They are in the order of ``known``, on which the draws of the bootstrap depend. ``data`` and ``path`` say in
    messages what there is of a name (``STS data for``), and where.
    """
    if missing := [name for name in names if name not in {"all", *known}]:
        raise UserError(f"no {data} {' '.join(missing)}", path=path, cure=f"the data has {','.join(known)}")
    return [name for name in known if name in names or "all" in names]


def named_languages(text: str, groups: Mapping[str, list[str]], known: Collection[str] = ()) -> list[str]:
    """Return the canonical codes in the value of ``langs``, each once. They are given as ``de`` or ``deu``, or by the
    name of one of the ``groups``; ``all`` stays as it is."""
    languages = list[str]()
    for code in named(text, "langs"):
        refuse_pair(code, "langs", known)
        languages += groups.get(code, [code if code == "all" else canonical(code)])
    return list(dict.fromkeys(languages))


def choose_languages(
    text: str, known: Collection[str], data: str, path: str | Path | None = None, groups: Mapping[str, list[str]] = {}
) -> list[str]:
    """Return the languages that the value of ``langs`` names, as ``named_languages`` and ``choose_names`` do."""
    return choose_names(named_languages(text, groups, known), known, data, path)


def check_least(options: object, **least: int) -> None:
    """Check that numbers among the options of an evaluation are not below their least values."""
    for name, value in least.items():
        if (given := getattr(options, name)) < value:
            raise UserError(f"`{name}` {given}", cure=f"give at least {value}")


def check_seed(seed: int) -> None:
    """Check that numpy and scikit-learn take a seed."""
    if not 0 <= seed < 2**32:
        raise UserError(f"`seed` {seed}", cure="give a number from 0 to 4294967295")


def existing_folder(path: str | Path, cure: str) -> Path:
    if not Path(path).is_dir():
        raise UserError("no such folder", path=path, cure=cure)
    return Path(path)


def read_sentences(path: Path) -> list[str]:
    return [line for _, line in read_lines(path)]


def read_columns(path: Path, least: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the tab-separated columns of each line, of which there must be at least ``least``."""
    for number, line in read_lines(path):
        columns = line.split("\t")
        if len(columns) < least:
            problem = f"{len(columns)} columns where {least} are needed"
            raise UserError(problem, path=path, line=number, cure="separate the columns by tabs")
        yield number, columns


def read_column(path: Path, column: int) -> list[str]:
    """Return the lines of a file, or of a .tsv file one column, counted from 1."""
    if ".tsv" not in path.suffixes:
        return read_sentences(path)
    return [columns[column - 1] for _, columns in read_columns(path, column)]


def check_parallel(columns: Sequence[Sequence[object]], paths: Sequence[Path]) -> None:
    """Check that files, whose lines are ``columns``, have the same number of lines."""
    sizes = {path: len(column) for path, column in zip(paths, columns, strict=True)}
    short, *_, long = sorted(sizes, key=lambda path: sizes[path])
    if sizes[short] < sizes[long]:
        problem = f"{sizes[short]} lines, but {long.name} has {sizes[long]}"
        cure = "line i of one must belong to line i of the other"
        raise UserError(problem, path=short, line=sizes[short] + 1, cure=cure)


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

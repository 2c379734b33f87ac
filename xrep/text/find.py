"""Files of text in a folder, of which split and in which language their names say they are; and how a user names them.

A pair of languages is (source, target). If one of them is English, it is the target (``de-en``), whichever was named
first. A part of a name is a language if ``languages.tsv`` has it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from xrep.errors import UserError
from xrep.text.hf_datasets import is_dataset
from xrep.text.languages import canonical, is_known
from xrep.text.records import READERS, ending_of, has_records, plain_name

Split = Literal["train", "valid", "test"]
SPLITS: dict[str, Split] = {
    "train": "train", "training": "train", "valid": "valid", "val": "valid", "dev": "valid", "validation": "valid",
    "matched": "valid", "trial": "valid", "test": "test",
}  # fmt: skip
"""The words in file names that mean a split."""
PARALLEL = re.compile(r"s1\.(train|dev|valid|test)")
DEPTH = 3
"""Number of levels of folders in which annotated text is searched."""
_CODE = r"[A-Za-z]{2,3}(?:[-_][A-Z][a-z]{3})?"
"""Pattern of a language code in file names: de, deu, zh-Hans."""
_TREEBANK = re.compile(r"([a-z]{2,3})(_[a-z]+-ud-.*)")
"""Names of Universal Dependencies, in which the second part is no language: uk_iu-ud-train.conllu."""
_CODE_IN_NAME = re.compile(rf"(?:(?<=[._-])|^){_CODE}(?=[._-]|$)")
_PAIR = re.compile(rf"({_CODE})-({_CODE})")
_SPEC = re.compile(rf"{_PAIR.pattern}=(.+?)(?:@([0-9]{{1,15}}))?")
_COLUMNS = re.compile(r"(.+):([0-9]{1,6}),([0-9]{1,6})")
_FIELDS = re.compile(r"(.+):([^,:/]+),([^,:/]+)")
_SPEC_CURE = "write de-en=FILE.tsv, de-en=FILE.tsv:2,1 (columns of de and en) or de-en=FILE.de,FILE.en"
_OTHER_ENDINGS = frozenset(("bak", "sh"))
"""Codes of languages that are usual endings of other files: copies and scripts."""
_TEXT_SPEC = re.compile(rf"({_CODE})=(.+)")
_TEXT_LAYOUTS = (
    "expected news.de, train.de or de.txt (each also .gz, .bz2, .xz or .zst; valid.* likewise), or de=FILE,en=FILE "
    "instead"
)
_LAYOUTS = (
    "expected train.de-en.de + train.de-en.en, or train.de + train.en, or train.de-en.tsv, or deu-eng.tsv "
    "(also .jsonl, .csv, .parquet, .tmx, .xlf and .zip; each also .gz, .bz2, .xz or .zst; valid.* and test.* likewise)"
)
_NLI = "SNLI, MNLI, XNLI or CNSD as downloaded, s1.train beside s2.train and labels.train, or nli_for_simcse.csv"


@dataclass(frozen=True)
class TextFile:
    """A file of sentences in one language.

    Attributes:
        language: Canonical code; rows that name a language have that one.
        path: The file.
        split: Its split, from its name; None if the name has none.
        family: What the names of files that translate each other have in common; None if the name has no language.
        is_named: Whether the language is that of a name.
    """

    language: str
    path: Path
    split: Split | None = None
    family: str | None = None
    is_named: bool = True

    @property
    def paths(self) -> tuple[Path, ...]:
        """The file and those that belong to it line by line: ``s1.train`` has ``s2.train`` and ``labels.train``."""
        others = ("s2.", "labels.") if PARALLEL.fullmatch(plain_name(self.path)) else ()
        return (self.path, *(self.path.with_name(self.path.name.replace("s1.", other, 1)) for other in others))


@dataclass(frozen=True)
class Bitext:
    """Parallel text of one language pair: two line-aligned files, or two columns of one TSV file.

    Attributes:
        languages: (source, target) as canonical codes.
        paths: Source file and target file, or one TSV file.
        columns: TSV columns of source and target, counted from 0; None for two files, records and archives.
        columns_given: Whether the user named the columns, so that ``orient`` does not change them.
        sample: Largest number of pairs to keep; None leaves it to the cleaning options.
        fields: Names of source and target in records; None: their languages.
    """

    languages: tuple[str, str]
    paths: tuple[str, ...]
    columns: tuple[int, int] | None = None
    columns_given: bool = False
    sample: int | None = None
    fields: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        """The language pair, ``de-en``."""
        return "-".join(self.languages)

    def turned(self) -> Bitext:
        """Return it with the sides exchanged."""
        columns, fields = (sides and (sides[1], sides[0]) for sides in (self.columns, self.fields))
        first, second = self.languages
        return replace(self, languages=(second, first), paths=self.paths[::-1], columns=columns, fields=fields)


class Description(NamedTuple):
    """What the name of a file says about it."""

    split: Split | None
    language: str | None
    """Canonical code of the last language that the name has."""
    family: str | None
    """The name without its language; None if it has none."""


def describe_name(name: str) -> Description:
    """Return what a name says: ``news_test2016.de.tsv`` is German text of the split test."""
    split: Split | None = next((SPLITS[word] for word in re.findall(r"[a-z]+", name.lower()) if word in SPLITS), None)
    if treebank := _TREEBANK.fullmatch(name):
        return Description(split, canonical(treebank[1]), treebank[2])
    codes = [match for match in _CODE_IN_NAME.finditer(name) if is_known(match[0])]
    if not codes:
        return Description(split, None, None)
    return Description(split, canonical(codes[-1][0]), name[: codes[-1].start()] + name[codes[-1].end() :])


# -- parallel text ----------------------------------------------------------------------------------------------------


def parse_bitext(spec: str) -> Bitext:
    """Parse the command line's notation for parallel text. No file is opened.

    The forms are ``de-en=FILE`` for records and archives, with ``:FIELD,FIELD`` if the fields have other names than the
    languages, ``de-en=deu-eng.tsv``, ``de-en=x.tsv:2,1`` (columns of de and en, counted from 1) and
    ``fr-en=train.fr,train.en``; ``@N`` after the files samples N of their pairs. If English is named first, the sides
    are swapped. Raises UserError if the text has another form, or names the same language twice.

    >>> parse_bitext("en-de=x.tsv:1,2")
    Bitext(languages=('de', 'en'), paths=('x.tsv',), columns=(1, 0), columns_given=True, sample=None, fields=None)
    """
    match = _SPEC.fullmatch(spec)
    if not match:
        raise UserError(f"cannot read the parallel text {spec!r}", cure=_SPEC_CURE)
    languages, sample = (canonical(match[1]), canonical(match[2])), int(match[4]) if match[4] else None
    columns, fields = _COLUMNS.fullmatch(match[3]), _FIELDS.fullmatch(match[3])
    if columns:
        bitext = Bitext(languages, (columns[1],), (int(columns[2]) - 1, int(columns[3]) - 1), columns_given=True)
    elif fields and has_records(fields[1]):
        bitext = Bitext(languages, (fields[1],), fields=(fields[2], fields[3]))
    else:
        paths = tuple(match[3].split(","))
        bitext = Bitext(languages, paths, columns_of_pairs(paths))
    first, second = bitext.columns or (0, 1)
    problems = {
        f"names {languages[0]} twice": languages[0] == languages[1],
        "needs two different columns, counted from 1": first == second or min(first, second) < 0,
        f"names {len(bitext.paths)} files": len(bitext.paths) > 2 or not all(bitext.paths),
        "asks for a sample of 0 pairs": sample == 0,
    }
    for problem in (problem for problem, is_there in problems.items() if is_there):
        raise UserError(f"{spec!r} {problem}", cure=_SPEC_CURE)
    return _english_last(replace(bitext, sample=sample))


def columns_of_pairs(paths: Sequence[str]) -> tuple[int, int] | None:
    """Return the columns of source and target, unless it is their languages that tell them in the files."""
    return (0, 1) if len(paths) == 1 and not has_records(paths[0]) and not paths[0].endswith(".zip") else None


def _english_last(bitext: Bitext) -> Bitext:
    return bitext.turned() if bitext.languages[0] == "en" else bitext


def discover_bitext(directory: str | Path) -> dict[str, list[Bitext]]:
    """Find the parallel text in a folder by file names and return ``{"train": [...], "valid": [...], "test": [...]}``.

    Splits without text are left out. ``val``, ``dev`` and ``validation`` mean valid. These names are recognised, each
    also with ``.gz``, ``.bz2``, ``.xz`` or ``.zst``:

    - ``{split}.{xx}-{yy}.{xx}`` beside ``{split}.{xx}-{yy}.{yy}``;
    - ``{split}.{xx}`` beside ``{split}.en``: every language is paired with English (without English there must be
      exactly two languages);
    - ``{split}.{xx}-{yy}.tsv``;
    - any other ``*{xx}-{yy}*.tsv``, which is training text unless a word in its name is a split; and the same with
      ``.jsonl``, ``.csv``, ``.parquet``, ``.tmx``, ``.xlf``, ``.xliff`` or ``.zip``, where languages tell the sides.

    Raises:
        UserError: If there is no training text (the message names the layouts), or a side is missing or there twice.
    """
    directory = Path(directory)
    _refuse_dataset(directory)
    if not directory.is_dir():
        raise UserError("no such folder", path=directory, cure="check the name")
    splits: dict[str, list[Bitext]] = {split: [] for split in ("train", "valid", "test")}
    sides: dict[tuple[str, tuple[str, str] | None], dict[str, str]] = {}
    for file in _files_in(directory):
        *parts, ending = plain_name(file).split(".")
        languages = next(filter(None, map(_pair_of, parts)), None)
        if languages and ending in ("tsv", "zip", *READERS):
            bitext = Bitext(languages, (str(file),), columns_of_pairs([str(file)]))
            splits[describe_name(file.name).split or "train"].append(_english_last(bitext))
        elif parts and parts[0] in SPLITS and len(parts) == (2 if languages else 1) and _is_side(ending, languages):
            files = sides.setdefault((SPLITS[parts[0]], languages), {})
            if (language := canonical(ending)) in files:
                problem = f"a second {language} side beside {files[language]}"
                raise UserError(problem, path=file, cure="remove one of the two")
            files[language] = str(file)
    for (split, languages), files in sides.items():
        splits[split] += _pair_sides(directory, split, languages, files)
    if not splits["train"]:
        raise UserError("no parallel training text found", path=directory, cure=_LAYOUTS)
    return {split: bitexts for split, bitexts in splits.items() if bitexts}


def _pair_of(part: str) -> tuple[str, str] | None:
    """Return the language pair that a part of a name is, of which one must be known (``dev-de`` has a split in it)."""
    pair = _PAIR.fullmatch(part)
    if pair and pair[1] not in SPLITS and (is_known(pair[1]) or is_known(pair[2])):
        first, second = canonical(pair[1]), canonical(pair[2])
        return (first, second) if first != second else None
    return None


def _is_side(ending: str, pair: Sequence[str] | None = None) -> bool:
    """Return whether a name ends in a language: one of a pair, or one that xrep knows."""
    if pair:
        return canonical(ending) in pair
    return re.fullmatch(_CODE, ending) is not None and is_known(ending) and ending.lower() not in _OTHER_ENDINGS


def _pair_sides(directory: Path, split: str, languages: tuple[str, str] | None, files: dict[str, str]) -> list[Bitext]:
    """Pair the sides of one split: as their names say, every language with English, or the only two languages."""
    if languages is None and "en" in files and len(files) > 1:
        return [Bitext((other, "en"), (files[other], files["en"])) for other in files if other != "en"]
    wanted = languages or tuple(files)
    if set(files) != set(wanted) or len(wanted) != 2:
        raise UserError(f"{split} has {', '.join(sorted(files))}, which makes no pairs", path=directory, cure=_LAYOUTS)
    return [_english_last(Bitext((wanted[0], wanted[1]), (files[wanted[0]], files[wanted[1]])))]


# -- text of one language ---------------------------------------------------------------------------------------------


def find_text(data: str | Path) -> dict[str, list[TextFile]]:
    """Find the text files by split: ``{"train": [...], "valid": [...]}``, without ``valid`` if there is none.

    Args:
        data: Either ``de=FILE,en=FILE``, all of it training text, where a language may occur more than once; or a
            folder. In a folder, the last part of a file's name must be a language (``news.2012.de``, ``de.txt``,
            ``train.de.gz``). A file is training text unless its name contains another split. Other files, and those of
            the split test, are ignored.

    Raises:
        UserError: If ``data`` has another form, or the folder does not exist or has no training text.
    """
    specs = [_TEXT_SPEC.fullmatch(spec) for spec in re.split(rf",(?={_CODE}=)", str(data))]
    if all(specs) and not Path(data).exists():
        files = [TextFile(canonical(spec[1]), Path(spec[2])) for spec in specs if spec]
        for file in files:
            if file.path.exists() and not file.path.is_file() and not file.path.is_dir():
                problem = "a pipe or device, but the text is read several times"
                raise UserError(problem, path=file.path, cure="copy it to a file")
        return {"train": files}
    folder = Path(data)
    if not folder.is_dir():
        raise UserError("no such folder", path=folder, cure=f"check the name; {_TEXT_LAYOUTS}")
    splits: dict[str, list[TextFile]] = {"train": [], "valid": [], "test": []}
    for path in _files_in(folder):
        name = plain_name(path)
        name = name.rpartition(".")[0] if ending_of(path) in ("txt", "zip", *READERS) else name
        if _is_side(language := name.rpartition(".")[2]):
            splits[describe_name(name).split or "train"].append(TextFile(canonical(language), path))
    if not splits["train"]:
        raise UserError("no training text found", path=folder, cure=_TEXT_LAYOUTS)
    return {split: files for split, files in splits.items() if files and split != "test"}


# -- annotated text ---------------------------------------------------------------------------------------------------


def discover(path: str | Path, language: str, accepts: Callable[[Path], bool], what: str, forms: str) -> list[TextFile]:
    """Find the files of annotated text in a folder and its subfolders; a single file may be named as well.

    The split and the language are parts of the file's name (``dev-de.tsv``, ``xquad.es.json``,
    ``en_ewt-ud-train.conllu``), or of the names of its folders (``de/test_2k.tsv``). If the same rows are there as
    .jsonl and as a table (SNLI), they are read from .jsonl.

    Args:
        language: Language of files that do not name it.
        accepts: Function that returns whether a file of a folder is searched for.
        what, forms: What is searched for, and how the names of such files end, for the message.

    Raises:
        UserError: The path does not exist, or no file is suitable.
    """
    path = Path(path)
    found = [file for file in _files_in(path, DEPTH) if file == path or accepts(file)]
    if not found:
        raise UserError(f"no {what}", path=path, cure=f"name a file, or a folder of files that end in {forms}")
    files = []
    for file in _once(found):
        inside = file.relative_to(path).parts[:-1]
        # The nearest name that has a split or a language decides.
        said = [describe_name(name) for name in (plain_name(file), *reversed(inside))]
        split, code = (next(filter(None, values), None) for values in list(zip(*said, strict=True))[:2])
        files.append(TextFile(code or canonical(language), file, split, is_named=code is not None))
    return files


def of_split(files: Iterable[TextFile], split: Split) -> list[TextFile]:
    """Return the files of a split. A file whose name has no split may be training text as well as a test; it is never a
    dev split."""
    splits = (split,) if split == "valid" else (split, None)
    return [file for file in files if file.split in splits]


def discover_nli(
    path: str | Path, language: str, what: str = "natural language inference", names: str = _NLI
) -> dict[str, list[TextFile]]:
    """Find the files of the splits ``train`` and ``valid`` in a file, a folder or, if it has none, the folders in it.

    Args:
        language: Language of the files whose names do not contain one.
        what, names: What is searched for, and what the user may name, for the message.

    Raises:
        UserError: If the path does not exist or there is no training text.
    """
    splits = _discover_nli(Path(path), canonical(language), ("train", "valid"))
    if not splits["train"]:
        raise UserError(f"no training text for {what}", path=path, cure=f"name {names}")
    return {split: files for split, files in splits.items() if files}


def discover_nli_test(path: str | Path, split: str, language: str) -> list[TextFile]:
    """Find the files of the split ``test`` or ``dev`` as ``discover_nli``; raises UserError if there is none."""
    files = _discover_nli(Path(path), canonical(language), (SPLITS[split],))[SPLITS[split]]
    if not files:
        cure = "name XNLI, SNLI, MNLI or CNSD as downloaded, or another `split`"
        raise UserError(f"no {split} split for natural language inference", path=path, cure=cure)
    return files


def _discover_nli(path: Path, language: str, splits: tuple[Split, ...]) -> dict[Split, list[TextFile]]:
    files = _nli_files(_files_in(path), language, splits)
    if not files and path.is_dir():
        files = _nli_files([file for file in _files_in(path, 1) if file.parent != path], language, splits)
    return {split: [file for file in files if file.split == split] for split in splits}


def _nli_files(candidates: list[Path], language: str, splits: tuple[Split, ...]) -> list[TextFile]:
    """Return the recognised files that belong to the given splits."""
    files = []
    for path in _once(candidates):
        name, ending = plain_name(path), ending_of(path)
        stem, split = name.removesuffix(f".{ending}"), describe_name(name).split
        # A .txt without a split in its name may be a README.txt.
        is_table = ending == "tsv" or ending == "txt" and split is not None
        if PARALLEL.fullmatch(name) or ending in ("csv", "jsonl") or is_table:
            _, code, family = describe_name(stem)
            if family is None or not stem.startswith(family):  # my_train.tsv is not in Burmese
                code, family = "zh" if name.startswith("cnsd") else language, None
            files.append(TextFile(code or language, path, split or "train", family))
    return [file for file in files if file.split in splits]


def _once(files: list[Path]) -> list[Path]:
    """Return files without the tables whose rows are there as .jsonl, too (SNLI)."""
    objects = {file.parent / plain_name(file) for file in files if ending_of(file) == "jsonl"}
    twins = {file: file.parent / f"{plain_name(file).rpartition('.')[0]}.jsonl" for file in files}
    return [file for file in files if ending_of(file) not in ("tsv", "txt") or twins[file] not in objects]


def _refuse_dataset(path: Path) -> None:
    if is_dataset(path):
        cure = "give its pairs to xrep-preprocess, or save it as .jsonl"
        raise UserError("data sets are not read here", path=path, cure=cure)


def _files_in(path: Path, depth: int = 0) -> list[Path]:
    """Return the files in a folder, and those in ``depth`` levels of folders below it, sorted; or the file itself.
    Raises UserError if there is neither."""
    _refuse_dataset(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError("no such file or folder", path=path, cure="check the name")
    entries = [entry for entry in path.iterdir() if not entry.name.startswith((".", "_"))]
    files = [entry for entry in entries if entry.is_file()]
    below = (_files_in(entry, depth - 1) for entry in entries if entry.is_dir() and depth)
    return sorted(itertools.chain(files, *below))

"""Records, translation memories, archives and compressed text that are damaged on purpose."""

from __future__ import annotations

import bz2
from pathlib import Path

import pytest

from tests.hostile.fuzzing import Fuzz, files_like
from tests.text.test_formats import (
    OPUS,
    PAIRS,
    XLIFF1,
    XLIFF2,
    csv_of,
    jsonl,
    parquet_of,
    side,
    tmx,
    xliff,
    zipped,
    zstd_of,
)  # fmt: skip
from xrep.text.exclusion import load_exclusion
from xrep.text.readers import parse_bitext, read_pairs, read_text

FILES = {
    "a.tmx": (tmx(), tmx(encoding="utf-16")),
    "a.xlf": (xliff(XLIFF1), xliff(XLIFF2)),
    "a.jsonl": (jsonl(), jsonl(nested=True)),
    "a.csv": (csv_of(), csv_of(separator=";")),
    "a.zip": (zipped(OPUS), zipped({"a.tmx": tmx()}), zipped({"a.tsv": b"a\tb\n"})),
    "a.tsv": (bz2.compress(b"a\tb\n"),),
}


def read(path: Path) -> None:
    """Read everything that the file can be read as, as far as the first way that succeeds."""
    list(read_text(path, "de"))
    list(read_pairs(parse_bitext(f"de-en={path}")))
    load_exclusion([path])


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_formats(fuzz: Fuzz, name: str) -> None:
    fuzz(f"text in {name[1:]}", name, files_like(*FILES[name]), read)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.tmx", "a.zip", "a.jsonl"])
def test_pairs(fuzz: Fuzz, name: str) -> None:
    def pairs(path: Path) -> None:
        list(read_pairs(parse_bitext(f"de-en={path}")))

    fuzz(f"pairs in {name[1:]}", name, files_like(*FILES[name]), pairs)


@pytest.mark.slow
def test_parquet(fuzz: Fuzz) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    fuzz("text in .parquet", "a.parquet", files_like(parquet_of(PAIRS)), read)


@pytest.mark.slow
def test_zstd(fuzz: Fuzz) -> None:
    pytest.importorskip("zstandard", reason="the extra zstd is not installed")
    fuzz("text in .zst", "a.tsv", files_like(zstd_of(PAIRS), zstd_of(PAIRS) + side(0)), read)

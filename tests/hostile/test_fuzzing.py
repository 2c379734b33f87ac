"""The fuzzer itself finds what it is there to find."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.hostile.fuzzing import Fuzz, files_like
from xrep.errors import UserError

NUMBERS = files_like(b"1\n2\n3\n")


def test_a_good_reader_passes_and_is_counted(fuzz: Fuzz) -> None:
    def read(path: Path) -> list[int]:
        try:
            return [int(line) for line in path.read_bytes().splitlines()]
        except ValueError as error:
            raise UserError(str(error), path=path) from None

    lines = list[str]()
    fuzz.report = lines.append
    fuzz("numbers", "numbers.txt", NUMBERS, read)
    assert lines[0].startswith("numbers: ") and " 0 read" not in lines[0] and " 0 refused" not in lines[0]


def test_a_traceback_is_found(fuzz: Fuzz) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        fuzz("numbers", "numbers.txt", NUMBERS, lambda path: [int(line) for line in path.read_bytes().splitlines()])


def test_what_is_written_is_found(fuzz: Fuzz) -> None:
    with pytest.raises(AssertionError, match="wrote something"):
        fuzz("numbers", "numbers.txt", NUMBERS, lambda path: path.write_bytes(b"mine"), inputs=20)


def test_a_hang_is_found(fuzz: Fuzz) -> None:
    def read(path: Path) -> None:
        end = time.process_time() + 4.1
        while time.process_time() < end:
            path.exists()

    with pytest.raises(AssertionError, match="too long"):
        fuzz("numbers", "numbers.txt", st.just(b""), read, inputs=1)


def test_memory_is_counted(fuzz: Fuzz) -> None:
    with pytest.raises(AssertionError, match="too much memory"):
        fuzz("numbers", "numbers.txt", NUMBERS, lambda path: b"x" * 300_000_000, inputs=20)

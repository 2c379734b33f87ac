"""The files and functions that CONTRIBUTING.md names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
STOPS = re.findall(r"^\| \d+ \| `(\S+\.py)`: (.*?) \|", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("file", "functions"), STOPS)
def test_each_stop_on_the_way_of_a_line_exists(file: str, functions: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    for name in re.findall(r"`([\w.]+)`", functions):
        for part in name.split("."):
            assert re.search(rf"^ *(def|class) {part}\b", source, re.MULTILINE), f"{file} has no {part}"

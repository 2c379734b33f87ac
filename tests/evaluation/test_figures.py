import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import xrep
from tests.evaluation.conftest import NgramEncoder, save_hashes
from xrep.evaluation.encoders import Overlap, seen, total
from xrep.evaluation.evaluation import Figures
from xrep.evaluation.runner import differences
from xrep.files import json_text


def test_a_record_says_what_made_the_figures(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("a\n")
    with zipfile.ZipFile(tmp_path / "texts.zip", "w") as archive:
        archive.write(tmp_path / "data.txt", "text.de")
    files = [tmp_path / "data.txt", tmp_path / "texts.zip" / "text.de"]
    overlaps = Overlap(1, 9), None, Overlap(1, 9, dropped=True)
    first, other, dropped = (
        Figures(
            text="a table", values={}, headline={"mean": 1.5 + by}, files=files, settings={"k": 4},
            resamples={"mean": by + np.repeat([1.0, 2.25], 500)}, overlap=overlap,
        )
        for by, overlap in zip((0, 0.25, 1), overlaps, strict=True)
    )  # fmt: skip
    lines = ["a table", "mean: 95% interval 1.00 to 2.25", "overlap: 1 of 9 test examples were in the training text"]
    assert first.printed().splitlines() == lines
    record = json.loads(json_text(first.record("sts", NgramEncoder())))
    assert record["intervals"] == {"mean": [1.0, 2.25]} and record["settings"] == {"k": 4}
    digests = (hashlib.sha256(content).hexdigest() for content in (b"a\n", (tmp_path / "texts.zip").read_bytes()))
    assert record["data"] == dict(zip(map(str, files), digests, strict=True))
    assert record["overlap"] == {"found": 1, "total": 9, "dropped": False} and record["version"] == xrep.__version__
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"mean": float("nan")})
    # Differences are those of the same draws.
    assert differences(first, other)["mean"] == pytest.approx((0.25, 0.25, 0.25)) and differences(first, dropped) == {}
    # There are none if the tables differ, also those of one of several tests.
    german, spanish = (replace(first, values={"tables": {code: {"examples": 4}}}) for code in ("de", "es"))
    several = [replace(first, parts={"sts": first, "tatoeba": own}) for own in (german, spanish)]
    assert differences(german, german)["mean"][0] == 0 and differences(german, spanish) == {}
    assert differences(*several) == {"sts: mean": (0, 0, 0)}


def test_columns_are_counted_by_row_and_tests_add_up(tmp_path: Path) -> None:
    hashes = save_hashes(tmp_path, ["a b", "c d"])
    assert seen((["A b!", "x", "y"], ["c, d", "z", "C D"]), hashes).tolist() == [True, False, True]
    line = "overlap: 2 of 3 test examples were in the training text, left out"
    assert Overlap(2, 3, dropped=True).line == line
    assert total([Overlap(1, 2), Overlap(3, 4)]) == Overlap(4, 6)
    assert total([Overlap(1, 2), Overlap(None, 4)]) == Overlap(None, 6)
    # A sentence without words was never seen.
    hashes = save_hashes(tmp_path, ["...", *(f"sentence {i}" for i in range(1000))])
    assert seen([[f"Sentence {i}!" for i in range(500, 1500)]], hashes).sum() == 500
    assert seen([["?!", "SENTENCE 5"]], hashes).tolist() == [False, True]
    assert not seen([["?!", "YES"]], save_hashes(tmp_path, [])).any()

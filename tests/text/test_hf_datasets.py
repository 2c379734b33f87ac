"""Text of the library ``datasets``, in folders as it writes them, and the errors without network."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs
from xrep.errors import UserError
from xrep.jobs.outputs import states_of
from xrep.text.cleaning import sentence_hashes
from xrep.text.examples import orient, read_pairs, read_sentences, read_text
from xrep.text.exclusion import load_exclusion
from xrep.text.find import find_text, parse_bitext

datasets = pytest.importorskip("datasets", reason="the extra datasets is not installed")
PAIRS = sentence_pairs(40)
NESTED = datasets.Dataset.from_list(
    [{"id": n, "translation": {"de": de, "en": en}} for n, (de, en) in enumerate(PAIRS)]
)
FLAT = datasets.Dataset.from_list([{"de": de, "en": en, "n": n} for n, (de, en) in enumerate(PAIRS)])
CONFIGS = """---
configs:
- {config_name: first, data_files: a.parquet}
- {config_name: second, data_files: b.parquet}
---
"""
Write = Callable[[Any, Path], object]


def in_shards(data: Any, folder: Path) -> None:
    data.save_to_disk(folder, num_shards=3)
    (folder / "cache-0123.arrow").write_bytes(b"left by map")


WRITE: dict[str, Write] = {
    "saved": in_shards,
    "saved splits": lambda data, folder: datasets.DatasetDict(train=data, test=data.select([0])).save_to_disk(folder),
    "parquet": lambda data, folder: data.to_parquet(folder / "train.parquet"),
    "jsonl": lambda data, folder: data.to_json(folder / "data" / "train-00000-of-00001.jsonl"),
    "csv": lambda data, folder: data.to_csv(folder / "train.csv"),
}


@pytest.mark.parametrize("name", WRITE)
def test_pairs_of_folders(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, data = tmp_path / "my data", FLAT if name == "csv" else NESTED
    (folder / "data").mkdir(parents=True)
    WRITE[name](data, folder)
    named, inner = f"hf:{folder}:train", "translation." if data is NESTED else ""
    monkeypatch.chdir(tmp_path)
    for spec in (f"de-en={named}:{inner}de,{inner}en", f"en-de={named}:{inner}en,{inner}de@9", f"deu-eng={named}",
                 f"de-en=hf:my data:train:{inner}de,{inner}en"):  # fmt: skip
        bitext = parse_bitext(spec)
        assert bitext.languages == ("de", "en") and orient(bitext) == (bitext, None)
        assert list(read_pairs(bitext)) == [(row, *pair) for row, pair in enumerate(PAIRS, 1)], spec
    rows = list(read_pairs(parse_bitext(f"de-en={named}[10:12]:{inner}de,{inner}en")))
    assert rows == [(11, *PAIRS[10]), (12, *PAIRS[11])]
    assert [text for _, text in read_text(f"{named}[38:]:{inner}en")] == [en for _, en in PAIRS[38:]]
    (file,) = find_text(f"de={named}:{inner}de")["train"]
    assert [text for text, _ in read_sentences(file)] == [de for de, _ in PAIRS]
    assert load_exclusion([named]).contains(sentence_hashes([text for pair in PAIRS for text in pair])).all()


def test_splits_and_configurations(tmp_path: Path) -> None:
    def texts(named: str) -> list[str]:
        return [text for _, text in read_text(f"hf:{tmp_path}{named}:en")]

    for file, rows in (("a", [0]), ("b", [1, 2])):
        FLAT.select(rows).to_parquet(tmp_path / f"{file}.parquet")
    (tmp_path / "README.md").write_text(CONFIGS)
    english = [en for _, en in PAIRS]
    assert texts("/first:train") == english[:1] and texts("/second:train") == texts("/second:train+train")[2:]
    states = states_of([f"hf:{tmp_path}/first:train"])
    assert states == states_of([f"hf:{tmp_path}/first:train"])
    FLAT.select([3]).to_parquet(tmp_path / "a.parquet")
    assert texts("/first:train") == english[3:4] and states != states_of([f"hf:{tmp_path}/first:train"])


def test_words_of_csv_that_mean_nothing_elsewhere_are_text(tmp_path: Path) -> None:
    words = ["NA", "null", "None", "nan", "", "x"]
    datasets.Dataset.from_dict({"de": words, "en": [*"abcdef"], "n": [1, None, 3, 4, 5, 6]}).to_csv(tmp_path / "a.csv")
    assert [text for _, text in read_text(f"hf:{tmp_path}:train:de")] == words


@pytest.mark.parametrize(("spec", "problem"), [
    ("absent:train:de,en", "absent: no such folder; check the name"),
    ("folder:valid:de,en", r"folder:valid: datasets cannot read it \(Bad split: valid. Available splits: "),
    ("saved:valid:de,en", "saved: it has the split train, not valid; name hf:.*/saved:train"),
    ("unnamed:valid:de,en", "unnamed: it has the split train, not valid; name hf:.*/unnamed:train"),
    ("folder:train:de,fr", r"folder:train:1: no text 'fr' in it; there are de, en; name the fields"),
    ("folder:train:de", "not the name of a data set; write hf:NAME:SPLIT"),
    ("folder", "not the name of a data set; write hf:NAME:SPLIT"),
    ("folder:train[:10%]:de,en", "not the name of a data set; write hf:NAME:SPLIT"),
    ("empty:train:de,en", "doesn't contain any data files"),
    ("damaged:train:de,en", "damaged/train.parquet: not a file of Parquet, or a damaged one; fetch it again"),
    ("program:train:de,en", "scripts are no longer supported"),
    ("configs/third:train:de,en", r"'third' not found. Available: \['first', 'second'\]\); check the name, the config"),
])  # fmt: skip
def test_mistakes_are_one_line(tmp_path: Path, spec: str, problem: str) -> None:
    for name in ("folder", "empty", "damaged", "program", "configs"):
        (tmp_path / name).mkdir()
    FLAT.to_parquet(tmp_path / "folder" / "train.parquet")
    datasets.Dataset.from_dict(FLAT.to_dict(), split="train[:10%]").save_to_disk(tmp_path / "saved")
    FLAT.save_to_disk(tmp_path / "unnamed")
    (tmp_path / "damaged" / "train.parquet").write_bytes(b"damaged")
    (tmp_path / "program" / "program.py").write_text("raise SystemExit('executed')")
    (tmp_path / "configs" / "README.md").write_text(CONFIGS)
    for file in ("a", "b"):
        FLAT.to_parquet(tmp_path / "configs" / f"{file}.parquet")
    with pytest.raises(UserError, match=problem) as caught:
        list(read_pairs(parse_bitext(f"de-en=hf:{tmp_path}/{spec}")))
    assert "\n" not in str(caught.value) and caught.value.cure


def test_without_the_package_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"library datasets; pip install 'xrep\[datasets\]'"):
        list(read_text("hf:org/name:train:en"))


def test_the_hub_is_known_by_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[str, str | None]]()

    class Builder:
        hash = "0123"

    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *named: asked.append(named) or Builder)
    assert states_of(["hf:wmt/wmt16/de-en:train"]) == [["hf:wmt/wmt16/de-en:train", "0123"]]
    assert states_of(["hf:wmt/wmt16:train:de"]) == [["hf:wmt/wmt16:train", "0123"]]
    assert asked == [("wmt/wmt16", "de-en"), ("wmt/wmt16", None)]


@pytest.mark.slow
def test_without_network_there_is_one_line(tmp_path: Path) -> None:
    spec = "de-en=hf:wmt/wmt16/de-en:train:translation.de,translation.en"
    command = [sys.executable, "-m", "xrep_cli.preprocess", "--bitext", spec, "--destdir", "out"]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "HF_HOME": str(tmp_path / "hf"),
    }
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "Couldn't reach 'wmt/wmt16' on the Hub" in result.stderr and "check the network and the" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_data_directory_of_a_data_set(tmp_path: Path, cli: Commands) -> None:
    """It is that of the same text in files."""
    FLAT.to_parquet(tmp_path / "train.parquet")
    made = []
    for source in (f"hf:{tmp_path}:train", f"{tmp_path}/train.parquet"):
        out = tmp_path / f"out{len(made)}"
        result = cli(
            "preprocess", "--bitext", f"de-en={source}", "--vocab-size", 90, "--valid-size", 0, "--destdir", out
        )
        assert result.code == 0, result.err
        made.append({file.name: file.read_bytes() for file in out.glob("train.*")})
    assert made[0] == made[1] and len(made[0]) > 3

"""``xrep-eval`` on a real checkpoint that is small and untrained."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import SENTENCES, write_tatoeba, write_vectors_of_text
from tests.support.commands import Commands
from tests.support.corpus import write_lines
from tests.support.encoders import write_encoder
from xrep.evaluation.all import find_tests
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.registry import EVALUATIONS

ENGLISH = SENTENCES["en"]


@pytest.mark.slow
def test_everything_at_once(encoder: Path, tatoeba: Path, cli: Commands) -> None:
    pytest.importorskip("matplotlib")
    files = "--json out.json --plot out.png".split()
    result = cli("eval", "tatoeba", "--path", encoder, "--data", tatoeba, *files)
    assert (result.code, result.err) == (0, "")
    record = json.loads((cli.folder / "out.json").read_text(encoding="utf-8"))
    assert "German (de)" in result.out and "random" not in result.out
    assert "overlap: 3 of 12 " in result.out  # "Tom loves music" occurs with both languages
    assert record["overlap"]["found"] == 3 and record["model"]["path"] == str(encoder)
    assert record["settings"]["margin"] == "absolute" and len(record["data"]) == 4
    assert (cli.folder / "out.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir(cli.folder)) == ["out.json", "out.png"]
    for language in ("de", "fr"):
        x, y = (SentenceEncoder.load(encoder).encode(SENTENCES[side], side) for side in (language, "en"))
        similarity, lines = x @ y.T, np.arange(len(x))
        measured = record["values"]["tables"][language]
        assert measured["xx-en"] == 100 * np.mean(similarity.argmax(axis=1) == lines)
        assert measured["en-xx"] == 100 * np.mean(similarity.argmax(axis=0) == lines)


@pytest.mark.slow
def test_two_encoders_are_measured_and_compared(encoder, tatoeba, cli, measure, tmp_path):
    other = write_vectors_of_text(tmp_path / "other")
    alone = [measure("tatoeba", "--path", path, "--data", tatoeba) for path in (encoder, other)]
    both = ["--path", encoder, "--path", other, "--data", tatoeba]
    printed = cli("eval", "tatoeba", *both, "--json", "out.json").out
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["models"] == {record["model"]["path"]: record for record in alone}
    header, _, row = printed.splitlines()[-3:]
    assert header.split() == ["figure", str(encoder), str(other), "difference"] and row.startswith("mean of 2")
    difference, low, high = written["differences"][str(other)]["mean of 2"]
    assert difference == alone[1]["headline"]["mean of 2"] - alone[0]["headline"]["mean of 2"]
    assert low <= difference <= high and row.endswith(f"  {difference:+.2f} [{low:+.2f}, {high:+.2f}]")
    spans = [np.diff(record["intervals"]["mean of 2"])[0] for record in alone]
    assert high - low < np.hypot(*spans)  # the models are right on many of the same examples
    for record in alone:
        value, (low, high) = record["headline"]["mean of 2"], record["intervals"]["mean of 2"]
        assert low <= value <= high and f"{value:.2f} [{low:.2f}, {high:.2f}]" in row
    assert f"\n{other}:\nlanguage" in printed


def write_sts(folder: Path) -> None:
    pairs = zip(ENGLISH, [*ENGLISH[1:], "Tom loves music!"], strict=True)
    rows = [f"genre\tfile\tyear\t{i}\t{i % 4}.5\t{one}\t{other}" for i, (one, other) in enumerate(pairs)]
    write_lines(folder / "STSBenchmark" / "sts-test.csv", rows)


@pytest.fixture
def two_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which ``all`` finds sts and tatoeba alone: text for the others would not be as short."""
    for name in EVALUATIONS.names():
        if name not in ("sts", "tatoeba"):
            monkeypatch.setattr(EVALUATIONS.load(name), "find", lambda folder: {})
    write_lines(tmp_path / "data" / "notes.txt", ["no data"])
    write_tatoeba(tmp_path / "data" / "tatoeba")
    write_sts(tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.slow
def test_all_measures_what_it_finds_and_names_what_fails(encoder, two_tests, cli, measure):
    options = ["all", "--path", encoder, "--data", two_tests, "--drop-overlap", "--json", "out.json", "--langs", "all"]
    done = cli("eval", *options)
    record = json.loads((cli.folder / "out.json").read_text(encoding="utf-8"))
    results = record["values"]["results"]
    assert done.code == 0 and done.err.splitlines() == ["1 of 2: sts", "2 of 2: tatoeba"]
    assert set(results) == {"tatoeba", "sts"} and not record["values"]["failed"]
    for name, folder in (("tatoeba", two_tests / "tatoeba"), ("sts", two_tests)):
        alone = measure(name, "--path", encoder, "--data", folder, "--drop-overlap")
        assert alone["values"] == results[name]["values"]
    assert record["headline"]["tatoeba: mean of 2"] == results["tatoeba"]["headline"]["mean of 2"]
    assert "tatoeba: overlap: 3 of 12 test examples were in the training text, left out" in done.out

    write_lines(two_tests / "STSBenchmark" / "sts-test.csv", ["one column"])
    done = cli("eval", *options)
    assert done.code == 2 and "sts: not measured: " in done.out and "mean of 2" in done.out
    assert done.err.splitlines()[-1].startswith("xrep-eval: error: sts could not be measured; ")
    values = json.loads((cli.folder / "out.json").read_text(encoding="utf-8"))["values"]
    assert values["failed"]["sts"].startswith(str(two_tests)) and "Traceback" not in done.err
    assert values["results"]["tatoeba"]["values"] == results["tatoeba"]["values"]


@pytest.mark.slow
def test_all_measures_the_languages_of_the_training_text(two_tests: Path, cli: Commands, tmp_path: Path) -> None:
    german = write_encoder(tmp_path / "german" / "best")
    spanish = write_encoder(tmp_path / "spanish" / "best", languages=(["es"], ["en"]))
    none = {"sts": "no data in fr es"}, {"tatoeba": "no data in en es"}
    for path, more, measured, left_out, said in (
        (german, [], ["de"], {}, "languages of the encoder's training text: de,en"),
        (german, ["--langs", "fra,eng"], ["fr"], {}, ""),
        (german, ["--langs", "all"], ["de", "fr"], {}, ""),
        (german, ["--langs", "fr, es"], ["fr"], none[0], "sts: left out: no data in fr es"),
        (spanish, [], [], none[1], ""),
    ):
        done = cli("eval", "all", "--path", path, "--data", two_tests, "--json", "out.json", *more)
        values = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["values"]
        languages = values["results"]["tatoeba"]["values"]["tables"] if "tatoeba" in values["results"] else []
        assert (list(languages), values["left_out"]) == (measured, left_out) and said in done.out + done.err


def test_all_knows_the_published_files_by_their_names(tmp_path: Path) -> None:
    files = (
        "t/tatoeba.deu-eng.deu t/tatoeba.deu-eng.eng b/one/zh-en.dev.gold b/two/de-en.training.gold "
        "b/two/de-en.test.gold x/STS12-en-test/STS.input.a.txt x/MR/rt-polarity.pos x/STSBenchmark/sts-test.csv "
        "notes/readme.txt"
    )
    for name in files.split():
        write_lines(tmp_path / name, [])
    tests = find_tests(tmp_path)
    expected = {
        "alignment": "x/STSBenchmark/sts-test.csv", "bucc b/one": "b/one", "bucc b/two": "b/two",
        "language-bias": "t", "senteval": "", "sts": "", "tatoeba": "t",
    }  # fmt: skip
    assert {label: Path(config.data) for label, (_, config) in tests.items()} == {
        label: tmp_path / place for label, place in expected.items()
    }
    assert all(name == label.split()[0] for label, (name, _) in tests.items())
    assert tests["bucc b/one"][1].oracle and not tests["bucc b/two"][1].oracle  # one split alone


def test_help_does_not_wait_for_torch() -> None:
    names = [name for name in EVALUATIONS.names() if EVALUATIONS.target(name).startswith("xrep.evaluation.")]
    script = f"import sys; from xrep_cli.eval import TestCommand; [TestCommand(name).fields for name in {names}]"
    subprocess.run([sys.executable, "-c", f"{script}; assert 'torch' not in sys.modules"], check=True)


def test_kept_products_are_limited_before_the_first_one(encoder, tatoeba, cli, tmp_path, monkeypatch):
    """A plugin is imported before anything is computed; what the user has set stays as it is."""
    torch_limit, onednn_limit = "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    (tmp_path / "asks_for_limits.py").write_text(
        f"import os\nfound = [os.environ.get(name) for name in ({torch_limit!r}, {onednn_limit!r})]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(torch_limit, raising=False)
    monkeypatch.setenv(onednn_limit, "77")
    given = ["--path", encoder, "--data", tatoeba, "--plugin", "asks_for_limits"]
    assert cli("eval", "tatoeba", *given).code == 0
    import asks_for_limits  # type: ignore[import-not-found]

    assert asks_for_limits.found == ["16", "77"]


def test_pairs_in_an_object_store_are_recorded_as_those_of_this_machine(encoder, cli, tmp_path):
    """fsspec reads the addresses file:// as it reads those of a store."""
    write_lines(tmp_path / "pairs.tsv", map("\t".join, zip(SENTENCES["de"], SENTENCES["en"], strict=True)))
    records = []
    for place in (tmp_path / "pairs.tsv", f"file://{tmp_path}/pairs.tsv"):
        done = cli("eval", "xsim", "--path", encoder, "--data", f"de-en={place}", "--neighbours", 2, "--json")
        records.append(json.loads(done.out))
        assert records[-1]["data"].keys() == {str(place)}
    assert len({*records[0]["data"].values(), *records[1]["data"].values()}) == 1
    assert records[0]["values"] == records[1]["values"]


def test_sentences_are_listed_on_standard_output(encoder, tatoeba, cli):
    line = ["eval", "tatoeba", "--data", tatoeba, "--langs", "de", "--list-sentences"]
    assert cli(*line, "listed.tsv.gz").code == 0
    done = cli(*line, "-")
    assert done.err == "12 sentences: -\n" and not done.wrote
    assert done.out == gzip.decompress((cli.folder / "listed.tsv.gz").read_bytes()).decode()


@pytest.mark.parametrize("test, place", [("tatoeba", ""), ("bucc", ""), ("sts", ""), ("language-bias", "/mt.{lang}")])
def test_folders_in_an_object_store_are_refused(test, place, cli):
    done = cli("eval", test, "--path", "enc", "--data", f"s3://bucket/data{place}")
    problem = "the data of this test is found in folders of this machine; copy it from the store"
    assert (done.code, done.err) == (2, f"xrep-eval: error: s3://bucket/data{place}: {problem}\n")

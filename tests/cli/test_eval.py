"""``xrep-eval`` on a real checkpoint that is small and untrained."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.encoders import write_encoder
from xrep.evaluation import tatoeba
from xrep.evaluation.all import find_tests
from xrep.evaluation.encoders import open_encoder
from xrep.evaluation.tatoeba import Tatoeba
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.metrics.retrieval import accuracy_of
from xrep.registry import EVALUATIONS
from xrep.text.cleaning import sentence_hashes
from xrep_cli.eval import build_parser, main

GERMAN = """\
Maria wohnt seit 1998 in Berlin.
Das Hotel hat 45 Zimmer und eine Bar.
Wir trinken Wasser.
Der Präsident besuchte Japan im Oktober.
Hast du das Buch gelesen?
Tom liebt Musik.
"""
ENGLISH = """\
Maria has lived in Berlin since 1998.
The hotel has 45 rooms and a bar.
We drink water.
The president visited Japan in October.
Did you read the book?
Tom loves music.
"""
FRENCH = """\
Maria vit à Berlin depuis 1998.
L'hôtel a 45 chambres et un bar.
Nous buvons de l'eau.
Le président a visité le Japon en octobre.
As-tu lu le livre ?
Tom aime la musique.
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tatoeba")
    for code, text in (("deu", GERMAN), ("fra", FRENCH)):
        (folder / f"tatoeba.{code}-eng.{code}").write_text(text, encoding="utf-8")
        (folder / f"tatoeba.{code}-eng.eng").write_text(ENGLISH, encoding="utf-8")
    return folder


def _checkpoint(path: Path, towers: str, normalize: bool) -> Path:
    sentences = (GERMAN + ENGLISH + FRENCH).splitlines()
    return write_encoder(path, towers=towers, normalize=normalize, size=32, sentences=sentences, vocabulary_size=100)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an encoder of one tower with hashes of training text: one German sentence and one English sentence."""
    folder = tmp_path_factory.mktemp("run-shared")
    np.save(folder / "training_hashes.npy", np.unique(sentence_hashes(["wir trinken WASSER", "Tom loves music!"])))
    return _checkpoint(folder / "best", "shared", normalize=False)


@pytest.fixture(scope="module")
def separate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _checkpoint(tmp_path_factory.mktemp("run-separate") / "best", "separate", normalize=True)


def _eval(*options: object) -> int:
    return main(["tatoeba", *map(str, options)])


def test_everything_at_once(shared: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("matplotlib")
    files = {"--json": tmp_path / "out.json", "--plot": tmp_path / "out.png", "--save-embeddings": tmp_path / "vectors"}
    options = [part for pair in files.items() for part in pair]
    assert _eval("--path", shared, "--data", data, *options) == 0
    printed = capsys.readouterr()
    values = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert printed.err == ""
    assert "German (de)" in printed.out and "random" not in printed.out
    assert "overlap: 3 of 12 " in printed.out  # "Tom loves music" occurs with both languages
    assert values["overlap"]["found"] == 3 and values["model"]["path"] == str(shared)
    assert values["settings"]["margin"] == "absolute" and len(values["data"]) == 4
    values = values["values"]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.png", "vectors"]
    for code, language in (("deu", "de"), ("fra", "fr")):
        x, y = (np.load(tmp_path / "vectors" / f"{code}.{side}.npy") for side in (code, "eng"))
        np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-5)
        similarity, lines = x @ y.T, np.arange(len(x))
        measured = values["languages"][language]
        assert measured["xx-en"] == 100 * np.mean(similarity.argmax(axis=1) == lines)
        assert measured["en-xx"] == 100 * np.mean(similarity.argmax(axis=0) == lines)


def test_two_encoders_are_measured_and_compared(
    shared: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    other = _checkpoint(tmp_path / "other", "shared", normalize=True)
    alone = []
    for path in (shared, other):
        assert _eval("--path", path, "--data", data, "--json", "-") == 0
        alone.append(json.loads(capsys.readouterr().out))
    both = ["--path", shared, "--path", other, "--data", data]
    assert _eval(*both, "--json", tmp_path / "out.json") == 0
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["models"] == {r["model"]["path"]: r for r in alone}
    printed = capsys.readouterr().out
    header, _, row = printed.splitlines()[-3:]
    assert header.split() == ["figure", str(shared), str(other), "difference"] and row.startswith("mean of 2")
    difference, low, high = written["differences"][str(other)]["mean of 2"]
    assert difference == alone[1]["headline"]["mean of 2"] - alone[0]["headline"]["mean of 2"]
    assert low <= difference <= high and row.endswith(f"  {difference:+.2f} [{low:+.2f}, {high:+.2f}]")
    spans = [np.diff(record["intervals"]["mean of 2"])[0] for record in alone]
    assert high - low < np.hypot(*spans)  # the models are right on many of the same examples
    for record in alone:
        value, (low, high) = record["headline"]["mean of 2"], record["intervals"]["mean of 2"]
        assert low <= value <= high and f"{value:.2f} [{low:.2f}, {high:.2f}]" in row
    assert f"\n{other}:\nlanguage" in printed
    assert _eval(*both, "--plot", tmp_path / "out.png") == 2
    assert "--plot with 2 models; measure one at a time" in capsys.readouterr().err
    assert _eval(*both, "--path", other) == 2
    assert "a --path is given twice" in capsys.readouterr().err


def test_json_on_stdout_stands_alone(shared: Path, data: Path, capsys: pytest.CaptureFixture) -> None:
    assert _eval("--path", shared, "--data", data, "--langs", "deu", "--drop-overlap", "--json", "-") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["overlap"] == {"found": 2, "total": 6, "dropped": True}
    assert list(values["values"]["languages"]) == ["de"]
    assert values["values"]["pairs"] == values["values"]["languages"]["de"]["pairs"] == 4
    assert "random_weights" not in values


def test_margin_and_components_reach_the_measurement(
    shared: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    options = ["--margin", "ratio", "--neighbours", "3", "--remove-components", "2", "--langs", "de", "--json", "-"]
    assert _eval("--path", shared, "--data", data, *options, "--save-embeddings", tmp_path / "vectors") == 0
    values = json.loads(capsys.readouterr().out)
    config = Tatoeba.Config(data=str(data), langs="de", margin="ratio", neighbours=3, remove_components=2)
    expected = accuracy_of(tatoeba.answers(open_encoder(shared), [tatoeba.read_pool(data, "deu")], config)["de"])
    assert values["values"]["languages"]["de"]["xx-en"] == expected.forward
    scoring = {"protocol": tatoeba.PROTOCOL, "margin": "ratio", "neighbours": 3, "remove_components": 2, "whiten": 0}
    general = {"drop_overlap": False, "layer": None, "precision": "float32"}
    assert values["settings"] == {"languages": ["de"], "direction": "both", **scoring, **general}
    saved = np.load(tmp_path / "vectors" / "deu.deu.npy").astype(np.float64)
    assert np.linalg.matrix_rank(saved, tol=1e-4) == 6 - 2  # of 6 sentences
    assert _eval("--path", shared, "--data", data, "--margin", "ratio", "--neighbours", "7") == 2
    assert "--neighbours 7, but 6 pairs of deu; give a smaller number" in capsys.readouterr().err


def test_another_system_is_measured_by_its_vectors(
    shared: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "vectors"
    folder.mkdir()
    assert _eval("--data", data, "--list-sentences", folder / "sentences.tsv") == 0
    assert capsys.readouterr().out == f"18 sentences: {folder / 'sentences.tsv'}\n"
    rows = [line.split("\t") for line in (folder / "sentences.tsv").read_text(encoding="utf-8").splitlines()]
    encoder = SentenceEncoder.load(shared)
    np.save(folder / "vectors.npy", np.concatenate([encoder.encode([text], language) for language, text in rows]))
    found = []
    for path in (shared, folder):
        assert _eval("--path", path, "--data", data, "--json", "-") == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["values"] == found[1]["values"]
    assert found[0]["model"]["fingerprint"] != found[1]["model"]["fingerprint"]
    assert _eval("--path", folder, "--data", data, "--random-baseline") == 2
    assert "without --random-baseline" in capsys.readouterr().err
    for option in ("--json", "--plot", "--save-embeddings"):
        assert _eval("--data", data, "--list-sentences", tmp_path / "list", option, tmp_path / "out") == 2
        assert f"{option} with --list-sentences, which measures nothing" in capsys.readouterr().err
    assert _eval("--data", data) == 2
    assert "no encoder named; give --path, or --list-sentences" in capsys.readouterr().err


def test_kept_vectors_give_the_same_result(
    shared: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    printed = []
    for cache in ([], ["--cache", tmp_path / "cache"], ["--cache", tmp_path / "cache"]):
        assert _eval("--path", shared, "--data", data, *cache) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] == printed[2]
    assert len(list((tmp_path / "cache").iterdir())) == 3  # both languages have the same English sentences


def _write_sts(folder: Path) -> None:
    folder.mkdir(parents=True)
    pairs = list(zip(ENGLISH.splitlines(), [*ENGLISH.splitlines()[1:], "Tom loves music!"], strict=True))
    rows = [f"genre\tfile\tyear\t{i}\t{i % 4}.5\t{one}\t{other}\n" for i, (one, other) in enumerate(pairs)]
    (folder / "sts-test.csv").write_text("".join(rows), encoding="utf-8")


def test_sts_prints_and_writes(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    _write_sts(tmp_path / "STSBenchmark")
    assert main(["sts", "--path", str(shared), "--data", str(tmp_path), "--json", str(tmp_path / "out.json")]) == 0
    printed = capsys.readouterr().out
    assert "STS-B" in printed and "overlap: 2 of 6 " in printed
    values = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert values["values"]["STS-B"]["split"] == values["settings"]["split"] == "test"
    assert main(["sts", "--path", str(shared), "--data", str(tmp_path), "--split", "dev"]) == 2
    assert "no STS data set with a dev split" in capsys.readouterr().err


@pytest.fixture
def two_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """``all`` finds the data of sts and tatoeba alone: text for the others would not be as short."""
    for name in EVALUATIONS.names():
        if name not in ("sts", "tatoeba"):
            monkeypatch.setattr(EVALUATIONS.load(name), "find", lambda folder: {})


@pytest.mark.usefixtures("two_tests")
def test_all_measures_what_it_finds_and_names_what_fails(
    shared: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    root, output = tmp_path / "data", tmp_path / "out.json"
    shutil.copytree(data, root / "a" / "tatoeba")
    (root / "a" / "notes.txt").write_text("no data\n")
    _write_sts(root / "sts" / "STSBenchmark")
    options = ["all", "--path", str(shared), "--data", str(root), "--drop-overlap", "--json", str(output)]
    options += ["--langs", "all"]
    assert main(options) == 0
    printed = capsys.readouterr()
    values = json.loads(output.read_text(encoding="utf-8"))
    results = values["values"]["results"]
    assert printed.err.splitlines() == ["1 of 2: sts", "2 of 2: tatoeba"]
    assert set(results) == {"tatoeba", "sts"} and not values["values"]["failed"]
    for name, folder in (("tatoeba", root / "a" / "tatoeba"), ("sts", root)):
        alone = ["--path", str(shared), "--data", str(folder), "--drop-overlap", "--json", "-"]
        assert main([name, *alone]) == 0
        assert json.loads(capsys.readouterr().out)["values"] == results[name]["values"]
    assert values["headline"]["tatoeba: mean of 2"] == results["tatoeba"]["values"]["mean"]
    assert "tatoeba: overlap: 3 of 12 test examples were in the training text, left out" in printed.out

    (root / "sts" / "STSBenchmark" / "sts-test.csv").write_text("one column\n")
    assert main(options) == 2
    printed = capsys.readouterr()
    assert "sts: not measured: " in printed.out and "mean of 2" in printed.out
    assert printed.err.splitlines()[-1].startswith("xrep-eval: error: sts could not be measured; ")
    values = json.loads(output.read_text(encoding="utf-8"))
    assert values["values"]["failed"]["sts"].startswith(str(root / "sts")) and "Traceback" not in printed.err
    assert values["values"]["results"]["tatoeba"]["values"] == results["tatoeba"]["values"]


@pytest.mark.usefixtures("two_tests")
def test_a_bug_in_one_test_costs_only_that_test(
    shared: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    shutil.copytree(data, tmp_path / "tatoeba")
    _write_sts(tmp_path / "STSBenchmark")
    monkeypatch.setattr("xrep.evaluation.sts.similarities", lambda *a, **b: {}["a bug"])
    assert main(["all", "--path", str(shared), "--data", str(tmp_path), "--langs", "all"]) == 2
    printed = capsys.readouterr()
    assert "mean of 2" in printed.out and "sts: not measured: KeyError: 'a bug'" in printed.out
    assert "Traceback" in printed.err


def test_all_knows_the_published_files_by_their_names(tmp_path: Path) -> None:
    files = (
        "t/tatoeba.deu-eng.deu t/tatoeba.deu-eng.eng b/one/zh-en.dev.gold b/two/de-en.training.gold "
        "b/two/de-en.test.gold x/STS12-en-test/STS.input.a.txt x/MR/rt-polarity.pos x/STSBenchmark/sts-test.csv "
        "notes/readme.txt"
    )
    for name in files.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")

    found = {label: (name, Path(config.data)) for label, (name, config) in find_tests(tmp_path).items()}
    assert found == {
        "alignment": ("alignment", tmp_path / "x/STSBenchmark/sts-test.csv"),
        "bucc b/one": ("bucc", tmp_path / "b/one"),
        "bucc b/two": ("bucc", tmp_path / "b/two"),
        "language-bias": ("language-bias", tmp_path / "t"),
        "senteval": ("senteval", tmp_path),
        "sts": ("sts", tmp_path),
        "tatoeba": ("tatoeba", tmp_path / "t"),
    }
    (_, one), (_, two) = (find_tests(tmp_path)[f"bucc b/{place}"] for place in ("one", "two"))
    assert one.oracle and not two.oracle  # one split alone


def test_all_needs_data(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for folder, message in ((tmp_path, "no data of any test in it"), (tmp_path / "absent", "no such folder")):
        assert main(["all", "--path", str(shared), "--data", str(folder)]) == 2
        assert message in capsys.readouterr().err


def test_every_evaluation_has_a_summary_and_an_example() -> None:
    summaries = build_parser().format_help()
    for name in EVALUATIONS.names():
        text = EVALUATIONS.load(name).__doc__
        assert f"xrep-eval {name} --" in text and " ".join(text.split("\n")[0].split())[:20] in summaries
        build_parser(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--langs", "de-en"], "--langs de-en: a pair, where each language is named alone; give de, or de,en for both"),
        (["--langs", "de,en_fr"], "--langs en_fr: a pair, where each language is named alone"),
        (["--langs", "de-AT,pt-BR"], "no Tatoeba files for pt; the data has de,fr"),
        (["--langs", "de,xx"], "no Tatoeba files for xx; the data has de,fr"),
        (["--json", "absent/out.json"], "absent: no such folder; make it first"),
        (["--plot", "absent/out.png"], "absent: no such folder; make it first"),
        (["--save-embeddings", "absent/vectors"], "absent: no such folder; make it first"),
        (["--data", "absent"], "absent: no such folder; name the folder of LASER's Tatoeba test"),
        (["--path", "absent"], "absent: no such directory"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    shared: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _eval("--path", shared, "--data", data, *options) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err and printed.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_separate_towers_know_their_languages_only(
    separate: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    output, vectors = tmp_path / "out.json", tmp_path / "vectors"
    assert _eval("--path", separate, "--data", data, "--json", output) == 2
    assert "cannot encode fr" in capsys.readouterr().err
    assert not output.exists()
    options = ["--langs", "de", "--json", output, "--save-embeddings", vectors]
    assert _eval("--path", separate, "--data", data, *options) == 0
    assert "overlap: unknown" in capsys.readouterr().out
    assert json.loads(output.read_text())["overlap"]["found"] is None
    encoder = SentenceEncoder.load(separate)
    for name, text, language in (("deu.deu", GERMAN, "de"), ("deu.eng", ENGLISH, "en")):
        expected = encoder.encode(text.splitlines(), language)
        np.testing.assert_allclose(np.load(vectors / f"{name}.npy"), expected, atol=1e-5)
    assert _eval("--path", separate, "--data", data, "--langs", "de", "--drop-overlap") == 2
    assert "without --drop-overlap" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--help"], ["all", "--help"], ["sts", "--help"], ["tatoeba", "--help"]])
def test_help_shows_an_example_and_does_not_wait_for_torch(argv: list[str]) -> None:
    code = (
        "import sys, atexit; atexit.register(lambda: print([m for m in ('torch', 'numpy') if m in sys.modules]))\n"
        f"from xrep_cli.eval import main; sys.exit(main({argv!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert f"xrep-eval {argv[0] if len(argv) > 1 else 'tatoeba'} --path run1/best" in done.stdout
    assert done.stdout.endswith("[]\n")
    if argv[0] == "tatoeba":
        assert (
            "--remove-components" in done.stdout
            and "nearest neighbour by cosine" in done.stdout
            and "--drop-overlap" in done.stdout
        )


def test_kept_products_are_limited_before_the_first_one(
    data: Path, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin is imported before anything is computed; what the user has set stays as it is."""
    torch_limit, onednn_limit = "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    (tmp_path / "asks_for_limits.py").write_text(
        f"import os\nfound = [os.environ.get(name) for name in ({torch_limit!r}, {onednn_limit!r})]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(torch_limit, raising=False)
    monkeypatch.setenv(onednn_limit, "77")
    given = ["--path", str(shared), "--data", str(data), "--plugin", "asks_for_limits"]
    assert main(["tatoeba", *given]) == 0
    import asks_for_limits  # type: ignore[import-not-found]

    assert asks_for_limits.found == ["16", "77"]

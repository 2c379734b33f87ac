"""``xrep-eval`` on a real (if small and untrained) checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.encoders import write_encoder
from xrep.sentence_encoder import SentenceEncoder
from xrep.text.cleaning import sentence_hashes
from xrep_cli.eval import main

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
    """One tower, vectors of any length, training hashes beside it: one German sentence and one English."""
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
    assert _eval("--path", shared, "--data", data, "--random-baseline", *options) == 0
    printed = capsys.readouterr()
    values = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert printed.err == ""
    assert "German (de)" in printed.out and "random" in printed.out
    assert "overlap: 3 of 12 " in printed.out  # Tom loves music: with both languages
    assert values["overlap"]["found"] == 3 and values["path"] == str(shared)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.png", "vectors"]
    for code, language in (("deu", "de"), ("fra", "fr")):
        x, y = (np.load(tmp_path / "vectors" / f"{code}.{side}.npy") for side in (code, "eng"))
        np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-5)
        similarity, lines = x @ y.T, np.arange(len(x))
        measured = values["languages"][language]
        assert measured["xx-en"] == 100 * np.mean(similarity.argmax(axis=1) == lines)
        assert measured["en-xx"] == 100 * np.mean(similarity.argmax(axis=0) == lines)
    assert 0 <= values["random_mean"] <= 100


def test_json_on_stdout_stands_alone(shared: Path, data: Path, capsys: pytest.CaptureFixture) -> None:
    assert _eval("--path", shared, "--data", data, "--langs", "deu", "--drop-overlap", "--json", "-") == 0
    values = json.loads(capsys.readouterr().out)
    assert list(values["languages"]) == ["de"]
    assert values["pairs"] == values["languages"]["de"]["pairs"] == 4
    assert values["overlap"] == {"found": 2, "total": 6, "dropped": True}
    assert "random_mean" not in values


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--langs", "de,xx"], "no Tatoeba files for xx; it holds de fr"),
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


@pytest.mark.parametrize("argv", [["--help"], ["tatoeba", "--help"]])
def test_help_shows_an_example_and_does_not_wait_for_torch(argv: list[str]) -> None:
    code = (
        "import sys, atexit; atexit.register(lambda: print([m for m in ('torch', 'numpy') if m in sys.modules]))\n"
        f"from xrep_cli.eval import main; sys.exit(main({argv!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert "xrep-eval tatoeba --path run1/best" in done.stdout
    assert done.stdout.endswith("[]\n")
    if argv[0] == "tatoeba":
        assert "nearest neighbour by cosine" in done.stdout and "--drop-overlap" in done.stdout

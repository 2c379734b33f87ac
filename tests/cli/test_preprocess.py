"""xrep-preprocess in processes of its own: output, exit codes and files."""

import itertools
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from xrep.data.store import DataDirectory
from xrep_cli.preprocess import main

ROOT = Path(__file__).parents[2]
REAL = Path(os.environ.get("XREP_DATA") or ROOT.parent / "shared" / "data")
ANIMALS = {"Hund": "dog", "Vogel": "bird", "Fisch": "fish", "Wolf": "wolf", "Bär": "bear", "Affe": "monkey"}
PLACES = {"Wald": "forest", "Fluss": "river", "Garten": "garden", "Park": "park", "Berg": "mountain", "See": "lake"}
ACTS = {"schläft": "sleeps", "spielt": "plays", "wartet": "waits", "singt": "sings", "sitzt": "sits"}
ALL = list(itertools.product(ANIMALS, ACTS, PLACES))
GERMAN = [f"Der {a} {v} im {p}." for a, v, p in ALL]
ENGLISH = [f"The {ANIMALS[a]} {ACTS[v]} in the {PLACES[p]}." for a, v, p in ALL]
FRENCH = [f"{ANIMALS[a]}e {ACTS[v]}a {PLACES[p]}eau" for a, v, p in ALL]


def run(folder: Path, *arguments: str, **options) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "xrep_cli.preprocess", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, **options)


def lines(path: Path, texts: list[str]) -> None:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


@pytest.fixture
def text(tmp_path):
    lines(tmp_path / "deu-eng.tsv", [f"{en}\t{de}" for en, de in zip(ENGLISH, GERMAN, strict=True)])
    lines(tmp_path / "train.fr", FRENCH)
    lines(tmp_path / "train.en", ENGLISH)
    (tmp_path / "tatoeba").mkdir()
    lines(tmp_path / "tatoeba" / "tatoeba.deu-eng.eng", [ENGLISH[0].upper(), ENGLISH[1]])
    return tmp_path


def test_the_command_of_the_manual(text):
    command = "--bitext de-en=deu-eng.tsv --bitext fr-en=train.fr,train.en --vocab-size 75 --exclude tatoeba/ "
    result = run(text, *(command + "--destdir data-bin --json report.json").split())
    assert result.returncode == 0, result.stderr
    assert "deu-eng.tsv: column 1 is English, so column 2 is read as de" in result.stdout
    assert "\nnext: xrep-train data-bin --task bitext --criterion dual_moco" in result.stdout
    table = [line.split() for line in result.stdout.splitlines() if line.startswith(("corpus", "de-en", "total"))]
    assert table[0][:3] == ["corpus", "read", "excluded"] and table[-1][:3] == ["total", "360", "4"]
    report = json.loads((text / "report.json").read_text())
    assert report["cleaning"]["de-en deu-eng.tsv"]["excluded"] == 2 and report["languages"] == ["de", "en", "fr"]
    data = DataDirectory(text / "data-bin")
    pair = data.splits["train"][0]
    source, target = data.tokenizers["shared"].decode(pair.source[0]), data.tokenizers["shared"].decode(pair.target[0])
    assert GERMAN.index(source) == ENGLISH.index(target) > 1
    assert sorted(os.listdir(text)) == ["data-bin", "deu-eng.tsv", "report.json", "tatoeba", "train.en", "train.fr"]


@pytest.mark.slow
def test_json_alone_on_standard_output(text):
    command = "--bitext de-en=deu-eng.tsv --vocab-size 60 --destdir out --valid de-en=deu-eng.tsv:2,1 --json -"
    result = run(text, *command.split())
    assert result.returncode == 2 and result.stdout == ""  # all of the text is validation text
    assert "no training pair is left (180 read, 180 in valid/test)" in result.stderr
    result = run(text, *"--bitext de-en=deu-eng.tsv --vocab-size 60 --destdir out --valid-size 0 --json -".split())
    splits = json.loads(result.stdout)["splits"]
    assert list(splits) == ["train"] and splits["train"][0]["rows"] == 180


def corrupt(path: Path, line: int, content: bytes) -> None:
    rows = path.read_bytes().split(b"\n")
    rows[line - 1] = content
    path.write_bytes(b"\n".join(rows))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "arguments", "message"),
    [
        (lambda f: lines(f / "train.fr", FRENCH[:-3]), "", "train.fr:178: 177 lines, but train.en has 180; align"),
        (lambda f: corrupt(f / "train.fr", 7, b"caf\xe9"), "", "train.fr:7: invalid UTF-8"),
        (lambda f: (f / "train.fr").write_bytes(b""), "", "train.fr: the file is empty"),
        (lambda f: (f / "train.fr").unlink(), "", "train.fr: no such file"),
        (lambda f: corrupt(f / "deu-eng.tsv", 3, b"alone"), "--bitext de-en=deu-eng.tsv", "deu-eng.tsv:3: 1 column"),
        (lambda f: None, "--bitext de-en", "cannot read the parallel text 'de-en'; write de-en=FILE.tsv"),
        (lambda f: None, "--exclude tatoba", "tatoba: no such file; check the name"),
        (lambda f: None, "--vocab-size 16000", "too large for this text; ask for at most"),
        (lambda f: None, "--vocab-size -3", "a vocabulary of -3 pieces; give a few thousand"),
        (lambda f: None, "--sample 0", "a sample of 0 pairs; give at least 1"),
        (lambda f: None, "--tokenizer train.en", "train.en: not a SentencePiece model"),
        (lambda f: None, "--destdir tatoeba", "tatoeba: exists and is not empty"),
        (lambda f: None, "--json none/report.json", "none: no such folder; make it"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(text, damage, arguments, message):
    damage(text)
    before = sorted(os.listdir(text))
    command = f"--bitext fr-en=train.fr,train.en --vocab-size 50 --destdir out {arguments}"
    result = run(text, *command.split())
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1 and message in result.stderr
    assert sorted(os.listdir(text)) == before


def test_a_full_disk_is_one_line_and_leaves_nothing(text):
    """A limit on the size of files imitates a full disk: the kernel refuses the write in the same way."""
    lines(text / "train.fr", FRENCH * 40)
    lines(text / "train.en", ENGLISH * 40)
    before = sorted(os.listdir(text))
    command = "--bitext fr-en=train.fr,train.en --keep-duplicates --vocab-size 50 --destdir out".split()
    limit = 200_000
    result = run(text, *command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "File too large" in result.stderr.splitlines()[-1]
    assert sorted(os.listdir(text)) == before


def test_help_teaches_and_needs_no_torch(tmp_path):
    result = run(tmp_path, "--help")
    assert result.returncode == 0 and "--bitext fr-en=train.fr,train.en" in result.stdout
    code = "import sys, xrep_cli.preprocess, xrep_cli.data; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not (REAL / "bitext" / "multi30k").is_dir(), reason="no real data: set XREP_DATA")
def test_multi30k_validation_text(tmp_path):
    """Real gzipped files have 1,014 captions; training captions that equal one of them are dropped."""
    folder = REAL / "bitext" / "multi30k"
    pair = "de-en={0}/val.de.gz,{0}/val.en.gz"
    command = ["--bitext", pair.format(folder), "--test", f"cs-en={folder}/val.cs.gz,{folder}/val.en.gz"]
    result = run(tmp_path, *command, "--vocab-size", "500", "--destdir", "out")
    assert result.returncode == 2 and "1,014 in valid/test" in result.stderr
    result = run(tmp_path, *command[:2], "--vocab-size", "2000", "--destdir", "out", "--valid-size", "40")
    assert result.returncode == 0, result.stderr
    (pair,) = DataDirectory(tmp_path / "out").splits["valid"]
    assert len(pair) == 40 and pair.languages == ("de", "en")


@pytest.mark.slow
def test_the_vocabulary_of_a_run_or_of_other_data(text):
    """Text is prepared for an existing encoder."""
    made = run(text, *"--bitext de-en=deu-eng.tsv --vocab-size 60 --destdir first".split())
    assert made.returncode == 0, made.stderr
    again = run(text, *"--bitext fr-en=train.fr,train.en --tokenizer first --destdir second".split())
    assert again.returncode == 0, again.stderr
    first, second = (DataDirectory(text / name).tokenizers["shared"] for name in ("first", "second"))
    assert first.model == second.model
    sides = "--source-tokenizer first --target-tokenizer second --destdir third"
    third = run(text, *f"--bitext fr-en=train.fr,train.en {sides}".split())
    assert third.returncode == 0, third.stderr
    fourth = run(
        text, *"--bitext de-en=deu-eng.tsv --source-tokenizer third --target-tokenizer first --destdir 4".split()
    )
    assert fourth.returncode == 0, fourth.stderr


def test_parts_of_the_text_and_their_union(text, monkeypatch, capsys):
    monkeypatch.chdir(text)
    command = "--bitext de-en=deu-eng.tsv --bitext fr-en=train.fr,train.en --vocab-size 75".split()
    assert main([*command, "--destdir", "whole"]) == 0
    for part in ("1", "2"):
        assert main([*command, "--destdir", part, "--shard", f"{part}/2", "--workers", "1"]) == 0
        assert "next: xrep-preprocess --merge DIR... with the directories of all 2 parts" in capsys.readouterr().out
    assert main("--merge 1 2 --destdir merged --json merged.json".split()) == 0
    whole, merged = ({file.name: file.read_bytes() for file in (text / name).iterdir() if file.is_file()}
                     for name in ("whole", "merged"))  # fmt: skip
    assert whole == merged and json.loads((text / "merged.json").read_text())["languages"] == ["de", "en", "fr"]
    capsys.readouterr()
    for arguments, problem in (
        (
            "--merge 1 2 --vocab-size 60",
            "--vocab-size has no effect on --merge; leave it out, or make the parts with it",
        ),
        ("--bitext de-en=deu-eng.tsv --shard 2", "--shard 2; write --shard 1/8, the parts being counted from 1"),
        ("--bitext de-en=deu-eng.tsv --shard 1/2", "2 shards of a training text with 1 file; ask for fewer"),
        ("--bitext de-en=deu-eng.tsv --workers 0", "0 workers; give at least 1"),
        ("--vocab-size 60", "no training text; name some in --bitext"),
    ):
        assert main([*arguments.split(), "--destdir", "other"]) == 2
        assert problem in capsys.readouterr().err and not (text / "other").exists()

"""xrep without the entry points of this plugin: the rest works, and what the plugin has is not known."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.corpus import sentence_pairs
from tests.support.runs import environment, options

PROGRAM = """
import importlib.metadata, json, sys
importlib.metadata.entry_points = lambda **given: importlib.metadata.EntryPoints()
from xrep_cli.xrep import main
for line in json.load(sys.stdin):
    print(line, file=sys.stderr)
    assert main(line) == 0
assert not any(name.startswith("xrep.understanding") for name in sys.modules)
main([*line[:2], "--task", "classification"])
"""


@pytest.mark.slow
def test_the_core_needs_no_plugin(data_directory: Path, shared_encoder: Path, translator: Path, tmp_path: Path) -> None:
    german, english = zip(*sentence_pairs(20), strict=True)
    for name, lines in {"de.txt": german, "test.en": ["no sentence of the corpus"], "train.de": german}.items():
        (tmp_path / name).write_text("".join(f"{text}\n" for text in lines), encoding="utf-8")
    tatoeba = tmp_path / "tatoeba"
    tatoeba.mkdir()
    for code, lines in {"deu": german, "eng": english}.items():
        (tatoeba / f"tatoeba.deu-eng.{code}").write_text("\n".join(lines), encoding="utf-8")
    small = [*options(criterion="translation_ranking", max_steps=1, save_dir="run"), "--exclude", "test.en"]
    lines = [
        ["encode", "--path", str(shared_encoder), "--input", "de.txt", "--lang", "de", "--output", "v.npy"],
        ["eval", "tatoeba", "--path", str(shared_encoder), "--data", "tatoeba", "--langs", "de"],
        ["generate", "--path", str(translator), "--input", "de.txt", "--output", "hyp.txt"],
        ["export", "--path", str(translator), "--format", "hf", "--output", "hf"],
        ["train", str(data_directory), *small],
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(lines), env=environment(), cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and "unknown task 'classification'; known: bitext, " in done.stderr, done.stderr

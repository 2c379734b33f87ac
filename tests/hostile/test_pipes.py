"""A pipe to which nobody writes, in the place of a file that a command reads: one line, instead of waiting forever."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.hostile.refusals import Case, check_refused
from tests.support.encoders import write_encoder
from xrep.inference.export import export_path

TINY = (
    "--layers 1 --hidden-size 8 --heads 1 --feedforward-size 8 --max-length 16 --max-steps 1 --device cpu "
    "--no-tensorboard --warmup-steps 0 --batch-size 4 --save-dir run"
)
PAIRS = f"raw --task bitext --vocab-size 24 {TINY}"
ENCODE = "--input de.txt --output v.npy --device cpu"
PIPE = "a pipe or a device; put a regular file in its place"
CASES = {
    "enc/manifest.json": [
        Case("encode", f"--path enc {ENCODE}", PIPE),
        Case("mine", "--path enc --source de.txt --target de.txt --output m.tsv", PIPE),
        Case("generate", "--path enc --input de.txt --output h", PIPE),
        Case("predict", "--path enc --input de.txt --output h", PIPE),
        Case("export", "--path enc --output out", PIPE),
        Case("eval", "tatoeba --path enc --data tat", PIPE),
        Case("train", f"{PAIRS} --criterion translation_ranking --init enc", PIPE),
        Case("train", f"{PAIRS} --criterion translation_ranking --towers shared --encoder enc", "enc"),
    ],
    "st/modules.json": [Case("encode", f"--path st {ENCODE}", PIPE)],
    "st/1_Pooling/config.json": [
        Case("encode", f"--path st {ENCODE}", PIPE),
        Case("export", "--path st --output out", PIPE),
        Case("train", f"{PAIRS} --criterion translation_ranking --towers shared --encoder st", PIPE),
    ],
    "st/config.json": [Case("encode", f"--path st {ENCODE}", "no config.json")],
    "st/model.safetensors": [Case("encode", f"--path st {ENCODE}", "no weights")],
    "vectors/sentences.tsv": [Case("eval", "tatoeba --path vectors --data tat", PIPE)],
    "cache/cache.json": [Case("train", f"{PAIRS} --criterion frozen_source --cache-source cache", PIPE)],
    "cache/vectors": [Case("train", f"{PAIRS} --criterion frozen_source --cache-source cache", PIPE)],
    "v.npy.partial.json": [Case("encode", f"--path enc {ENCODE}", PIPE)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipes")
    write_encoder(folder / "enc")
    export_path(folder / "enc", folder / "st", "sentence-transformers")
    for name in ("cache", "raw", "tat", "vectors"):
        (folder / name).mkdir()
    words = [f"{one} {two}" for one in ("rot", "alt", "neu") for two in ("Haus", "Fluss", "Tag")]
    for name, number in (("train", 1), ("valid", 2)):
        rows = [f"{word} {number}\t{word} hier {number}\n" for word in words]
        (folder / "raw" / f"{name}.de-en.tsv").write_text("".join(rows))
    for name in ("de.txt", "tat/tatoeba.deu-eng.deu", "tat/tatoeba.deu-eng.eng"):
        (folder / name).write_text("ein Haus\nder Fluss\n")
    np.save(folder / "vectors" / "vectors.npy", np.ones((2, 4), np.float32))
    # An unfinished output of xrep-encode: the beginning of a .npy file.
    shutil.copy(folder / "vectors" / "vectors.npy", folder / "v.npy.partial")
    return folder


@pytest.mark.parametrize(("name", "case"), [(name, case) for name in CASES for case in CASES[name]], ids=str)
def test_a_pipe_in_the_place_of_a_file(
    name: str, case: Case, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XREP_HOME", str(folder.with_name("home")))
    place, aside = folder / name, folder.with_name("aside")
    if place.exists():
        place.rename(aside)
    os.mkfifo(place)
    try:
        check_refused(case, folder, capsys)
    finally:
        place.unlink()
        if aside.exists():
            aside.rename(place)

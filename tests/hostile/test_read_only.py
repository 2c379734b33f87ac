"""Outputs, run directories and caches where nothing can be written: one line, and nothing is written or changed.

The tests may run as root, for whom every folder is writable. So the calls that write fail as they do on a file system
that is mounted read-only, or in a folder of somebody else; what asks beforehand (``os.access``) is told that all is
well, as on some network file systems.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hostile.refusals import Case, case_name, check_refused
from tests.support.annotated import write_labels
from tests.support.encoders import write_encoder
from tests.support.translators import write_translator
from xrep_cli import train

TINY = (
    "--layers 1 --hidden-size 8 --heads 1 --feedforward-size 8 --max-length 16 --max-steps 1 --batch-size 4 "
    "--warmup-steps 0 --device cpu --no-tensorboard"
)
PAIRS = f"raw --task bitext --vocab-size 24 {TINY}"
EVAL = "tatoeba --path enc --data tat"
MINE = "--source-vectors x.npy --target-vectors x.npy --device cpu --neighbours 1"
CASES = [
    Case("encode", "--path enc --input de.txt --output ro/v.npy --device cpu", "ro/v.npy.partial: "),
    Case("mine", f"{MINE} --output ro/m.tsv", "ro/m.tsv.work: "),
    Case("mine", f"{MINE} --output ro/m.tsv --json ro/m.json", "ro/m.tsv.work: "),
    Case("generate", "--path nmt --input de.txt --output ro/h.txt --device cpu --max-length-b 2", "ro/h.txt: "),
    Case("predict", "--path cls/best --input de.txt --output ro/labels --device cpu", "ro/labels: "),
    *(Case("export", f"--path enc --format {form} --output ro/out", "ro/out: ") for form in ("hf", "xrep")),
    Case("export", "--path enc --output ro/new/out", "ro/new/out: "),
    Case("preprocess", "--bitext de-en=raw/train.de-en.tsv --vocab-size 24 --destdir ro/bin", "ro/bin: "),
    Case("eval", f"{EVAL} --json ro/t.json", "ro/t.json: "),
    Case("eval", f"{EVAL} --plot ro/t.png", "ro/t.png: "),
    Case("eval", f"{EVAL} --list-sentences ro/sentences.tsv", "ro/sentences.tsv: "),
    Case("eval", f"{EVAL} --cache ro/vectors", "ro/vectors: "),
    Case("eval", f"{EVAL} --cache ro", "ro/"),
    Case("train", f"{PAIRS} --criterion translation_ranking --save-dir ro/run", "ro/run/.lock: "),
    Case("train", f"{PAIRS} --criterion translation_ranking --save-dir ro", "ro/.lock: "),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("read-only")
    write_encoder(folder / "enc")
    write_translator(folder / "nmt")
    for name in ("raw", "ro", "tat"):
        (folder / name).mkdir()
    words = [f"{one} {two}" for one in ("rot", "alt", "neu") for two in ("Haus", "Fluss", "Tag")]
    for name, number in (("train", 1), ("valid", 2)):
        rows = [f"{word} {number}\t{word} hier {number}\n" for word in words]
        (folder / "raw" / f"{name}.de-en.tsv").write_text("".join(rows))
    for name in ("de.txt", "tat/tatoeba.deu-eng.deu", "tat/tatoeba.deu-eng.eng"):
        (folder / name).write_text("ein Haus\nder Fluss\n")
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XREP_HOME", str(folder.with_name("home")))
        given = f"--task classification --criterion classification --languages de --vocab-size 50 {TINY}"
        data = write_labels(folder / "labels")
        assert train.main([str(data), *given.split(), "--max-length", "32", "--save-dir", str(folder / "cls")]) == 0
    return folder


def fail_below(place: Path, number: int, patch: pytest.MonkeyPatch) -> None:
    """Make all calls that write below a folder fail with this error number."""
    place = Path(os.path.realpath(place))

    def refuse(path: Any) -> None:
        if isinstance(path, (str, bytes, Path)):
            real = Path(os.path.realpath(os.fsdecode(path)))
            if real != place and real.is_relative_to(place):
                raise OSError(number, os.strerror(number), os.fsdecode(path))

    def guarded(call: Callable[..., Any], writes: Callable[..., bool], places: int = 1) -> Callable[..., Any]:
        def replacement(*arguments: Any, **options: Any) -> Any:
            if writes(*arguments[1:], **options):
                for path in arguments[:places]:
                    refuse(path)
            return call(*arguments, **options)

        return replacement

    def link(call: Callable[..., None], source: Any, target: Any, **options: Any) -> None:
        refuse(target)
        call(source, target, **options)

    def by_mode(mode: str = "r", *_: Any, **__: Any) -> bool:
        return bool(set(mode) & set("wax+"))

    def by_flags(flags: int, *_: Any, **__: Any) -> bool:
        return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))

    opened = guarded(builtins.open, by_mode)
    patch.setattr(builtins, "open", opened)
    patch.setattr(io, "open", opened)
    patch.setattr(os, "open", guarded(os.open, by_flags))
    for name, places in (("mkdir", 1), ("unlink", 1), ("rmdir", 1), ("replace", 2), ("rename", 2)):
        patch.setattr(os, name, guarded(vars(os)[name], lambda *_, **__: True, places))
    for name in ("symlink", "link"):  # of these, the second path is written
        patch.setattr(os, name, partial(link, vars(os)[name]))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_one_line(
    case: Case, number: int, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XREP_HOME", str(folder.with_name("home")))
    fail_below(folder / "ro", number, monkeypatch)
    check_refused(case, folder, capsys)

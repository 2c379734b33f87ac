"""xrep-eval on hostile input: each line of the table is refused in one line, and no file changes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.hostile.refusals import Case, case_name, check_refused
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder

PAIRS = sentence_pairs(40)
NEEDED = {"neighbours": " --query x", "scatter": " --plot o.png"}
EVERY = "tatoeba sts bucc alignment language-bias neighbours nli scatter senteval translation all".split()
LANGUAGES = {
    "tatoeba": "tat",
    "language-bias": "mt.{lang}",
    "scatter": "mt.{lang}",
    "sts": "sts",
    "translation": "mt.{lang}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small encoder, data of several evaluations, vectors of several faults, a pipe and an empty folder."""
    place = tmp_path_factory.mktemp("eval")
    write_encoder(place / "run" / "best")
    sides = [[pair[i] for pair in PAIRS] for i in (0, 1)]
    files = {
        "tat/tatoeba.deu-eng.deu": sides[0],
        "tat/tatoeba.deu-eng.eng": sides[1],
        "mt.de": sides[0],
        "mt.en": sides[1],
    }
    files["sts/sts-test.csv"] = [f"m\tM\t1\t{i}\t{i % 6}\t{one}\t{two}" for i, (one, two) in enumerate(PAIRS)]
    for ending, side in zip(("de", "en"), sides, strict=True):
        files[f"bucc/de-en.dev.{ending}"] = [f"{ending}{i}\t{sentence}" for i, sentence in enumerate(side)]
    files |= {
        "bucc/de-en.dev.gold": [f"de{i}\ten{i}" for i in range(40)],
        "empty.txt": [],
        "damaged/vectors.npy": ["x"],
    }
    files |= {"blank/tatoeba.deu-eng.deu": ["a", " "], "blank/tatoeba.deu-eng.eng": ["b", "c"]}
    keys = list(dict.fromkeys([f"de\t{one}" for one in sides[0]] + [f"en\t{two}" for two in sides[1]]))
    draw = np.random.default_rng(0).normal(size=(len(keys), 4)).astype(np.float32)
    vectors = {"zero": 0 * draw, "nan": np.nan * draw, "huge": np.full(draw.shape, 1e300), "integer": draw.astype(int)}
    vectors |= {"narrow": draw[:, :1], "empty-rows": draw[:, :0], "short": draw[1:], "flat": draw[0]}
    for name in (*vectors, "damaged"):
        files[f"{name}/sentences.tsv"] = keys
    for name, lines in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for name, array in vectors.items():
        np.save(place / name / "vectors.npy", array)
    os.mkfifo(place / "pipe")
    (place / "empty").mkdir()
    return place


def eval_case(arguments: str, message: str, path: str = "run/best") -> Case:
    return Case("eval", f"{arguments} --path {path}", message)


CASES = [
    *(eval_case(f"{e} --data absent{NEEDED.get(e, '')}", "absent: ") for e in EVERY if e != "neighbours"),
    *(eval_case(f"{e} --data empty{NEEDED.get(e, '')}", "empty") for e in EVERY),
    *(eval_case(f"{e} --data empty.txt{NEEDED.get(e, '')}", "empty.txt: ") for e in EVERY),
    *(eval_case(f"{e} --data pipe{NEEDED.get(e, '')}", "pipe: a pipe or a device") for e in EVERY),
    *(eval_case(f"{e} --data /dev/zero{NEEDED.get(e, '')}", "/dev/zero: a pipe or a device") for e in EVERY),
    *(
        eval_case(f"{e} --data {data} --langs {langs}{NEEDED.get(e, '')}", message)
        for e, data in LANGUAGES.items()
        for langs, message in (("xx", "xx; the data has"), (",", "no language named"), ("de;rm", "de;rm;"))
    ),
    eval_case("bucc --data bucc --oracle --langs de;rm", "no BUCC files of de;rm; it holds de-en"),
    *(
        eval_case(f"neighbours --data mt.de --query x --{option} de;rm", f"--{option} 'de;rm' is no language code")
        for option in ("lang", "data-lang")
    ),
    eval_case("neighbours --data tat --query x", "tat: a folder, not a file"),
    eval_case("alignment --data tat", "tat: not a set of pairs that is known"),
    *(
        eval_case(f"{e} --data {data}", message, path=path)
        for e, data in (("tatoeba", "tat"), ("alignment --pairs 9 --true-pairs 3", "de-en=mt.de,mt.en"))
        for path, message in (
            *((name, name) for name in ("absent", "pipe", "mt.de", "empty", "tat", "run")),
            ("zero", "every number of 1 vectors is 0"), ("nan", "not finite"), ("huge", "not finite"),
            ("integer", "integer/vectors.npy: not an array [N, D]"), ("flat", "flat/vectors.npy: not an array"),
            ("empty-rows", "empty-rows/vectors.npy: not a"), ("short", "short/sentences.tsv: "),
            ("damaged", "damaged/vectors.npy: not a file of vectors"),
        )
    ),
    eval_case("scatter --data mt.{lang} --plot o.png", "vectors of 1 number have no two components", "narrow"),
    eval_case("tatoeba --data tat --random-baseline", "weights can be drawn at random; measure without", "narrow"),
    eval_case("tatoeba --data tat --random-baseline -1", "--random-baseline -1; give a number of seeds"),
    eval_case("tatoeba --data blank", "blank/tatoeba.deu-eng.deu:2: a blank line"),
    eval_case("translation --data mt.{lang} --langs de", "run/best: not a translation model"),
    eval_case("nli --data sts", "sts/sts-test.csv: holds triplets without labels"),
    *(eval_case(f"tatoeba --data tat --plot {file}", "a plot is one of .png,") for file in ("x.banana", "png")),
    *(
        eval_case(f"tatoeba --data tat {option} {file}", message)
        for option in ("--json", "--plot", "--list-sentences")
        for file, message in (("no/x.png", "no such folder"),)
    ),
    eval_case("tatoeba --data tat --json tat/tatoeba.deu-eng.deu", "--json is the same file as --data"),
    eval_case("tatoeba --data tat --list-sentences tat/tatoeba.deu-eng.eng", "is the same file as --data"),
    eval_case("tatoeba --data tat --cache mt.de", "mt.de: is a file already"),
    eval_case("tatoeba --data tat --cache a/b", "no such folder"),
    eval_case("tatoeba --data tat --save-embeddings mt.de", "mt.de: is a file already"),
    eval_case("tatoeba --data tat --neighbours 0", "--neighbours 0; give at least 1"),
    eval_case("tatoeba --data tat --margin ratio --neighbours 41", "--neighbours 41, but 40 pairs of deu"),
    eval_case("tatoeba --data tat --remove-components 16", "--remove-components 16 of vectors 16 wide"),
    eval_case("tatoeba --data tat --drop-overlap", "no training hashes beside the encoder"),
    eval_case("tatoeba --data tat --batch-tokens 0", "--batch-tokens"),
    eval_case("language-bias --data mt.{lang} --column 0", "--column 0; columns are counted from 1"),
    eval_case("language-bias --data mt.{lang} --sentences 1", "fewer than 2 sentences"),
    eval_case("language-bias --data mt.{lang} --neighbours 10000", "--neighbours 10000, but"),
    eval_case("scatter --data mt.{lang} --plot o.png --seed -1", "--seed -1; give a number from 0 to 4294967295"),
    eval_case("scatter --data mt.{lang} --plot o.png --sentences 0", "--sentences 0, but"),
    eval_case("alignment --data de-en=mt.de,mt.en --seed -1", "--seed -1; give a number from 0"),
    eval_case("alignment --data de-en=mt.de,mt.en", "40 pairs, but 1000 and 750 others"),
    eval_case("alignment --data de-en=mt.de,absent", "absent: no such file"),
    eval_case("alignment --data de-en=mt.de,empty", "empty: a folder, not a file"),
    eval_case("alignment --data de-en=pipe,mt.en", "pipe: a pipe or a device"),
    eval_case("alignment --data sts/sts-test.csv --positive-above 5", "no pair scores higher than 5"),
    eval_case("alignment --data sts/sts-test.csv --every-checkpoint", "run/best: no checkpoints in it"),
    eval_case("bucc --data bucc", "there is no split but dev"),
    eval_case("bucc --data bucc --split x", "no split x; give --split with one of dev"),
    eval_case("bucc --data bucc --oracle --neighbours 41", "41 neighbours, but there are"),
    eval_case("bucc --data bucc --oracle --threshold 1", "--oracle and --threshold; give one of them"),
    eval_case("neighbours --data mt.de", "no query; give --query"),
    eval_case("neighbours --data mt.de --query-file empty.txt", "empty.txt: the file is empty"),
    eval_case("neighbours --data mt.de --query-file pipe", "pipe: a pipe or a device"),
    eval_case("neighbours --data mt.de --query x --top 0", "--top 0; give at least 1"),
    eval_case("neighbours --data mt.de --query x --top 100000", "--top 100000, but"),
    eval_case("sts --data sts --split dev", "no STS data set with a dev split in it"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_it_is_refused_in_one_line(case: Case, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(case, folder, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["wide", "nan", "integer", "text", "archive"])
def test_damaged_vectors_in_a_cache(
    fault: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from xrep_cli.eval import main

    line = [
        "tatoeba",
        "--path",
        str(folder / "run/best"),
        "--data",
        str(folder / "tat"),
        "--cache",
        str(tmp_path / "c"),
    ]
    assert main(line) == 0
    file = sorted((tmp_path / "c").iterdir())[0]
    array = np.load(file)
    arrays = {"wide": np.ones((len(array), 17), np.float32), "nan": np.nan * array, "integer": array.astype(int)}
    if fault == "archive":
        with file.open("wb") as stream:
            np.savez(stream, array)
    elif fault == "text":
        file.write_text("x")
    else:
        np.save(file, arrays[fault])
    assert main(line) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{file}: " in error and error.endswith("; delete it\n")

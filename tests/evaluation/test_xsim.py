"""The error rates of LASER, in files as they are published: beside its own script, and its protocol in float64."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.conftest import NgramEncoder, measured, published, save_hashes, write
from tests.support.corpus import sentence_pairs
from xrep.errors import UserError
from xrep.evaluation.all import find_tests
from xrep.evaluation.xsim import XSim

PAIRS = [(f"{german} {n % 17}", f"{english} {n % 17}") for n, (german, english) in enumerate(sentence_pairs(60))]
PAIRS[7] = PAIRS[3][0] + " x", PAIRS[3][1]  # two lines with one translation
ENCODER = NgramEncoder(width=64)


def write_flores(folder: Path, split: str = "devtest", kinds: bool = True) -> Path:
    """Write German, two Chinese texts and English, and xSIM++'s changed sentences where LASER puts them."""
    texts = {"deu_Latn": 0, "zho_Hans": 0, "zho_Hant": 0, "eng_Latn": 1}
    for code, side in texts.items():
        lines = [pair[side] for pair in PAIRS]
        write(folder / split / f"{code}.{split}", lines[::-1] if code == "zho_Hant" else lines)
    if kinds:
        changes = {f"{english} 9": ("number", english) for _, english in PAIRS}
        changes |= {f"{english.split()[0]} {english}": ("entity", english) for _, english in PAIRS[:20]}
        write(folder / f"{split}_augmented" / f"eng_Latn_augmented.{split}", [*changes, next(iter(changes))])
        known = {text: {"errtype": kind, "src": source} for text, (kind, source) in changes.items()}
        write(folder / f"{split}_augmented" / f"eng_Latn_errtype.{split}.json", [json.dumps(known)])
    write(folder / "README", ["FLORES-200"])
    return folder


def write_ntrex(folder: Path) -> Path:
    for name, side in {"src.eng": 1, "ref.deu": 0, "ref.eng-GB": 1, "ref.zho-CN": 0, "ref-2.spa": 0}.items():
        write(folder / f"newstest2019-{name}.txt", [pair[side] for pair in PAIRS])
    return folder


def by_laser(source: list[str], target: list[str], k: int = 4, margin: str = "ratio") -> list[str]:
    """Return the text that is found for each sentence of ``source``."""
    x, y = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (
        ENCODER.encode(texts, normalize=False).astype(np.float64) for texts in (source, target)
    ))  # fmt: skip
    cosines, found = x @ y.T, []
    mean_x, mean_y = (np.sort(each, axis=1)[:, -k:].mean(axis=1) for each in (cosines, cosines.T))
    for row, own in enumerate(cosines):
        nearest = np.argsort(-own, kind="stable")[: 1 if margin == "absolute" else k]
        around = (mean_x[row] + mean_y[nearest]) / 2
        scores = {"absolute": own[nearest], "ratio": own[nearest] / around, "distance": own[nearest] - around}[margin]
        found.append(target[nearest[scores.argmax()]])
    return found


def rate(found: list[str], right: list[str]) -> float:
    return 100 * float(np.mean([one != other for one, other in zip(found, right, strict=True)]))


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
@pytest.mark.parametrize("k", [4, 7])
def test_error_rates_are_those_of_laser(tmp_path: Path, margin: str, k: int) -> None:
    figures = measured(XSim, ENCODER, data=str(write_flores(tmp_path)), margin=margin, neighbours=k)
    tables = figures.values["tables"]
    assert list(tables) == ["deu_Latn", "zho_Hans", "zho_Hant"]
    english, changes = [pair[1] for pair in PAIRS], tmp_path / "devtest_augmented"
    changed = (changes / "eng_Latn_augmented.devtest").read_text(encoding="utf-8").splitlines()
    kinds = json.loads((changes / "eng_Latn_errtype.devtest.json").read_text(encoding="utf-8"))
    for code, found in tables.items():
        source = (tmp_path / "devtest" / f"{code}.devtest").read_text(encoding="utf-8").splitlines()
        assert found["xx-en"] == pytest.approx(rate(by_laser(source, english, k, margin), english))
        assert found["en-xx"] == pytest.approx(rate(by_laser(english, source, k, margin), source))
        hard = by_laser(source, [*english, *changed], k, margin)
        assert found["xsim++"] == pytest.approx(rate(hard, english))
        wrong = [(text, right) for text, right in zip(hard, english, strict=True) if text != right]
        causes = [
            kinds[text]["errtype"] if text in kinds and kinds[text]["src"] == right else "misaligned"
            for text, right in wrong
        ]
        assert {kind: found[kind] for kind in ("entity", "number", "misaligned")} == pytest.approx(
            {kind: 100 * causes.count(kind) / len(english) for kind in ("entity", "number", "misaligned")}
        )
    assert 0 < tables["deu_Latn"]["xx-en"] < tables["deu_Latn"]["xsim++"] < 100 and tables["deu_Latn"]["number"] > 0
    assert tables["zho_Hant"]["xx-en"] > 90  # which is in another order
    means = {name: np.mean([own[name] for own in tables.values()]) for name in ("xx-en", "xsim++")}
    assert figures.headline == {
        "xsim, mean of 3": pytest.approx(means["xx-en"]), "xsim++, mean of 3": pytest.approx(means["xsim++"])
    }  # fmt: skip
    for name, value in figures.headline.items():
        assert figures.resamples[name].mean() == pytest.approx(value, abs=2)
    assert {file.name for file in map(Path, figures.files)} >= {"deu_Latn.devtest", "eng_Latn_errtype.devtest.json"}
    lines = figures.text.splitlines()
    assert lines[0].split() == "language pairs xx-en en-xx xsim++ entity number misaligned".split()
    assert lines[2].split()[:3] == ["German", "(deu_Latn)", "60"]


# Numbers of errors that LASER's source/xsim.py (commit 7fb053d) counts by the text, of vectors of ``NgramEncoder()``,
# in searches of English and from English, by the margins ratio, distance and absolute.
BY_SCRIPT = {
    "corpus": [(391, 386), (392, 386), (393, 391)],
    "newstest2012.de": [(2227, 2106), (2227, 2100), (2372, 2225)],
    "newstest2012.cs": [(2300, 2344), (2299, 2347), (2380, 2513)],
    "newstest2012.fr": [(1712, 1651), (1710, 1651), (1898, 1918)],
}
# The same for xSIM++: a search in the first 1,012 sentences and 1,181 changed ones, and the kinds of these errors.
WITH_CHANGES = {
    "ratio": {"xsim++": 799, "number": 1, "entity": 5, "causality": 48, "misaligned": 745},
    "distance": {"xsim++": 801, "number": 1, "entity": 5, "causality": 49, "misaligned": 746},
    "absolute": {"xsim++": 824, "number": 3, "entity": 4, "causality": 39, "misaligned": 778},
}


@pytest.mark.parametrize("name", BY_SCRIPT)
def test_errors_are_those_that_the_script_of_laser_counts(name: str, tmp_path: Path) -> None:
    files, code = (tmp_path / "source", tmp_path / "target"), name.removeprefix("newstest2012.")
    if name == "corpus":
        code = "de"
        for side, file in enumerate(files):
            write(file, [pair[side] for pair in sentence_pairs(400)])
    else:
        folder = published("mt") / "newstest"
        files = folder / name, folder / "newstest2012.en"
    for margin, expected in zip(("ratio", "distance", "absolute"), BY_SCRIPT[name], strict=True):
        data = f"{code}-en={files[0]},{files[1]}"
        (found,) = measured(XSim, NgramEncoder(), data=data, margin=margin).values["tables"].values()
        count = 400 if name == "corpus" else 3003
        assert [found["xx-en"], found["en-xx"]] == pytest.approx([100 * errors / count for errors in expected])


@pytest.mark.parametrize("margin", WITH_CHANGES)
def test_errors_of_changed_sentences_are_those_of_the_script(margin: str, tmp_path: Path) -> None:
    german, english = (
        (published("mt") / "newstest" / f"newstest2012.{code}").read_text(encoding="utf-8").splitlines()[:1012]
        for code in ("de", "en")
    )
    known: dict[str, dict[str, str]] = {}
    for number, sentence in enumerate(english):
        words, last = sentence.split(), english[(number + 1) % len(english)].split()[-1]
        changed = {
            "number": [str(int(word) + 1) if word.isdigit() else word for word in words],
            "entity": words[:1] + [last if word[0].isupper() else word for word in words[1:]],
            "causality": [f"not {word}" if word in ("is", "was", "are", "has", "will") else word for word in words],
        }
        for kind, some in changed.items():
            if (text := " ".join(some)) not in known and text not in english:
                known[text] = {"errtype": kind, "src": sentence}
    write(tmp_path / "devtest" / "deu_Latn.devtest", german)
    write(tmp_path / "devtest" / "eng_Latn.devtest", english)
    write(tmp_path / "devtest_augmented" / "eng_Latn_augmented.devtest", list(known))
    write(tmp_path / "devtest_augmented" / "eng_Latn_errtype.devtest.json", [json.dumps(known)])
    assert len(known) == 1181
    found = measured(XSim, NgramEncoder(), data=str(tmp_path), margin=margin).values["tables"]["deu_Latn"]
    expected = {kind: 100 * errors / len(german) for kind, errors in WITH_CHANGES[margin].items()}
    assert {kind: found[kind] for kind in expected} == pytest.approx(expected)


def test_sets_are_read_as_published(tmp_path: Path) -> None:
    flores, ntrex = write_flores(tmp_path / "flores200_dataset"), write_ntrex(tmp_path / "NTREX" / "NTREX-128")
    write_flores(flores, "dev", kinds=False)

    def codes(data: Path | str, **options: Any) -> list[tuple[str, tuple[str, ...]]]:
        return [(each.name, each.languages) for each in XSim(XSim.Config(data=str(data), **options)).tables]

    german = ("deu_Latn", ("de", "en"))
    chinese = [("zho_Hans", ("zh", "en")), ("zho_Hant", ("zh", "en"))]
    assert codes(flores) == codes(flores / "devtest") == [german, *chinese, ("changed", ("de", "en"))]
    assert codes(flores, split="dev") == [german, *chinese]
    assert codes(flores, split="dev", langs="zh,deu") == [german, *chinese]
    assert codes(flores, split="dev", langs="zho_Hant") == chinese[1:]
    assert codes(flores, split="dev", langs="de", target="zho_Hant") == [("deu_Latn", ("de", "zh"))]
    others = codes(flores, langs="de", target="zho_Hant")  # which xSIM++ has no changes for
    assert others == [("deu_Latn", ("de", "zh"))]
    assert codes(ntrex) == codes(ntrex.parent) == [("deu", ("de", "en")), ("zho-CN", ("zh", "en"))]
    assert codes(ntrex, langs="en") == [("eng-GB", ("en", "en"))]
    with pytest.raises(UserError, match="NTREX: `split` dev chooses nothing here; leave it out"):
        codes(ntrex.parent, split="dev")
    both = measured(XSim, ENCODER, data=str(ntrex)).values["tables"]
    for side, name in enumerate(("de", "en")):
        write(tmp_path / f"own.{name}", [pair[side] for pair in PAIRS])
    pairs = measured(XSim, ENCODER, data=f"en-de={tmp_path}/own.en,{tmp_path}/own.de").values["tables"]
    assert pairs == {"de-en": both["deu"]}
    assert set(find_tests(tmp_path)) == {"xsim flores200_dataset/devtest", "xsim NTREX/NTREX-128"}


def test_forms_of_what_is_left_out_are_left_out(tmp_path: Path) -> None:
    encoder = NgramEncoder(width=64, training_hashes=save_hashes(tmp_path, [PAIRS[0][1], PAIRS[1][0]]))
    dropped = measured(XSim, encoder, data=str(write_flores(tmp_path)), langs="de", drop_overlap=True)
    assert dropped.overlap is not None and dropped.overlap.found == 2
    english = [pair[1] for pair in PAIRS[2:]]
    kinds = json.loads((tmp_path / "devtest_augmented" / "eng_Latn_errtype.devtest.json").read_text(encoding="utf-8"))
    changed = [text for text, own in kinds.items() if own["src"] not in (PAIRS[0][1], PAIRS[1][1])]
    hard = by_laser([pair[0] for pair in PAIRS[2:]], [*english, *changed])
    assert dropped.values["tables"]["deu_Latn"]["xsim++"] == pytest.approx(rate(hard, english))


@pytest.mark.parametrize(("options", "problem"), [
    ({"langs": "fr"}, "no file of the `langs` fr; the data has deu_Latn,eng_Latn,zho_Hans,zho_Hant"),
    ({"langs": "de-en"}, "`langs` de-en: a pair"),
    ({"langs": "en"}, "`langs` has the target eng_Latn alone; name another language"),
    ({"target": "fr"}, "no file of the `target` fr"),
    ({"split": "dev"}, "no dev files in it; name flores200_dataset/ or NTREX-128/"),
    ({"neighbours": 61}, "61 neighbours, but there are 60 sentences"),
    ({"data": "absent"}, "absent: no such folder"),
    ({"data": "de-en=absent.tsv"}, "absent.tsv: no such file"),
    ({"data": "de-en=own.tsv", "langs": "de"}, "de-en=own.tsv: `langs` de chooses nothing here; leave it out"),
    ({"data": "de-en=own.tsv", "target": "de"}, "`target` de chooses nothing"),
    ({"data": "de-en=own.tsv", "split": "dev"}, "`split` dev chooses nothing"),
    ({"broken": "{"}, r"eng_Latn_errtype.devtest.json: not JSON"),
    ({"broken": '{"a": 1}'}, "errtype.devtest.json: not {SENTENCE"),
    ({"broken": '{"a": {"errtype": "number", "src": "b"}}'}, "changes no sentence of .*eng_Latn.devtest; take"),
    ({"broken": None}, "eng_Latn_errtype.devtest.json: no such file"),
    ({"short": "deu_Latn.devtest"}, r"deu_Latn.devtest:2: 1 lines, but .*eng_Latn.devtest has 60; align"),
    ({"second": "other"}, "data sets in .*devtest and .*other"),
])  # fmt: skip
def test_mistakes_are_one_line(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    folder, kinds = write_flores(tmp_path), tmp_path / "devtest_augmented" / "eng_Latn_errtype.devtest.json"
    broken, short, second = (options.pop(name, "") for name in ("broken", "short", "second"))
    if broken is None:
        kinds.unlink()
    elif broken:
        write(kinds, [broken])
    if short:
        write(folder / "devtest" / short, ["one"])
    if second:
        write_ntrex(folder / second)
    with pytest.raises(UserError, match=problem):
        _ = XSim(XSim.Config(**{"data": str(folder), **options})).tables

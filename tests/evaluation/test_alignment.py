from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from tests.evaluation.conftest import measured
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.evaluation.alignment import Alignment, PairSet, losses
from xrep.evaluation.overlap import Overlap
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.text.cleaning import sentence_hashes
from xrep_cli.eval import main

SCORED = [
    ("A man is playing a guitar.", "A man plays the guitar.", 4.8),
    ("A dog runs in the snow.", "A dog is running through snow.", 4.0),
    ("A woman slices an onion.", "A woman is cutting potatoes.", 2.2),
    ("The plane takes off.", "A plane is taking off.", 5.0),
    ("A cat sleeps.", "A man rides a horse.", 0.4),
]


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    path = tmp_path / "sts-dev.csv"
    rows = [f"genre\tfile\tyear\t{i}\t{s}\t{one}\t{other}\n" for i, (one, other, s) in enumerate(SCORED)]
    path.write_text("".join(rows), encoding="utf-8")
    return path


def _write_parallel(folder: Path, count: int) -> tuple[str, list[tuple[str, str]]]:
    pairs = sentence_pairs(count)
    rows = "".join(f"{german}\t{english}\n" for german, english in pairs)
    (folder / "pairs.tsv").write_text("\n" + rows, encoding="utf-8")  # a blank line is not a pair
    return f"de-en={folder / 'pairs.tsv'}", pairs


def _read(data: str, **options: object) -> PairSet:
    evaluation = Alignment(Alignment.Config(data=data, **options))
    evaluation.read()
    return evaluation.pairs


def _losses(first: np.ndarray, second: np.ndarray, positive: list[int]) -> tuple[float, float]:
    """Compute both by their definitions in float64, for vectors of length 1."""
    x, y = first.astype(np.float64), second.astype(np.float64)
    align = np.mean(np.linalg.norm(x[positive] - y[positive], axis=1) ** 2)
    return float(align), float(np.log(np.exp(-2 * pdist(np.concatenate([x, y])) ** 2).mean()))


def test_scored_pairs_above_four_are_positive_and_all_sentences_count(scored: Path, ngram_encoder) -> None:
    pairs = _read(str(scored))
    assert (pairs.name, pairs.languages, pairs.positive.tolist()) == (
        "STS-B dev", ("en", "en"), [True, False, False, True, False],
    )  # fmt: skip
    encoder = ngram_encoder()
    found, overlap = losses(encoder, pairs)
    vectors = [encoder.encode([row[side] for row in SCORED]) for side in (0, 1)]
    assert (found["alignment"], found["uniformity"]) == pytest.approx(_losses(*vectors, [0, 3]), rel=1e-5)
    assert (found["positives"], found["sentences"], overlap) == (2, 10, Overlap(None, 5))
    assert _read(str(scored), positive_above=3.9).positive.sum() == 3


def test_of_parallel_text_the_first_pairs_are_true_and_the_others_get_another_sentence(
    tmp_path: Path, ngram_encoder
) -> None:
    data, rows = _write_parallel(tmp_path, 60)
    pairs = _read(data, pairs=20, true_pairs=5)
    assert pairs.languages == ("de", "en") and pairs.positive.tolist() == [True] * 5 + [False] * 15
    assert pairs.second == [english for _, english in rows[:20]]
    assert pairs.first[:5] == [german for german, _ in rows[:5]]
    following = [german for german, _ in rows[20:]]
    assert set(pairs.first[5:]) < set(following) and len(set(pairs.first[5:])) == 15
    assert _read(data, pairs=20, true_pairs=5).first == pairs.first
    assert _read(data, pairs=20, true_pairs=5, seed=1).first != pairs.first
    encoder = ngram_encoder(known=["de", "en"])
    found, overlap = losses(encoder, pairs)
    vectors = encoder.encode(pairs.first, "de"), encoder.encode(pairs.second, "en")
    assert (found["alignment"], found["uniformity"]) == pytest.approx(_losses(*vectors, list(range(5))), rel=1e-5)


def test_every_following_sentence_is_as_likely_to_be_drawn(tmp_path: Path) -> None:
    data, rows = _write_parallel(tmp_path, 30)
    drawn = [_read(data, pairs=10, true_pairs=5, seed=seed).first[5:] for seed in range(400)]
    counts = [sum(german in first for first in drawn) for german, _ in rows[10:]]
    assert min(counts) > 65 and max(counts) < 140  # 100 each, with a standard deviation of 9


def test_what_was_trained_on_is_counted_and_left_out(scored: Path, tmp_path: Path, ngram_encoder) -> None:
    hashes = tmp_path / "training_hashes.npy"
    np.save(hashes, np.unique(sentence_hashes(["THE plane takes off!", "A cat sleeps."])))
    encoder, pairs = ngram_encoder(training_hashes=hashes), _read(str(scored))
    assert measured(Alignment, encoder, data=str(scored)).overlap == Overlap(2, 5)
    found, overlap = losses(encoder, pairs, drop_overlap=True)
    assert (found["positives"], found["sentences"], overlap) == (1, 6, Overlap(2, 5, dropped=True))
    np.save(hashes, np.unique(sentence_hashes([one for one, _, score in SCORED if score > 4])))
    with pytest.raises(UserError, match="no positive pair of STS-B dev is left; measure without `drop_overlap`"):
        measured(Alignment, encoder, data=str(scored), drop_overlap=True)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("{folder}/absent/sts-dev.csv", {}, "absent/sts-dev.csv: no such file; name an STS file"),
        ("{folder}/pairs.tsv", {}, "pairs.tsv: not a set of pairs that is known; name an STS file .* parallel text"),
        (
            "{folder}/sts-dev.csv",
            {"positive_above": 5.0},
            "no pair scores higher than 5; give a lower `positive_above`",
        ),
        ("de-en={folder}/pairs.tsv", {"pairs": 20, "true_pairs": 5}, "30 pairs, but 20 and 15 others to draw from"),
        ("de-en={folder}/pairs.tsv", {"pairs": 40}, "`true_pairs` 250 of `pairs` 40; give 1 to"),
        ("de-en={folder}/pairs.tsv", {"pairs": 5, "true_pairs": 0}, "`true_pairs` 0 of `pairs` 5"),
        ("de-en={folder}/blank.tsv", {}, "blank.tsv: 0 pairs, but 1000 and 750 others"),
        ("de-en={folder}/pairs.de,{folder}/pairs.en", {}, "pairs.de: no such file"),
    ],
)
def test_bad_input_is_one_clear_line(scored: Path, data: str, options: dict, message: str) -> None:
    _write_parallel(scored.parent, 30)
    (scored.parent / "blank.tsv").write_text("\n\n", encoding="utf-8")
    with pytest.raises(UserError, match=message) as error:
        _read(data.format(folder=scored.parent), **options)
    assert "\n" not in str(error.value)


def test_only_the_named_file_is_read(scored: Path) -> None:
    """A copy in a subfolder, and a file whose name has no language, do not matter."""
    (scored.parent / "copy").mkdir()
    (scored.parent / "copy" / scored.name).write_text("damaged\n")
    assert len(_read(str(scored))) == 5
    other = scored.with_name("stsb-de2-dev.csv")
    other.write_text("Ein Hund.,Ein Tier.,4.5\n")
    with pytest.raises(UserError, match=r"stsb-de2-dev.csv: not a set of pairs that is known; name an STS file"):
        _read(str(other))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write three different checkpoints of a run."""
    folder = tmp_path_factory.mktemp("run")
    for step in (20, 100, 3):
        write_encoder(folder / f"checkpoint-{step:08d}", seed=step)
    return folder


def test_each_checkpoint_of_a_run_is_measured_in_order(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("matplotlib")
    data, _ = _write_parallel(tmp_path, 60)
    options = ["alignment", "--path", str(run), "--every-checkpoint", "--data", data, "--pairs", "20"]
    options += ["--true-pairs", "5", "--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    assert main(options) == 0
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    found = result["values"]["checkpoints"]
    assert [checkpoint["step"] for checkpoint in found] == [3, 20, 100]
    assert len({checkpoint["fingerprint"] for checkpoint in found}) == 3
    pairs = _read(data, pairs=20, true_pairs=5)
    for checkpoint in found:
        encoder = SentenceEncoder.load(run / f"checkpoint-{checkpoint['step']:08d}")
        vectors = encoder.encode(pairs.first, "de"), encoder.encode(pairs.second, "en")
        expected = _losses(*vectors, list(range(5)))
        assert (checkpoint["alignment"], checkpoint["uniformity"]) == pytest.approx(expected, rel=1e-4)
        assert f"{checkpoint['alignment']:.4f}" in printed
    assert result["model"]["fingerprint"] == found[-1]["fingerprint"]
    assert result["values"]["alignment"] == found[-1]["alignment"] == result["headline"]["de-en, alignment"]
    assert "overlap: unknown" in printed
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_one_encoder_or_a_list_of_sentences(
    run: Path, scored: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    one = str(run / "checkpoint-00000020")
    assert main(["alignment", "--path", one, "--data", str(scored), "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert set(values) == {"pairs", "languages", "positives", "sentences", "alignment", "uniformity"}
    assert main(["alignment", "--every-checkpoint", "--data", str(scored), "--list-sentences", "list"]) == 0
    assert capsys.readouterr().out == "10 sentences: list\n"
    assert main(["alignment", "--every-checkpoint", "--data", str(scored)]) == 2
    assert "no encoder named" in capsys.readouterr().err
    assert main(["alignment", "--path", one, "--every-checkpoint", "--data", str(scored)]) == 2
    assert "checkpoint-00000020: no checkpoints in it; name the directory of a run" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_published_files_are_read(published_sts: Path) -> None:
    """Counted with cut and awk: 208 of the 1500 pairs of the dev split score higher than 4."""
    dev = _read(str(published_sts / "STSBenchmark" / "sts-dev.csv"))
    assert (len(dev), dev.positive.sum()) == (1500, 208)
    german = _read(str(published_sts / "stsb_multi_mt" / "stsb-de-dev.csv"))
    assert (german.languages, german.positive.sum()) == (("de", "de"), 208)
    sick = _read(str(published_sts / "SICK" / "SICK_trial.txt"))
    assert (sick.name, len(sick)) == ("SICK-R dev", 500)

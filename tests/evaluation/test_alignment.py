import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from tests.evaluation.conftest import SCORED, NgramEncoder, measured, save_hashes, write
from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.evaluation.alignment import Alignment
from xrep.evaluation.encoders import MeasuredEncoder, Overlap
from xrep.evaluation.evaluation import Examples
from xrep.inference.sentence_encoder import SentenceEncoder


@pytest.fixture
def scored(tmp_path: Path) -> str:
    rows = [f"genre\tfile\tyear\t{i}\t{s}\t{one}\t{other}" for i, (one, other, s) in enumerate(SCORED)]
    write(tmp_path / "copy" / "sts-dev.csv", ["damaged"])  # only the named file is read
    return str(write(tmp_path / "sts-dev.csv", rows))


def write_parallel(folder: Path, count: int) -> tuple[str, list[tuple[str, str]]]:
    pairs = sentence_pairs(count)
    lines = ["", *(f"{german}\t{english}" for german, english in pairs)]  # a blank line is not a pair
    return f"de-en={write(folder / 'pairs.tsv', lines)}", pairs


def test_no_result_replaces_the_archive_of_its_data(tmp_path: Path, cli: Commands) -> None:
    with zipfile.ZipFile(cli.folder / "pairs.zip", "w") as archive:
        for side, language in enumerate(("de", "en")):
            archive.writestr(f"pairs.{language}", "".join(f"{pair[side]}\n" for pair in sentence_pairs(9)))
    line = "--data de-en=pairs.zip --pairs 9 --true-pairs 9 --json pairs.zip"
    done = cli("eval", "alignment", *line.split())
    assert done.code == 2 and "--json is the same file as --data" in done.err


def read(data: str, **options: object) -> Examples:
    (pairs,) = Alignment(Alignment.Config(data=data, **options)).tables
    return pairs


def assert_losses(
    found: dict[str, float], encoder: MeasuredEncoder, pairs: Examples, positive: list[int], rel: float
) -> None:
    """Compare both losses with their definitions in float64."""
    sides = zip(pairs.columns, pairs.languages, strict=True)
    x, y = (encoder.encode(side, language).astype(np.float64) for side, language in sides)
    align = np.mean(np.linalg.norm(x[positive] - y[positive], axis=1) ** 2)
    uniform = np.log(np.exp(-2 * pdist(np.concatenate([x, y])) ** 2).mean())
    assert (found["alignment"], found["uniformity"]) == pytest.approx((align, uniform), rel=rel)


def test_scored_pairs_above_four_are_positive_and_all_sentences_count(scored: str, tmp_path: Path) -> None:
    pairs, encoder = read(scored), NgramEncoder()
    assert (pairs.name, pairs.languages) == ("STS-B dev", ("en", "en"))
    assert pairs.gold.tolist() == [True, True, False, False, True, False]
    figures = measured(Alignment, encoder, data=scored)
    found = figures.values["tables"]["STS-B dev"]
    assert_losses(found, encoder, pairs, [0, 1, 4], 1e-5)
    assert (found["positives"], found["sentences"], figures.overlap) == (3, 12, Overlap(None, 6))
    assert read(scored, positive_above=4.7).gold.sum() == 2
    hashes = save_hashes(tmp_path, [one for one, _, score in SCORED if score > 4])
    with pytest.raises(UserError, match="no positive pair of STS-B dev is left; measure without `drop_overlap`"):
        measured(Alignment, NgramEncoder(training_hashes=hashes), data=scored, drop_overlap=True)


def test_of_parallel_text_the_first_pairs_are_true_and_the_others_get_another_sentence(tmp_path: Path) -> None:
    data, rows = write_parallel(tmp_path, 60)
    options = {"data": data, "pairs": 20, "true_pairs": 5}
    pairs, encoder = read(**options), NgramEncoder(known=["de", "en"])
    first, second = pairs.columns
    assert pairs.languages == ("de", "en") and pairs.gold.tolist() == [True] * 5 + [False] * 15
    assert second == [english for _, english in rows[:20]]
    assert first[:5] == [german for german, _ in rows[:5]]
    assert set(first[5:]) < {german for german, _ in rows[20:]} and len(set(first[5:])) == 15
    assert read(**options).columns == pairs.columns
    assert_losses(measured(Alignment, encoder, **options).values, encoder, pairs, list(range(5)), 1e-5)
    # Every following sentence is as likely to be drawn.
    data, rows = write_parallel(tmp_path, 30)
    drawn = [read(data, pairs=10, true_pairs=5, seed=seed).columns[0][5:] for seed in range(100)]
    counts = [sum(german in first for first in drawn) for german, _ in rows[10:]]
    assert min(counts) > 9 and max(counts) < 45  # 25 each, with a standard deviation of 4.3
    with pytest.raises(UserError, match="30 pairs, but 20 and 15 others to draw from"):
        read(data, pairs=20, true_pairs=5)


@pytest.mark.slow
def test_each_checkpoint_of_a_run_is_measured_in_order(tmp_path: Path, cli: Commands) -> None:
    pytest.importorskip("matplotlib")
    for step in (20, 100, 3):
        write_encoder(tmp_path / "run" / f"checkpoint-{step:08d}", seed=step)
    data, _ = write_parallel(tmp_path, 60)
    options = ["alignment", "--path", "run", "--every-checkpoint", "--data", data, "--pairs", 20, "--true-pairs", 5]
    table = cli("eval", *options, "--json", "out.json", "--plot", "out.png").out
    record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    found, pairs = record["values"]["checkpoints"], read(data, pairs=20, true_pairs=5)
    assert [checkpoint["step"] for checkpoint in found] == [3, 20, 100]
    for checkpoint in found:
        encoder = SentenceEncoder.load(tmp_path / "run" / f"checkpoint-{checkpoint['step']:08d}")
        assert_losses(checkpoint, encoder, pairs, list(range(5)), 1e-4)
        assert checkpoint["fingerprint"] == encoder.fingerprint() and f"{checkpoint['alignment']:.4f}" in table
    assert record["model"]["fingerprint"] == found[-1]["fingerprint"]
    assert record["values"]["alignment"] == found[-1]["alignment"] == record["headline"]["de-en, alignment"]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")

"""``xrep-report`` on small real runs: what is on the page, that it stands alone, and that its texts are harmless."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.evaluation.conftest import write_tatoeba
from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs
from tests.support.once import made_once
from tests.support.runs import compose_run
from xrep.training.run import train

EVIL = "\"'><script>alert(1)</script>&amp;"
VOID = {"meta", "br", "wbr"}


@pytest.fixture(scope="module")
def two_runs(data_directory: Path) -> tuple[Path, Path]:
    """Two runs on the same data, whose objectives differ, and a Tatoeba test of German of 21 pairs."""

    def make(folder: Path) -> None:
        given = {"max_steps": 6, "log_every": 2, "save_every": 3, "validate_every": 3}
        for name, options in {"moco": {}, "ranking": {"criterion": "translation_ranking", "temperature": 0.07}}.items():
            train(compose_run(data_directory, folder / name, **given, **options))
        write_tatoeba(folder / "data" / "tatoeba", "deu", sentence_pairs(21))

    folder = made_once("report", make)
    return folder / "moco", folder / "ranking"


class Page(HTMLParser):
    """The text of a page, its cells by row, and the attributes of its elements. Elements must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text, self.rows, self.attributes = "", [], []
        self.scripts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.open[-1:] != ["style"]:
            self.text += data
            if "td" in self.open or "th" in self.open:
                self.rows[-1][-1] += data

    def named(self, attribute: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == attribute]


def report(cli: Commands, *words: object) -> Page:
    result = cli("report", *words, "--output", "-")
    assert result.code == 0 and result.wrote == frozenset()
    return Page(result.out)


def test_runs_are_compared(two_runs: tuple[Path, Path], tmp_path: Path, cli: Commands) -> None:
    page, run = report(cli, *two_runs), two_runs[0]
    assert ["option", "moco", "ranking"] in page.rows and ["criterion.queue_size", "100", ""] in page.rows
    assert ["criterion.name", "dual_moco", "translation_ranking"] in page.rows
    first, _, everything = page.text.partition("All ")
    assert "criterion.temperature" in first and "model.layers" not in first and "model.layers" in everything
    assert "criterion.queue_dtype" not in first  # at its default, and the other objective has no queue
    # The curves hold the recorded values.
    charts = [json.loads(series) for series in page.named("data-series")]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    loss = [[record["step"], record["loss"]] for record in records if record["kind"] == "train"]
    valid = [[record["step"], record["accuracy"]] for record in records if record["kind"] == "valid"]
    own = [[point[:2] for point in one["points"]] for chart in charts for one in chart if one["name"] == "moco"]
    assert [step for step, _ in loss] == [2, 4, 6] and loss in own and len(valid) == 2 and valid in own
    assert {one["name"] for one in charts[0]} == {"moco", "ranking"}
    # Data, summary, launches and versions.
    assert ["train de-en", "600"] in [row[:2] for row in page.rows] and f"{run}" in page.text
    assert "Cleaning, all files together: 7" in page.text
    (row,) = [row for row in page.rows if row and row[0].startswith("moco") and "180" in row]
    assert row[1:4] == ["dual_moco", "6", "180"]
    (launch,) = [row for row in page.rows if row[:2] == ["moco", "0 to 6"]]
    record = json.loads((run / "launches.jsonl").read_text().splitlines()[0])
    assert launch[2:5] == [record["time"], record["host"], "cpu"] and launch[6] == record["command"]
    assert ["torch", *[record["versions"]["torch"]] * 2] in page.rows
    # Of one run, what is not a default.
    first = report(cli, two_runs[1]).text.partition("All ")[0]
    assert "Report of ranking" in first and "criterion.temperature" in first and "lr_scheduler" in first
    assert "criterion.margin" not in first and "model.pooling" not in first
    # The page stands alone, runs only its own script, and is the same the next time.
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert policy in page.named("content") and len(page.scripts) == 1
    assert not {name for _, name, _ in page.attributes} & {"src", "href", "srcset", "onclick", "onload"}
    for name in ("one", "two"):
        assert cli("report", *two_runs, "--output", name).wrote == {name}
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.slow
def test_results_beside_runs_and_of_other_models(two_runs: tuple[Path, Path], tmp_path: Path, cli: Commands) -> None:
    copies = [Path(shutil.copytree(run, tmp_path / run.name, symlinks=True)) for run in two_runs]
    data = ["--data", two_runs[0].parent / "data" / "tatoeba"]
    assert cli("eval", "tatoeba", "--path", copies[0] / "best", *data, "--json", copies[0] / "t.json").code == 0
    best, several = copies[1] / "best", [copies[1] / f"checkpoint-{step:08d}" for step in (3, 6)]
    (other,) = [path for path in several if path.resolve() != best.resolve()]
    assert cli("eval", "tatoeba", "--path", best, "--path", other, *data, "--json", "both.json").code == 0
    page = report(cli, *copies, "--results", tmp_path / "both.json")
    assert ["figure", "moco", "ranking", str(other), ""] in page.rows
    (row,) = [row for row in page.rows if row[0] == "mean of 1" and len(row) == 5]
    record = json.loads((copies[0] / "t.json").read_text())
    value, (low, high) = record["headline"]["mean of 1"], record["intervals"]["mean of 1"]
    assert row[1] == f"{value:.2f}[{low:.2f}, {high:.2f}]"
    assert ["tatoeba", f"{record['overlap']['found']} of 21"] in [row[:2] for row in page.rows]


@pytest.mark.slow
def test_runs_are_measured_with_pictures(two_runs: tuple[Path, Path], cli: Commands) -> None:
    page = report(cli, *two_runs, "--data", two_runs[0].parent / "data")
    assert ["figure", "moco", "ranking", "ranking − moco", ""] in page.rows
    (row,) = [row for row in page.rows if row[0] == "mean of 1"]
    first, second, difference = (float(re.match(r"[+-]?[\d.]+", cell)[0]) for cell in row[1:4])
    assert difference == pytest.approx(second - first, abs=0.011)
    labels, tips = page.named("aria-label"), page.named("data-tip")
    assert any(label.startswith("moco: sentences and their translations") for label in labels)
    assert "alignment and uniformity on de-en (lower is better)" in labels
    assert sum(tip.startswith("German: ") for tip in tips) == sum(tip.startswith("English: ") for tip in tips) == 24
    assert sum(tip.startswith("ranking, step ") for tip in tips) == 2  # both checkpoints
    assert "Not measured" not in page.text


def test_texts_of_files_are_escaped(two_runs: tuple[Path, Path], tmp_path: Path, cli: Commands) -> None:
    """Other JSON beside a run, and half a line of a run that was killed, are left out."""
    run = Path(shutil.copytree(two_runs[0], tmp_path / "run<b>", symlinks=True))
    values = {"languages": {EVIL: {"mean": 1.0}, "b": {"mean": 2.0}}, "sentences": [{EVIL: EVIL}]}
    points = [{"language": EVIL, "label": "1", "x": x, "y": 1.0} for x in (1.0, 2.0)]
    record = {
        "test": EVIL, "values": values, "headline": {EVIL: 1.0}, "intervals": {EVIL: [0.5, 1.5]},
        "model": {"path": EVIL}, "overlap": {"found": 1, "total": 2}, "version": EVIL,
    }  # fmt: skip
    files = {
        "result.json": record,
        "picture.json": {**record, "test": "scatter", "values": {**values, "points": points}},
        "data.json": {EVIL: {"splits": {EVIL: [{"rows": 1, "tokens": {EVIL: 2}}]}, "cleaning": {"a": {EVIL: 3}}}},
        "summary.json": {"best": {"metric": EVIL, "value": 1.0}},
        "launches.jsonl": {"event": "start", "host": EVIL, "command": EVIL, "versions": {EVIL: EVIL}},
        "other0.json": [], "other1.json": {"test": "tatoeba"}, "other2.json": {"models": [1]},
    }  # fmt: skip
    for name, content in files.items():
        (run / name).write_text(json.dumps(content))
    lines = [{"step": step, "kind": "train", EVIL: 1.5} for step in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step')
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub("data: .*", f"data: {json.dumps(EVIL)}", config))
    page = report(cli, run)
    assert len(page.scripts) == 1 and "alert" not in page.scripts[0]
    assert page.text.count(EVIL) > 8 and EVIL in "".join(page.named("data-tip")) + "".join(page.named("aria-label"))


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium (Debian's package chromium)")
def test_a_browser_runs_the_script_and_shows_values(two_runs: tuple[Path, Path], tmp_path: Path, cli: Commands) -> None:
    text = cli("report", *two_runs, "--output", "-").out
    move = (
        "<script>const svg = document.querySelector('svg[data-series]'), box = svg.getBoundingClientRect();"
        "svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.right, clientY: box.top}));</script></body>"
    )
    moved = re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", move)
    options = "--headless --no-sandbox --disable-gpu --enable-logging=stderr --virtual-time-budget=1000 --dump-dom"
    for name, page, shown in (("as-it-is", text, ""), ("moved", moved, "step 6\nmoco: ")):
        (tmp_path / f"{name}.html").write_text(page, encoding="utf-8")
        command = ["chromium", *options.split(), f"--user-data-dir={tmp_path}", (tmp_path / f"{name}.html").as_uri()]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert "CONSOLE" not in finished.stderr, finished.stderr
        tip = re.search(r'<div id="tip"[^>]*>([^<]*)</div>', finished.stdout)
        assert tip is not None and tip[1].startswith(shown) and bool(tip[1]) == bool(shown)

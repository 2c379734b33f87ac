"""``xrep-report`` on small real runs: what is on the page, that it stands alone, and that its texts are harmless."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib import rc_context

from tests.evaluation.conftest import write_tatoeba
from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs
from tests.support.once import made_once
from tests.support.runs import compose_run
from xrep.report.runs import read_results, read_runs
from xrep.training.run import train

VOID = {"meta", "wbr", "path", "use", "rect"}


@pytest.fixture(scope="module")
def two_runs(data_directory: Path) -> tuple[Path, Path]:
    """Two runs on the same data, whose objectives differ, and a Tatoeba test of German of 21 pairs. The second one is
    validated once."""

    def make(folder: Path) -> None:
        given = {"max_steps": 6, "log_every": 2, "save_every": 3}
        train(compose_run(data_directory, folder / "moco", **given, validate_every=3))
        ranking = {"criterion": "translation_ranking", "temperature": 0.07, "validate_every": 6}
        train(compose_run(data_directory, folder / "ranking", **given, **ranking))
        write_tatoeba(folder / "data" / "tatoeba", "deu", sentence_pairs(21))

    folder = made_once("report", make)
    return folder / "moco", folder / "ranking"


class Page(HTMLParser):
    """The text of a page, the cells of its tables by row, and its charts: title -> texts that the pointer shows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text, self.rows, self.charts, self.loaded = "", [], dict[str, list[str]](), set[str]()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given: dict[str, Any] = dict(attributes)
        self.loaded |= {"src", "href", "srcset", "onclick", "onload"} & {*given}
        if tag == "figure":
            self.shown = self.charts[given["aria-label"]] = []
        if "data-text" in given:
            self.shown.append(given["data-text"])
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & {*self.open}:
            self.text += data
            if {"td", "th"} & {*self.open}:
                self.rows[-1][-1] += data.strip()


def report(cli: Commands, *words: object, warned: str = "") -> Page:
    result = cli("report", *words, "--output", "-")
    assert result.code == 0 and result.wrote == frozenset() and warned in result.err
    return Page(result.out)


def test_runs_are_compared(two_runs: tuple[Path, Path], tmp_path: Path, cli: Commands) -> None:
    page, run = report(cli, *two_runs), two_runs[0]
    assert ["option", "moco", "ranking"] in page.rows and ["criterion.queue_size", "100", ""] in page.rows
    assert ["criterion.name", "dual_moco", "translation_ranking"] in page.rows
    first, _, everything = page.text.partition("All ")
    assert "criterion.temperature" in first and "model.layers" not in first and "model.layers" in everything
    assert "criterion.queue_dtype" not in first  # at its default, and the other objective has no queue
    # The curves hold the recorded values. Losses of different objectives have charts of their own.
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    loss = {record["step"]: record["loss"] for record in records if record["kind"] == "train"}
    drawn = page.charts["training: loss of dual_moco"]
    assert [*loss] == [2, 4, 6] and drawn == [f"moco, step {step}: {value:.5g}" for step, value in loss.items()]
    assert all(text.startswith("ranking, ") for text in page.charts["training: loss of translation_ranking"])
    assert all("\nranking, step" in text for text in page.charts["training: accuracy"])
    valid = page.charts["validation: accuracy"]  # of the other run there is one value, which is a number
    assert [text.partition(":")[0] for text in valid] == ["moco, step 3", "moco, step 6"]
    (row,) = [row for row in page.rows if row[0] == "validation: accuracy"]
    assert row[1] == "" and row[2].endswith("step 6")
    # Data, summary, launches and versions.
    assert ["train de-en", "600"] in [row[:2] for row in page.rows] and f"{run}" in page.text
    assert "moco, ranking" in page.text and "Cleaning, all files together: 7" in page.text
    (row,) = [row for row in page.rows if row[0].startswith("moco") and "180" in row]
    assert row[1:4] == ["dual_moco", "6", "180"]
    (launch,) = [row for row in page.rows if row[:2] == ["moco", "0 to 6"]]
    record = json.loads((run / "launches.jsonl").read_text().splitlines()[0])
    assert launch[2:5] == [record["time"], record["host"], "cpu"] and launch[6] == record["command"]
    assert ["torch", *[record["versions"]["torch"]] * 2] in page.rows
    # Of one run, what is not a default.
    first = report(cli, two_runs[1]).text.partition("All ")[0]
    assert "Report of ranking" in first and "criterion.temperature" in first and "lr_scheduler" in first
    assert "criterion.margin" not in first and "model.pooling" not in first
    # The page stands alone, and is the same the next time.
    assert page.loaded == set()
    for name, settings in (
        ("one", {}),
        ("two", {"axes.xmargin": 0.3, "grid.linestyle": "--"}),
    ):  # of a user's matplotlibrc
        with rc_context(settings):
            assert cli("report", *two_runs, "--output", name).wrote == {name}
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.slow
def test_results_beside_runs_and_of_other_models(two_runs: tuple[Path, Path], tmp_path: Path, cli: Commands) -> None:
    copies = [Path(shutil.copytree(run, tmp_path / run.name, symlinks=True)) for run in two_runs]
    data = ["--data", two_runs[0].parent / "data" / "tatoeba"]
    assert cli("eval", "tatoeba", "--path", copies[0] / "best", *data, "--json", copies[0] / "t.json").code == 0
    best, several = copies[1] / "best", [copies[1] / f"checkpoint-{step:08d}" for step in (3, 6)]
    (other,) = [path for path in several if path.resolve() != best.resolve()]
    assert cli("eval", "tatoeba", "--path", best, "--path", other, *data, "--json", "both.json.gz").code == 0
    page = report(cli, *copies, "--results", tmp_path / "both.json.gz")
    assert ["figure", "moco", "ranking", str(other), ""] in page.rows
    (row,) = [row for row in page.rows if row[0] == "mean of 1" and len(row) == 5]
    record = json.loads((copies[0] / "t.json").read_text())
    value, (low, high) = record["headline"]["mean of 1"], record["intervals"]["mean of 1"]
    assert row[1] == f"{value:.2f}[{low:.2f}, {high:.2f}]"
    assert ["tatoeba", f"{record['overlap']['found']} of 21"] in [row[:2] for row in page.rows]


@pytest.mark.slow
def test_runs_are_measured_with_pictures(two_runs: tuple[Path, Path], cli: Commands) -> None:
    page = report(cli, *two_runs, "--data", two_runs[0].parent / "data")
    assert ["figure", "moco", "ranking", "difference", ""] in page.rows
    (row,) = [row for row in page.rows if row[0] == "mean of 1"]
    first, second, difference = (float(re.match(r"[+-]?[\d.]+", cell)[0]) for cell in row[1:4])
    assert difference == pytest.approx(second - first, abs=0.011)
    sentences = [texts for title, texts in page.charts.items() if "sentences and their translations" in title]
    assert [[text.partition(": ")[0] for text in own] for own in sentences] == [["German"] * 12 + ["English"] * 12] * 2
    points = page.charts["alignment and uniformity on de-en (lower is better)"]
    assert [text.partition(" ")[0] for text in points] == ["moco,", "moco,", "ranking,", "ranking,"]
    assert "Not measured" not in page.text


def test_damaged_records_are_named_and_names_are_escaped(two_runs, tmp_path, cli):
    run = Path(shutil.copytree(two_runs[0], tmp_path / "run<b>", symlinks=True))
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "loss": 1.0}\n{"step')  # no kind, and half a line of a run that was killed
    for name in ("half.json", "summary.json"):
        (run / name).write_text((two_runs[0] / "summary.json").read_text()[:20])
    (run / "result.json").write_text(json.dumps({"test": "tatoeba", "values": {}}))
    (run / "other.json").write_text("[]")  # no record of ours
    page = report(cli, run, warned=f"warning: {run}/metrics.jsonl:6: a damaged record is left out")
    for place in ("metrics.jsonl:6: a damaged record is left out: it has no 'kind'", "metrics.jsonl:7: ", "half.json"):
        assert f"{run}/{place}" in page.text
    assert page.text.count("a damaged record") == 5 and "Report of run<b>" in page.text


def test_the_best_checkpoint_alone_has_the_name_of_a_moved_run(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    (run,) = read_runs([shutil.copytree(two_runs[0], tmp_path / "moco", symlinks=True)])
    for name in ("best", "last", "checkpoint-00000003"):
        record = {"test": "sts", "model": {"path": f"old/moco/{name}"}, "version": "1", "overlap": None}
        record |= dict.fromkeys(("values", "headline", "intervals", "settings", "data"), {})
        (run.path / f"{name}.json").write_text(json.dumps(record))
    assert list(read_results([run], [])["sts"]) == ["moco", "old/moco/checkpoint-00000003", "old/moco/last"]
    # Of another split there is another result of the same test and model.
    record |= {"model": {"path": "old/moco/best"}, "settings": {"split": "dev"}}
    (run.path / "dev.json").write_text(json.dumps(record))
    results = read_results([run], [])
    assert list(results) == ["sts", "sts (dev)"] and list(results["sts (dev)"]) == ["moco"]


def test_pictures_need_matplotlib(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrep.evaluation.plots.importlib.util.find_spec", lambda name: None)
    result = cli("report", "run", "--output", "page.html")
    assert result.code == 2 and result.wrote == frozenset()
    assert result.err == "xrep-report: error: a plot needs matplotlib; pip install 'xrep[plot]'\n"


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium (Debian's package chromium)")
def test_a_browser_shows_values_under_the_pointer(two_runs: tuple[Path, Path], tmp_path: Path, cli: Commands) -> None:
    text = cli("report", *two_runs, "--output", "-").out
    point = (
        "<script>const svg = document.querySelector('figure svg'); svg.scrollIntoView({block: 'center'});"
        "const box = svg.getBoundingClientRect();"
        "document.title = document.elementFromPoint(box.right - 20, box.top + 50).dataset.text;</script></body>"
    )
    (tmp_path / "page.html").write_text(text.replace("</body>", point), encoding="utf-8")
    options = "--headless --no-sandbox --disable-gpu --enable-logging=stderr --virtual-time-budget=1000 --dump-dom"
    command = ["chromium", *options.split(), f"--user-data-dir={tmp_path}", (tmp_path / "page.html").as_uri()]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in finished.stderr, finished.stderr
    assert "<title>moco, step 6: " in finished.stdout

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

from xrep_cli.eval import main as evaluate
from xrep_cli.report import main

EVIL = "\"'><script>alert(1)</script>&amp;"
VOID = {"meta", "br", "wbr"}


class Page(HTMLParser):
    """The text of a page, its cells by row, and the attributes of its elements. Elements must be closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text, self.rows, self.attributes = "", [], []
        self.scripts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]

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


def report(output: Path, *arguments: object) -> Page:
    assert main([*map(str, arguments), "--output", str(output)]) == 0
    return Page(output)


@pytest.fixture
def page(two_runs: tuple[Path, Path], tmp_path: Path) -> Page:
    return report(tmp_path / "report.html", *two_runs)


def test_options_that_differ_are_a_table(page: Page, two_runs: tuple[Path, Path]) -> None:
    assert ["option", "moco", "ranking"] in page.rows
    assert ["criterion.name", "dual_moco", "translation_ranking"] in page.rows
    assert ["criterion.queue_size", "100", ""] in page.rows
    first, _, everything = page.text.partition("All ")
    assert "criterion.temperature" in first and "model.layers" not in first and "model.layers" in everything
    assert "criterion.queue_dtype" not in first  # at its default, and the other objective has no queue


def test_curves_hold_the_recorded_values(page: Page, two_runs: tuple[Path, Path]) -> None:
    charts = [json.loads(series) for series in page.named("data-series")]
    records = [json.loads(line) for line in (two_runs[0] / "metrics.jsonl").read_text().splitlines()]
    loss = [[record["step"], record["loss"]] for record in records if record["kind"] == "train"]
    assert [step for step, _ in loss] == [2, 4, 6]
    own = [[point[:2] for point in one["points"]] for chart in charts for one in chart if one["name"] == "moco"]
    assert loss in own
    valid = [[record["step"], record["accuracy"]] for record in records if record["kind"] == "valid"]
    assert len(valid) == 2 and valid in own
    assert {one["name"] for one in charts[0]} == {"moco", "ranking"}


def test_data_and_summary_are_shown(page: Page, two_runs: tuple[Path, Path]) -> None:
    assert ["train de-en", "600"] in [row[:2] for row in page.rows]
    (row,) = [row for row in page.rows if row and row[0].startswith("moco") and "180" in row]
    assert row[1:4] == ["dual_moco", "6", "180"]
    assert "Cleaning, all files together: 7" in page.text and f"{two_runs[0]}" in page.text


def test_launches_and_versions_are_shown(page: Page, two_runs: tuple[Path, Path]) -> None:
    (launch,) = [row for row in page.rows if row[:2] == ["moco", "0 to 6"]]
    record = json.loads((two_runs[0] / "launches.jsonl").read_text().splitlines()[0])
    assert launch[2:5] == [record["time"], record["host"], "cpu"] and launch[6] == record["command"]
    assert ["torch", *[record["versions"]["torch"]] * 2] in page.rows


def test_one_run_shows_what_is_not_a_default(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    page = report(tmp_path / "report.html", two_runs[1])
    first = page.text.partition("All ")[0]
    assert "Report of ranking" in first and "criterion.temperature" in first and "lr_scheduler" in first
    assert "criterion.margin" not in first and "model.pooling" not in first


def test_the_page_stands_alone_and_runs_only_its_script(page: Page) -> None:
    assert not {name for _, name, _ in page.attributes} & {"src", "href", "srcset", "onclick", "onload"}
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(value for value in page.named("content") if "default-src" in value)
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_the_same_runs_give_the_same_bytes(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    for name in ("one", "two"):
        report(tmp_path / name, *two_runs)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_results_beside_runs_and_of_other_models(
    two_runs: tuple[Path, Path], tests_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    copies = [Path(shutil.copytree(run, tmp_path / run.name, symlinks=True)) for run in two_runs]
    data = ["--data", str(tests_folder / "tatoeba")]
    assert evaluate(["tatoeba", "--path", str(copies[0] / "best"), *data, "--json", str(copies[0] / "t.json")]) == 0
    best, other = copies[1] / "best", copies[1] / "checkpoint-00000003"
    both = ["--path", str(best), "--path", str(other), *data, "--json", str(tmp_path / "both.json")]
    if best.resolve() == other.resolve():
        other = copies[1] / "checkpoint-00000006"
        both[3] = str(other)
    assert evaluate(["tatoeba", *both]) == 0
    page = report(tmp_path / "report.html", *copies, "--results", tmp_path / "both.json")
    assert ["figure", "moco", "ranking", str(other), ""] in page.rows
    (row,) = [row for row in page.rows if row[0] == "mean of 1" and len(row) == 5]
    record = json.loads((copies[0] / "t.json").read_text())
    value, (low, high) = record["headline"]["mean of 1"], record["intervals"]["mean of 1"]
    assert row[1] == f"{value:.2f}[{low:.2f}, {high:.2f}]"
    overlap = record["overlap"]
    assert ["tatoeba", f"{overlap['found']} of 21"] in [row[:2] for row in page.rows]


@pytest.mark.slow
def test_runs_are_measured_with_pictures(two_runs: tuple[Path, Path], tests_folder: Path, tmp_path: Path) -> None:
    page = report(tmp_path / "report.html", *two_runs, "--data", tests_folder)
    assert ["figure", "moco", "ranking", "ranking − moco", ""] in page.rows
    (row,) = [row for row in page.rows if row[0] == "mean of 1"]
    first, second, difference = (float(re.match(r"[+-]?[\d.]+", cell)[0]) for cell in row[1:4])
    assert difference == pytest.approx(second - first, abs=0.011)
    labels = page.named("aria-label")
    assert any(label.startswith("moco: sentences and their translations") for label in labels)
    assert "alignment and uniformity on de-en (lower is better)" in labels
    tips = page.named("data-tip")
    assert sum(tip.startswith("German: ") for tip in tips) == sum(tip.startswith("English: ") for tip in tips) == 24
    assert sum(tip.startswith("ranking, step ") for tip in tips) == 2  # both checkpoints
    assert "Not measured" not in page.text


def test_texts_of_files_are_escaped(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(two_runs[0], tmp_path / "run<b>", symlinks=True))
    record = {
        "test": EVIL,
        "values": {"languages": {EVIL: {"mean": 1.0}, "b": {"mean": 2.0}}, "sentences": [{EVIL: EVIL}]},
        "headline": {EVIL: 1.0},
        "intervals": {EVIL: [0.5, 1.5]},
        "model": {"path": EVIL},
        "overlap": {"found": 1, "total": 2},
        "version": EVIL,
    }
    points = [{"language": EVIL, "label": "1", "x": x, "y": 1.0} for x in (1.0, 2.0)]
    picture = {**record, "test": "scatter", "values": {**record["values"], "points": points}}
    (run / "result.json").write_text(json.dumps(record))
    (run / "picture.json").write_text(json.dumps(picture))
    (run / "data.json").write_text(
        json.dumps({EVIL: {"splits": {EVIL: [{"rows": 1, "tokens": {EVIL: 2}}]}, "cleaning": {"a": {EVIL: 3}}}})
    )
    (run / "summary.json").write_text(json.dumps({"best": {"metric": EVIL, "value": 1.0}}))
    launch = {"event": "start", "host": EVIL, "command": EVIL, "versions": {EVIL: EVIL}}
    (run / "launches.jsonl").write_text(json.dumps(launch))
    lines = [{"step": step, "kind": "train", EVIL: 1.5} for step in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub("data: .*", f"data: {json.dumps(EVIL)}", config))
    page = report(tmp_path / "report.html", run)
    assert len(page.scripts) == 1 and "<script>alert" not in (tmp_path / "report.html").read_text()
    assert page.text.count(EVIL) > 8 and EVIL in "".join(page.named("data-tip")) + "".join(page.named("aria-label"))


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"test": "tatoeba"},
        {"test": 3, "model": {"path": "x"}},
        {"models": [1]},
        {"test": "all", "values": {"results": [1]}},
        {"test": "a", "model": {"path": "a\0b"}},
    ],
)
def test_other_json_beside_a_run_is_left_out(two_runs: tuple[Path, Path], tmp_path: Path, content: object) -> None:
    run = Path(shutil.copytree(two_runs[0], tmp_path / "run", symlinks=True))
    (run / "other.json").write_text(json.dumps(content))
    assert "Evaluations" not in report(tmp_path / "report.html", run).text


def test_odd_records_do_no_harm(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(two_runs[0], tmp_path / "run", symlinks=True))
    odd = [1, None, "x", [], {}, True, float("nan"), float("inf"), 1e308, 10**400]
    for i, value in enumerate(odd):
        record = {"test": "scatter", "model": {"path": f"m{i}"}, "headline": {"f": value}, "intervals": {"f": [value]}}
        record |= {"overlap": {"found": value, "total": value}, "values": {"points": [value], "sentences": value}}
        alignment = {**record, "test": "alignment", "values": {"checkpoints": [value], "languages": {"a": value}}}
        for name, content in (("scatter", record), ("alignment", alignment)):
            (run / f"{name}{i}.json").write_text(json.dumps(content))
    lines = [json.dumps({"step": value, "kind": "train", "loss": value}) for value in odd]
    (run / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 1, "kind": "train", "loss": 5e-324}', "{", "[]"]))
    (run / "data.json").write_text(json.dumps({f"{i}": {"splits": {"a": [value]}} for i, value in enumerate(odd)}))
    (run / "summary.json").write_text(json.dumps({"best": {"value": 1.0}, "steps": "x"}))
    launches = [
        {"event": event, "step": value, "versions": value} for value in odd for event in ("end", "start", value)
    ]
    (run / "launches.jsonl").write_text("\n".join(map(json.dumps, launches)))
    report(tmp_path / "report.html", run)


def refusal(capsys: pytest.CaptureFixture, *arguments: object) -> str:
    assert main([*map(str, arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    return printed.err


def test_what_cannot_be_reported(
    two_runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, output = two_runs[0], ["--output", tmp_path / "r.html"]
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    (tmp_path / "empty").mkdir()
    cases = {
        "absent: no such directory; name the directory of a run": [tmp_path / "absent", *output],
        "empty: holds no run; name the directory of a run": [tmp_path / "empty", *output],
        "a run is named twice": [run, f"{run}/", *output],
        "bad.json: not JSON": [run, "--results", bad, *output],
        "none.json: no such file; name what xrep-eval --json wrote": [
            run,
            *output,
            "--results",
            tmp_path / "none.json",
        ],
        "config.yaml: not a result": [run, *output, "--results", run / "summary.json"],
        "--output is the same file as --results": [run, "--results", bad, "--output", bad],
        "no data of any test in it": [run, *output, "--data", tmp_path / "empty"],
        "--output is the same file as a file of RUN": [run, "--output", run / "metrics.jsonl"],
    }
    for message, arguments in cases.items():
        message = message.replace("config.yaml", "summary.json")
        assert message in refusal(capsys, *arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.json", "empty"]


def test_a_report_in_the_directory_of_a_run_is_written_again(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(two_runs[0], tmp_path / "run", symlinks=True))
    for _ in range(2):
        report(run / "report.html", run)


def test_standard_output(two_runs: tuple[Path, Path], capfdbinary: pytest.CaptureFixture) -> None:
    assert main([str(two_runs[0]), "--output", "-"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"<!doctype html>")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium (Debian's package chromium)")
def test_a_browser_runs_the_script_and_shows_values(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    report(tmp_path / "report.html", *two_runs)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    move = (
        "<script>const svg = document.querySelector('svg[data-series]'), box = svg.getBoundingClientRect();"
        "svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.right, clientY: box.top}));</script></body>"
    )
    policy = re.compile(r"<meta http-equiv[^>]*>")
    (tmp_path / "moved.html").write_text(policy.sub("", text).replace("</body>", move), encoding="utf-8")
    chromium = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    options = [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=1000", "--dump-dom"]
    for name, shown in (("report.html", ""), ("moved.html", "step 6\nmoco: ")):
        command = [*chromium, *options, (tmp_path / name).as_uri()]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert "CONSOLE" not in finished.stderr, finished.stderr
        tip = re.search(r'<div id="tip"[^>]*>([^<]*)</div>', finished.stdout)
        assert tip is not None and tip[1].startswith(shown) and bool(tip[1]) == bool(shown)

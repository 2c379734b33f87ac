"""The command ``xrep``: it lists the others, runs them, and completes what is typed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import xrep
from tests.support.commands import Commands
from tests.support.runs import environment
from xrep.registry import CRITERIA, EVALUATIONS, TASKS
from xrep_cli.completion import script
from xrep_cli.eval import main as xrep_eval
from xrep_cli.xrep import PROGRAMS, summary


def test_it_lists_every_command(cli: Commands) -> None:
    shown = cli("xrep")
    for name in PROGRAMS:
        assert f"  {name:<12}{summary(name)}\n" in shown.out and summary(name).endswith(".")
    assert (shown.code, shown.out) == (0, cli("xrep", "--help").out)
    assert cli("xrep", "--version").out == f"xrep {xrep.__version__}\n"


HELP = """
import contextlib, importlib, io, json, sys
shown = []
for name, *words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            code = importlib.import_module(f"xrep_cli.{name}").main([*words, "--help"])
        except SystemExit as end:
            code = end.code
    shown.append([code, out.getvalue()])
print(json.dumps(shown))
"""
PARTS = "parts: [{task: bitext, criterion: dual_moco}, {name: rank, task: bitext, criterion: translation_ranking}]\n"
STAGES = "task: bitext\ncriterion: dual_moco\nstages: [{}, {}]\n"


@pytest.mark.slow
def test_help_teaches(tmp_path: Path) -> None:
    (tmp_path / "parts.yaml").write_text(PARTS)
    (tmp_path / "stages.yaml").write_text(STAGES)
    lines = [["eval", "all"], ["eval", "sts"], ["eval", "tatoeba"], ["xrep"], *([name] for name in PROGRAMS)]
    lines += [["train", "--task", "bitext", "--criterion", name] for name in CRITERIA.names()]
    lines += [["train", "--task", name, "--criterion", "dual_moco"] for name in TASKS.names()]
    lines += [["train", "--config", f"{name}.yaml"] for name in ("parts", "stages")]
    lines += [["mine", "negatives"], *(["search", verb] for verb in ("build", "add", "query", "check"))]
    lines += [["jobs", verb] for verb in ("status", "retry")]
    given = {"input": json.dumps(lines), "cwd": tmp_path, "env": environment(), "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", HELP], **given)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    for (name, *words), (code, text) in zip(lines, shown, strict=True):
        assert code == 0, (name, words)
        verb = " ".join(words[:1]) if name in ("eval", "jobs", "mine", "search") else ""
        assert name == "xrep" or f"xrep-{name} {verb}" in text.partition("\n")[2], f"no example: {name} {words}"
        if "--criterion" in words:
            assert f"(chosen: {words[-1]})" in " ".join(text.split())
    done = subprocess.run(
        [sys.executable, "-m", "xrep", "--version"], env=environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"xrep {xrep.__version__}\n")


@pytest.mark.slow
def test_every_evaluation_has_a_summary_and_an_example() -> None:
    summaries = xrep_eval.parser().format_help()
    for name in EVALUATIONS.names():
        text = EVALUATIONS.load(name).__doc__
        assert f"xrep-eval {name} --" in text and " ".join(text.split("\n")[0].split())[:20] in summaries
        xrep_eval.parser(name)


def test_it_runs_a_command_and_passes_its_code_on(cli: Commands) -> None:
    done = cli("xrep", "encode", "--path", "a", "--input", "b", "--output", "c.txt")
    assert done.code == 2 and done.err.startswith("xrep-encode: error: c.txt: the output is a .npy file or a folder;")


COMPLETED = {
    "xrep tr": ["train"],
    "xrep-train --criterion dual": ["dual_moco"],
    "xrep train --criterion dual": ["dual_moco"],
    "xrep-train --queue-s": ["--queue-size"],
    "xrep-train --precision b": ["bf16", "bfloat16"],
    "xrep-eval tato": ["tatoeba"],
    "xrep eval tato": ["tatoeba"],
    "xrep-eval tatoeba --margin r": ["ratio"],
    "/usr/bin/xrep-export --form": ["--format"],
    "xrep-export --format s": ["sentence-transformers", "static"],
    "xrep-search bu": ["build"],
    "xrep doct": ["doctor"],
    "xrep-recipes sh": ["show"],
    "xrep-encode --path run": [],
}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_bash_completes() -> None:
    text = script("bash", PROGRAMS)
    for line in COMPLETED:
        name = "_shtab_" + Path(line.split()[0]).name.replace("-", "_")
        text += f'COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); {name}; echo "${{COMPREPLY[@]}}"\n'
    done = subprocess.run(["bash", "-s"], input=text, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and [line.split() for line in done.stdout.splitlines()] == list(COMPLETED.values())


@pytest.mark.slow
def test_every_shell_has_every_part() -> None:
    for shell in ("bash", "zsh", "fish"):
        text = script(shell, PROGRAMS)
        assert all(name in text for name in (*CRITERIA.names(), *EVALUATIONS.names(), "queue-size", "drop-overlap"))


MISTAKES = """
train --version
train --config
encode --path enc --input absent --output v.npy
mine --path enc --source absent --target absent --output m.tsv
mine --source-vectors absent --target-vectors absent --output m.tsv
mine negatives --path enc --bitext de-en=absent --output m.tsv
score --path enc --bitext de-en=absent --output m.tsv
search build --path enc --input absent --output index
search add index --input absent
generate --path nmt --input absent
predict --path cls --input here --output here
eval tatoeba --path enc --data absent
eval sts --banana
predict --path cls --input here --output s3://bucket/labels
report run --output absent/page.html
sweep r.yaml --save-dir s --grid seed=1,2
"""
IMPORTED = """
import importlib, json, sys
for name, *words in json.load(sys.stdin):
    try:
        code = importlib.import_module(f"xrep_cli.{name}").main(words)
    except SystemExit as end:
        code = end.code
    print(name, *words, code == (2 * (words[-1] not in ("--help", "--version"))), "torch" in sys.modules)
"""


def test_nobody_waits_for_torch_to_learn_of_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    parsed = [[name, word] for name in PROGRAMS if name != "train" for word in ("--help", "--banana")]
    lines = [*parsed, *(line.split() for line in MISTAKES.strip().splitlines())]
    given = {"input": json.dumps(lines), "cwd": tmp_path, "env": environment(), "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", IMPORTED], **given)
    shown = [line for line in done.stdout.splitlines() if line.endswith(("True", "False"))]
    assert len(shown) == len(lines) and all(line.endswith("True False") for line in shown), shown


def test_a_value_that_begins_with_a_dash(cli: Commands) -> None:
    done = cli("encode", "--path", "enc", "--input", "-lines.de", "--output", "v.npy")
    assert "--input: expected one argument; write --input=VALUE if it begins with a dash" in done.err
    assert "-lines.de: no such file" in cli("encode", "--path", "enc", "--input=-lines.de", "--output", "v.npy").err


def test_files_are_named_once(cli: Commands) -> None:
    twice = ("--bitext", "de-en=m.tsv", "--bitext", "de-en=t.tsv")
    done = cli("score", "--path", "enc", *twice, "--output", "kept.tsv")
    assert (done.code, done.err) == (2, "xrep-score: error: --bitext is given twice; give it once\n")
    assert "m.tsv: no such file" in cli("preprocess", *twice, "--destdir", "bin").err
    assert "--json is given twice" in cli("eval", "tatoeba", "--path", "enc", "--json", "--json", "a.json").err


@pytest.mark.parametrize(
    "line",
    [
        "export --path enc --format hf --output",
        "search build --path enc --input here --output",
        "eval tatoeba --path enc --data here --cache",
        "sweep demo --grid optimizer.lr=1e-3,1e-2 --save-dir",
        "predict --path cls --input here --output",
        "train here --task bitext --criterion translation_ranking --save-dir",
    ],
)
def test_what_this_machine_writes_has_no_address_of_a_store(line: str, cli: Commands, tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    done = cli(*line.split(), "s3://bucket/written")
    assert done.code == 2 and "is in an object store; " in done.err and "and copy it\n" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["here"]

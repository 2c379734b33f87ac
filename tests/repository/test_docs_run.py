"""The guides of docs/ are followed as they stand: their commands and programs run in order, with small budgets."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository.test_readme import sentences
from tests.support.corpus import write_lines
from tests.support.nli_data import nli_rows
from xrep.text.tmx import write_memory

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
SMALLER = [
    (r"^xrep-train (?!.*--max-steps)", "xrep-train --max-steps 6 --size tiny "),
    (r"--max-steps \d+", "--max-steps 6"),
    (r"--vocab-size \d+", "--vocab-size 100"),
    (r"--hidden-size \d+", "--hidden-size 32"),
    (r"--feedforward-size \d+", "--feedforward-size 64"),
    (r"(--(?:target-encoder|teacher) teacher/)", r"\1 --max-length 32"),  # which the small teacher can read
    ("^xrep-search serve", f"{sys.executable} -m xrep_cli.search serve"),  # the process that `kill` ends
    (r"1\.06", "0"),  # an encoder of six steps scores no pair higher
]
WRITTEN = {
    "choose-an-objective": [
        "runs/cmlm/best/model.safetensors",
        "runs/grouped/best",
        "runs/angle/best",
        "runs/guided/best",
        "runs/translator-frozen/best",
        "translated.en",
        "runs/labels/best/model.safetensors",
    ],
    "decoders": ["vectors.npy", "index/manifest.json", "my-decoder/modules.json"],
    "extending": [f"runs/bitext-{name}/best" for name in ("cosine_distance", "translation_ranking")],
    "filtering": ["kept.en", "scores.png", "filtered.json", "lines.scored.tsv", "data-bin/kept/manifest.json"],
    "mining": ["mined.hyp.en", "planted/de-en.test.gold"],
    "multilingual-student": ["student.npy", "my-student/modules.json"],
    "objective": [f"runs/bitext-{name}/best" for name in ("hardest_negative", "sigmoid")],
    "own-data": ["report.html", "mined.tsv", "my-encoder/modules.json", "runs/third/best", "data-bin", "flores.json"],
    "serving": [
        "vectors.npy",
        "my-encoder/modules.json",
        "index/manifest.json",
        "my-translator/model.bin",
        "my-trained-static/modules.json",
    ],
    "translation-memory": ["clean0.tmx", "clean1.tmx", "mined.tmx", "index/manifest.json"],
    "troubleshooting": ["runs/large/best"],
}
"""Files that there must be in the end, for each guide whose commands are run."""


def write_sides(folder: Path, name: str, rows: list[tuple[str, str, str]]) -> None:
    write_lines(folder / f"{name}.de", [german for _, german, _ in rows])
    write_lines(folder / f"{name}.en", [english for english, _, _ in rows])


def write_data(folder: Path) -> None:
    """Write what the guides say that their reader has."""
    rows = list(sentences())
    random.Random(0).shuffle(rows)
    write_sides(folder / "corpus", "train", rows[:600])
    parts = {
        "seed": rows[:400],
        "valid": rows[400:440],
        "test": rows[440:480],
        "dev": rows[480:520],
        "lines": rows[:50],
        "crawl": [
            *rows[:300],
            *((one[0], other[1], "") for one, other in zip(rows[300:340], rows[301:341], strict=True)),
        ],
    }
    for name, some in parts.items():
        write_sides(folder, name, some)
    write_lines(folder / "checked.tsv", [f"{german}\t{english}" for english, german, _ in rows[340:400]])
    for name, first in (("mono", 520), ("old", 600)):
        write_lines(folder / f"{name}.de", [german for _, german, _ in rows[first : first + 200]])
        write_lines(folder / f"{name}.en", [english for english, _, _ in reversed(rows[first + 40 : first + 240])])
    for name, some in (("news", rows[:600]), ("valid", rows[600:])):
        write_sides(folder / "mono", name, some)
    for code, column in (("deu", 1), ("eng", 0)):
        write_lines(folder / "test" / f"tatoeba.deu-eng.{code}", [row[column] for row in parts["test"]])
    changed = {f"{row[0]} 9": {"errtype": "number", "src": row[0]} for row in parts["test"]}
    texts = {
        "devtest/deu_Latn": [row[1] for row in parts["test"]],
        "devtest/eng_Latn": [row[0] for row in parts["test"]],
    }
    for name, some in {**texts, "devtest_augmented/eng_Latn_augmented": list(changed)}.items():
        write_lines(folder / "flores200_dataset" / f"{name}.devtest", some)
    kinds = folder / "flores200_dataset" / "devtest_augmented" / "eng_Latn_errtype.devtest.json"
    kinds.write_text(json.dumps(changed), encoding="utf-8")
    nested = [{"translation": {"de": german, "en": english}} for english, german, _ in rows[:600]]
    write_lines(folder / "hf-corpus" / "train.jsonl", [json.dumps(row, ensure_ascii=False) for row in nested])
    write_lines(folder / "mined.tsv", [f"1.1\t{german}\t{english}" for english, german, _ in rows[:20]])
    for name, first in (("train", 0), ("dev", 400)):
        pairs = [(rows[n][0], rows[n + n % 3][0], 5 - n % 3) for n in range(first, first + 200)]
        write_lines(folder / "scored" / f"{name}.tsv", [f"{score}\t{one}\t{two}" for one, two, score in pairs])
    write_lines(folder / "lines.txt", [row[0] for row in rows[:50]])
    write_lines(folder / "more.txt", [row[0] for row in parts["dev"]])
    with (folder / "memory.tmx").open("w", encoding="utf-8") as file:
        write_memory(file, ("de", "en"), ((1.0, german, english) for english, german, _ in rows[:600]))
    for split, language in (("train", "en"), ("dev", "en"), ("test", "de")):
        write_lines(folder / "xnli" / f"{split}-{language}.tsv", ["\t".join(row) for row in nli_rows(20, language)])
    for split, some in (("train", rows[:500]), ("valid", rows[500:600])):
        pairs = [json.dumps({"de": german, "en": english}, ensure_ascii=False) for english, german, _ in some]
        write_lines(folder / "jsonl" / f"{split}.jsonl", pairs)


def blocks(guide: str) -> list[tuple[str, str]]:
    """Return language and text of the blocks that can be run."""
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    return re.findall(r"^```(sh|python)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def test_all_guides_with_commands_are_run() -> None:
    assert {path.stem for path in GUIDES.glob("*.md") if blocks(path.stem)} == {*WRITTEN, "many-gpus"}


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("guide", WRITTEN)
def test_a_guide(guide: str, install_commands, repository: Path, trained_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    write_data(folder)
    (folder / "runs").mkdir()
    (folder / "teacher").symlink_to(trained_run / "best")
    if run := {"filtering": "first", "serving": "demo", "troubleshooting": "first"}.get(guide):
        (folder / "runs" / run).symlink_to(trained_run)
    if guide == "decoders":
        from tests.interop.test_decoders import write_decoder

        (folder / "decoder").symlink_to(write_decoder(tmp_path / "decoder", "Qwen3"))
    install_commands(tmp_path / "bin", {})
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    environment |= {"PYTHONPATH": f"{repository}:{folder}", "XREP_HOME": str(tmp_path / "home")}
    environment["PATH"] = f"{tmp_path / 'bin'}:{environment['PATH']}"
    for language, block in blocks(guide):
        command = [sys.executable, "-c", block]
        if language == "python" and (name := re.match(r"# (\w+\.py)\n", block)):
            (folder / name[1]).write_text(block, encoding="utf-8")
            command = [sys.executable, "-m", "py_compile", name[1]]
        elif language == "sh":
            for pattern, replacement in SMALLER:
                block = re.sub(pattern, replacement, block.replace("\\\n", " "), flags=re.MULTILINE)
            command = ["bash", "-exuo", "pipefail", "-c", block]
        result = subprocess.run(command, cwd=folder, env=environment, input="", capture_output=True, text=True)
        assert result.returncode == 0, result.stderr[-4000:] + result.stdout[-2000:]
    assert [name for name in WRITTEN[guide] if not (folder / name).exists()] == []

"""Every shell command of the README is run as it stands, in order, in a copy of the repository.

The programs are the real ones, though they start from a process that has imported torch
(``tests.support.programs``). Their budget is smaller: BUDGET is added to the arguments of each, and texts are
a few hundred sentences. Nothing is fetched or installed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.support.corpus import write_lines
from xrep.text.demo_corpus import LANGUAGES
from xrep.text.resources import find_resource

MODEL = "--layers 1 --heads 4 --hidden-size 32 --feedforward-size 64".split()
BUDGET = {
    "xrep-train": ["--max-steps", "6", "--batch-size", "16", "--vocab-size", "100", *MODEL],
    "xrep-preprocess": ["--vocab-size", "100"],
}
# Phrases of a sentence in English, German and French.
PHRASES = [
    [("the old man", "der alte Mann", "le vieil homme"), ("my sister", "meine Schwester", "ma sœur")]
    + [("the teacher", "der Lehrer", "le professeur"), ("a young bird", "ein junger Vogel", "un jeune oiseau")]
    + [("our neighbour", "unser Nachbar", "notre voisin"), ("nobody here", "niemand hier", "personne ici")],
    [("sees", "sieht", "voit"), ("looks for", "sucht", "cherche"), ("finds", "findet", "trouve")]
    + [("remembers", "kennt noch", "se rappelle"), ("paints", "malt", "peint"), ("loses", "verliert", "perd")],
    [("the red house", "das rote Haus", "la maison rouge"), ("a letter", "einen Brief", "une lettre")]
    + [("the key", "den Schlüssel", "la clé"), ("two trees", "zwei Bäume", "deux arbres")]
    + [("the last train", "den letzten Zug", "le dernier train"), ("some bread", "etwas Brot", "du pain")],
    [("today", "heute", "aujourd'hui"), ("in the garden", "im Garten", "dans le jardin")]
    + [("at night", "in der Nacht", "la nuit"), ("before winter", "vor dem Winter", "avant l'hiver")],
]


def readme_code(repository: Path, language: str) -> list[str]:
    text = (repository / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def sentences() -> Iterator[tuple[str, str, str]]:
    for phrases in product(*PHRASES):
        yield tuple(" ".join(words).capitalize() + "." for words in zip(*phrases, strict=True))


def write_corpora(folder: Path) -> None:
    """Write the data of the section "Your own text": corpus/, test/, lines.de and lines.en."""
    rows = list(sentences())
    test, train = rows[::12], [row for number, row in enumerate(rows) if number % 12]
    write_lines(folder / "corpus" / "train.de-en.tsv", [f"{german}\t{english}" for english, german, _ in train])
    for name, code, column in (("de", "deu", 1), ("en", "eng", 0)):
        write_lines(folder / f"lines.{name}", [row[column] for row in test])
        write_lines(folder / "test" / f"tatoeba.deu-eng.{code}", [row[column] for row in test])


def write_demo_corpus(folder: Path) -> None:
    """Write a demo corpus of the real layout. The seven languages that are not in PHRASES are ciphers of English."""
    rows = list(sentences())
    wheel = folder / "homeassistant.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        for language in ("en", *(name for name, _ in LANGUAGES.values())):
            if language in ("en", "de", "fr"):
                texts = [row[("en", "de", "fr").index(language)] for row in rows]
            else:
                texts = [" ".join(f"{word[::-1]}{language[0]}" for word in row[0].split()) for row in rows]
            strings = json.dumps({f"key{number}": text for number, text in enumerate(texts)})
            archive.writestr(f"homeassistant/components/lamp/translations/{language}.json", strings)
    find_resource("demo").make(wheel, folder / "demo")


@pytest.fixture
def checkout(repository, tmp_path, install_commands) -> tuple[Path, dict[str, str]]:
    """Return a copy of the repository that counts as set up, and the environment to run its commands in."""
    root = tmp_path / "xrep"
    shutil.copytree(repository / "scripts", root / "scripts")
    shutil.copytree(repository / "examples", root / "examples")
    for name in ("setup.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(repository / name, root)
    write_lines(root / "tests" / "test_one.py", ["def test_one():", "    pass"])
    commands = root / ".venv" / "bin"
    install_commands(commands, BUDGET)
    (commands / "pip").symlink_to("/bin/true")
    state = subprocess.check_output("cat setup.py pyproject.toml constraints.txt | cksum", shell=True, cwd=root)
    for extra in ("", "-test"):
        (root / ".venv" / f".xrep-installed{extra}").write_bytes(state)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    environment.update(PYTHONPATH=str(repository), XREP_HOME=str(tmp_path / "home"))
    environment["PATH"] = f"{commands}:{environment['PATH']}"
    return root, environment


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_commands_of_the_readme(checkout: tuple[Path, dict[str, str]], repository: Path) -> None:
    root, environment = checkout
    write_corpora(root)
    write_demo_corpus(Path(environment["XREP_HOME"]))
    blocks = readme_code(repository, "sh")
    assert len(blocks) == 2
    for block in blocks:
        command = ["bash", "-exuo", "pipefail", "-c", block]
        result = subprocess.run(command, cwd=root, env=environment, input="", capture_output=True, text=True)
        assert result.returncode == 0, result.stderr[-4000:] + result.stdout[-2000:]

    demo = json.loads((root / "runs" / "demo" / "tatoeba.json").read_text(encoding="utf-8"))
    assert set(demo["values"]["tables"]) == set(LANGUAGES) and demo["random_weights"]["seeds"] == 1
    assert "de" in (root / "report.html").read_text(encoding="utf-8")
    assert (root / "mined.tsv").exists() and (root / "my-encoder" / "modules.json").exists()

    (python,) = readme_code(repository, "python")
    program = f"{python}\nassert vectors.shape[0] == 2 and abs(float((vectors[1] ** 2).sum()) - 1) < 1e-3\n"
    subprocess.run([sys.executable, "-c", program], cwd=root, env=environment, check=True)

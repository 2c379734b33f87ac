"""examples/cmlm/running_text.py writes the sentences of documents in their order."""

import json
import runpy
from pathlib import Path

import pytest


@pytest.fixture
def gather(repository: Path):
    return runpy.run_path(str(repository / "examples" / "cmlm" / "running_text.py"))["main"]


def test_documents_of_all_forms(gather, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "news.en").write_text("The cook sings.\nShe is at home.\n\nAnna laughs.\n", encoding="utf-8")
    context = 'Kiel is a town.[12] It has 3.5 ports! "Ships" come from 20 countries\nand go. '
    asked = [{"id": str(number), "question": "where?", "answers": []} for number in range(2)]
    content = {"data": [{"paragraphs": 2 * [{"context": context, "qas": asked}]}]}
    (tmp_path / "questions.json").write_text(json.dumps(content), encoding="utf-8")
    tree = "# newdoc id = 1\n# text = It rains.\n1\tIt\n\n# text = I go.\n1\tI\n\n# newdoc\n# text = Stop!\n1\tStop\n"
    (tmp_path / "trees.conllu").write_text(tree, encoding="utf-8")
    files = [str(tmp_path / name) for name in ("news.en", "questions.json", "trees.conllu", "news.en")]
    output = tmp_path / "text" / "train.en"
    assert gather([*files, "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}: 5 documents, 9 sentences\n"
    assert output.read_text(encoding="utf-8").split("\n\n") == [
        "The cook sings.\nShe is at home.",
        "Anna laughs.",
        'Kiel is a town.\nIt has 3.5 ports!\n"Ships" come from 20 countries and go.',
        "It rains.\nI go.",
        "Stop!\n",
    ]

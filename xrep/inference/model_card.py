"""Model cards: README.md with the metadata that the Hugging Face Hub reads, written with each export."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from xrep.config.yaml_files import flat
from xrep.data.store import MANIFEST_FILE
from xrep.errors import UserError
from xrep.files import sha256_of
from xrep.models.directory import MANIFEST, open_checkpoint
from xrep.nn.weights import read_json

README = "README.md"
_MTEB = {
    "tatoeba": ("BitextMining", "accuracy"),
    "bucc": ("BitextMining", "f1"),
    "sts": ("STS", "cosine_spearman"),
    "senteval": ("Classification", "accuracy"),
    "translation": ("Translation", "bleu"),
}
"""The type of task and the metric that mteb, or else the Hub, names for the headline figures of an evaluation."""
FROZEN_TYPES = [
    "",
    "transformers gives the model a row of token types, which xrep's encoder does not have. It is zero, and training by"
    + " other libraries changes it; xrep adds it to the positions when it reads the model. These lines freeze it:",
    "",
    "```python",
    "for name, parameter in model.named_parameters():",
    '    parameter.requires_grad_("token_type_embeddings" not in name)',
    "```",
]
"""Lines about a directory that has this row, see ``xrep.nn.bert.tensors_of``."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a card says besides what the model itself tells.

    Attributes:
        license: Identifier of the licence of the model, such as ``apache-2.0``; None leaves it open.
        results: Records of evaluations, as ``xrep-eval`` writes them.
        data: Name and sha256 of each file that the model was trained on.
    """

    license: str | None = None
    results: Sequence[dict[str, Any]] = ()
    data: Sequence[tuple[str, str]] = ()

    @classmethod
    def of(cls, path: str | Path, license: str | None = None, results: Sequence[str | Path] = ()) -> Card:
        """Read what a card says of the model at ``path``; ``results`` are files that ``xrep-eval`` wrote as JSON.

        Raises:
            UserError: A file has no results, or the licence is no identifier.
        """
        if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
            problem = f"`license` {license!r} is not the identifier of a licence"
            raise UserError(problem, cure="give one of the Hugging Face Hub, such as apache-2.0, cc-by-4.0 or other")
        records = [record for file in results for record in _records(Path(file))]
        return cls(license=license, results=records, data=list(_training_files(path)))


def write_card(
    directory: Path,
    name: str,
    about: str,
    loading: Sequence[str],
    card: Card,
    *,
    details: Sequence[str] = (),
    library: str,
    pipeline: str,
    languages: Sequence[str],
    fingerprint: Callable[[], str],
) -> None:
    """Write the card of a model into ``directory``.

    Args:
        name: Name of the model.
        about: Paragraph below the title.
        loading: Lines of Python that load the model.
        details: Lines of text below them.
        library, pipeline: The Hub's names of the library that loads the model and of what the model does.
        fingerprint: Function that returns the fingerprint of the model, which the results must be of.

    Raises:
        UserError: The results are of another model.
    """
    own = fingerprint() if card.results else ""
    if others := {str(record["model"]["path"]) for record in card.results if record["model"]["fingerprint"] != own}:
        problem = f"`results` were measured on another model, {', '.join(sorted(others))}"
        raise UserError(problem, cure="measure the model that is exported")
    results = [entry for record in card.results for entry in _mteb_entries(record)]
    data = [{"name": file, "sha256": digest} for file, digest in card.data]
    metadata = {
        "language": sorted(languages),
        "license": card.license,
        "library_name": library,
        "pipeline_tag": pipeline,
        "tags": ["xrep", library, pipeline],
        "training_data": data,
        "model-index": [{"name": name, "results": results}] if results else [],
    }
    front = yaml.safe_dump({key: value for key, value in metadata.items() if value}, sort_keys=False, width=120)
    text = ["---", front.rstrip(), "---", "", f"# {name}", "", about, "", "```python", *loading, "```", *details]
    if results:
        rows = (
            f"| {entry['dataset']['name']} | {m['type']} | {m['value']:.2f} |"
            for entry in results
            for m in entry["metrics"]
        )
        text += ["", "| test | figure | value |", "| --- | --- | ---: |", *rows]
    if data:
        text += ["", "Trained on:", "", *(f"- `{file}`, sha256 `{digest}`" for file, digest in card.data)]
    (directory / README).write_bytes(("\n".join(text) + "\n").encode("utf-8", "backslashreplace"))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of evaluations in a file, of which ``xrep-eval all`` writes several."""
    content = read_json(path)
    values = content.get("values") if content.get("test") == "all" else None
    several: Any = values.get("results") if isinstance(values, dict) else None
    for record in several.values() if isinstance(several, dict) else [content]:
        figures, model = (record.get(key) if isinstance(record, dict) else None for key in ("headline", "model"))
        whole = isinstance(model, dict) and {"path", "fingerprint"} <= model.keys() and isinstance(figures, dict)
        if not whole or not all(isinstance(value, (int, float)) for value in dict(figures or {}).values()):
            raise UserError("no results of an evaluation in it", path=path, cure="name what xrep-eval wrote as JSON")
        yield record


def _mteb_entries(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the headline figures of a record in the form that mteb writes into model cards."""
    test = str(record.get("test"))
    task, metric = _MTEB.get(test, ("Other", "score"))
    settings, data = record.get("settings"), record.get("data")
    split = settings.get("split") if isinstance(settings, dict) else None
    digests = " ".join(sorted(map(str, data.values()))) if isinstance(data, dict) else ""
    for label, value in record["headline"].items():
        dataset = {
            "type": test,
            "name": f"{test}, {label}",
            "config": label,
            "split": str(split or "test"),
            "revision": hashlib.sha256(digests.encode()).hexdigest(),
        }
        yield {"task": {"type": task}, "dataset": dataset, "metrics": [{"type": metric, "value": value}]}


def _training_files(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield the names and checksums of the training data of a run, as far as it is still there.

    For data that ``xrep-preprocess`` wrote, this is the manifest, which has the checksum of every other file. The
    checksum of the hashes of all training sentences is part of the run and always known.
    """
    if not (Path(path) / MANIFEST).is_file():
        return
    checkpoint = open_checkpoint(path)
    for folder in map(Path, _data_of(checkpoint.config)):
        files = [folder / MANIFEST_FILE] if (folder / MANIFEST_FILE).is_file() else sorted(folder.glob("train*"))
        yield from ((f"{folder.name}/{file.name}", sha256_of(file)) for file in files if file.is_file())
    if (hashes := checkpoint.training_hashes) is not None:
        yield hashes.name, sha256_of(hashes)


def _data_of(options: dict[str, Any]) -> list[str]:
    """Return the data of every task in the options of a run, also of the tasks of its parts, each once."""
    values = [value for name, value in flat(options).items() if name.endswith("task.data")]
    return list(dict.fromkeys(value for value in values if isinstance(value, str)))

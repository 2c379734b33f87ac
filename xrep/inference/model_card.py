"""Model cards: README.md with the metadata that the Hugging Face Hub reads, written with each export."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from xrep.config.yaml_files import flat
from xrep.data.store import MANIFEST_FILE
from xrep.errors import UserError
from xrep.files import sha256_of
from xrep.models.directory import MANIFEST, open_checkpoint
from xrep.nn.encoder import Encoder, lacks_types
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
_FROZEN_TYPES = """\
transformers gives the model a row of token types, which xrep's encoder does not have. It is zero, and training by \
other libraries changes it; xrep adds it to the positions when it reads the model. These lines freeze it:

```python
for name, parameter in model.named_parameters():
    parameter.requires_grad_("token_type_embeddings" not in name)
```"""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a card says besides what the model itself tells: the identifier of its licence, the results of evaluations,
    each with the model that was measured, and the name and sha256 of each file that it was trained on."""

    license: str | None
    results: Sequence[tuple[dict[str, Any], EvalResult]]
    data: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, path: str | Path, license: str | None = None, results: Sequence[str | Path] = ()) -> Card:
        """Read what a card says of the model at ``path``; ``results`` are files that ``xrep-eval`` wrote as JSON. A
        UserError says which file has no results, or that the licence is no identifier."""
        if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
            problem = f"`license` {license!r} is not the identifier of a licence"
            raise UserError(problem, cure="give one of the Hugging Face Hub, such as apache-2.0, cc-by-4.0 or other")
        found = [result for file in results for result in _results_in(Path(file))]
        return cls(license=license, results=found, data=list(_training_files(path)))

    def write(
        self,
        directory: Path,
        name: str,
        text: Sequence[str],
        kind: tuple[str, str],
        languages: Sequence[str],
        fingerprint: Callable[[], str],
    ) -> None:
        """Write the card of a model into ``directory``, with paragraphs of ``text`` below its name.

        Args:
            kind: The Hub's names of the library that loads the model and of what the model does.
            fingerprint: Function that returns the fingerprint of the model; a UserError if the results are of another.
        """
        own = fingerprint() if self.results else ""
        if others := {str(model["path"]) for model, _ in self.results if model["fingerprint"] != own}:
            problem = f"`results` were measured on another model, {', '.join(sorted(others))}"
            raise UserError(problem, cure="measure the model that is exported")
        results = [result for _, result in self.results]
        metadata = ModelCardData(
            language=sorted(languages) or None,
            license=self.license,
            library_name=kind[0],
            pipeline_tag=kind[1],
            tags=["xrep", *kind],
            training_data=[{"name": file, "sha256": digest} for file, digest in self.data] or None,
            **{"model_name": name, "eval_results": results} if results else {},
        )
        paragraphs = [f"---\n{metadata.to_yaml()}\n---", f"# {name}", *text]
        if results:
            rows = (f"| {found.dataset_name} | {found.metric_type} | {found.metric_value:.2f} |" for found in results)
            paragraphs += ["\n".join(["| test | figure | value |", "| --- | --- | ---: |", *rows])]
        if self.data:
            files = (f"- `{file}`, sha256 `{digest}`" for file, digest in self.data)
            paragraphs += ["Trained on:", "\n".join(files)]
        (directory / README).write_bytes(("\n\n".join(paragraphs) + "\n").encode("utf-8", "backslashreplace"))


def python_lines(*lines: str) -> str:
    """Return the paragraph that shows lines of Python."""
    return "\n".join(["```python", *lines, "```"])


def frozen_types(*encoders: Encoder) -> list[str]:
    """Return the paragraph about encoders without token types in transformers, see ``xrep.nn.bert.tensors_of``."""
    return [_FROZEN_TYPES] if any(map(lacks_types, encoders)) else []


def _results_in(path: Path) -> Iterator[tuple[dict[str, Any], EvalResult]]:
    """Yield the headline figures in a file, each with the model that was measured."""
    content = read_json(path)
    values = content.get("values")
    several = isinstance(values, dict) and "results" in values  # by ``xrep-eval all`` or ``xtreme``
    for record in values["results"].values() if several else [content]:
        if not isinstance(record, dict) or not {"test", "headline", "model", "settings", "data"} <= record.keys():
            raise UserError("no results of an evaluation in it", path=path, cure="name what xrep-eval wrote as JSON")
        test, digests = record["test"], " ".join(sorted(record["data"].values()))
        task, metric = _MTEB.get(test, ("Other", "score"))
        for label, value in record["headline"].items():
            result = EvalResult(
                task_type=task,
                dataset_type=test,
                dataset_name=f"{test}, {label}",
                dataset_config=label,
                dataset_split=record["settings"].get("split") or "test",
                dataset_revision=hashlib.sha256(digests.encode()).hexdigest(),
                metric_type=metric,
                metric_value=value,
            )
            yield record["model"], result


def _training_files(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield the names and checksums of the training data of a run, as far as it is still there: of data that
    ``xrep-preprocess`` wrote the manifest, which has the checksum of every other file."""
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

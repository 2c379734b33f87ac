"""Model cards: README.md with the metadata that the Hugging Face Hub reads, written with each export."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from xrep.config.values import flat
from xrep.data.table import MANIFEST_FILE
from xrep.errors import UserError
from xrep.files import sha256_of
from xrep.models.directory import MANIFEST, open_checkpoint
from xrep.nn.encoder import Encoder, lacks_types
from xrep.nn.weights import read_json

README = "README.md"
TEMPLATE = Path(__file__).with_name("card.md.jinja")
_MTEB = {
    "tatoeba": ("BitextMining", "accuracy"),
    "bucc": ("BitextMining", "f1"),
    "sts": ("STS", "cosine_spearman"),
    "senteval": ("Classification", "accuracy"),
    "translation": ("Translation", "bleu"),
}
"""The type of task and the metric that mteb, or else the Hub, names for the headline figures of an evaluation."""


def write_card(
    directory: Path,
    kind: tuple[str, str],
    languages: Sequence[str],
    encoders: Iterable[Encoder] = (),
    *,
    name: str,
    path: str | Path,
    fingerprint: Callable[[], str],
    license: str | None = None,
    results: Sequence[str | Path] = (),
    **shown: Any,
) -> None:
    """Write the card of a model into ``directory``.

    Args:
        kind: The Hub's names of the library that loads the model and of what the model does.
        encoders: Encoders that the library reads, for the paragraph about token types, see ``xrep.nn.bert.tensors_of``.
        name, path, fingerprint: Name of the model, the path from which it was loaded, whose run names the files that it
            was trained on, with their sha256, and the digest by which its results are known.
        license, results: Its licence, and results of evaluations, files that ``xrep-eval`` wrote as JSON.
        shown: What the template ``card.md.jinja`` shows besides: ``about`` the model, ``lines`` of Python that load it.

    Raises:
        UserError: As ``check_card``.
    """
    from huggingface_hub import ModelCard, ModelCardData  # not above: it would delay each command that encodes

    figures = check_card(fingerprint, license, results) or None
    card = ModelCardData(
        language=sorted(languages) or None,
        license=license,
        library_name=kind[0],
        pipeline_tag=kind[1],
        tags=["xrep", *kind],
        model_name=name,
        eval_results=figures,
        training_data=list(_training_files(path)) or None,
    )
    shown |= {"name": name, "results": figures, "lacks_types": any(map(lacks_types, encoders))}
    ModelCard.from_template(card, template_path=str(TEMPLATE), **shown).save(directory / README)


def check_card(fingerprint: Callable[[], str], license: str | None, results: Sequence[str | Path]) -> list[Any]:
    """Return the results on a card, which a caller may do before the work: of files with several models those of the
    model with this fingerprint. Raises UserError if the licence is no identifier, or a file has no results of it."""
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
        problem = f"`license` {license!r} is not the identifier of a licence"
        raise UserError(problem, cure="give one of the Hugging Face Hub, such as apache-2.0, cc-by-4.0 or other")
    exported, own = fingerprint() if results else "", list[Any]()
    for file in results:
        measured = list(_results_in(Path(file)))
        found = [result for model, result in measured if model["fingerprint"] == exported]
        if not found:
            others = ", ".join(sorted({str(model["path"]) for model, _ in measured}))
            problem = f"`results` were measured on another model, {others}"
            raise UserError(problem, path=file, cure="measure the model that is exported")
        own += found
    return own


def _results_in(path: Path) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the headline figures in a file, as the Hub's ``EvalResult``, each with the model that was measured."""
    from huggingface_hub import EvalResult

    for record in _records_of(read_json(path)):
        if not isinstance(record, dict) or not {"test", "headline", "model", "settings"} <= record.keys():
            raise UserError("no results of an evaluation in it", path=path, cure="name what xrep-eval wrote as JSON")
        test = record["test"]
        task, metric = _MTEB.get(test, ("Other", "score"))
        for label, value in record["headline"].items():
            result = EvalResult(
                task_type=task,
                dataset_type=test,
                dataset_name=f"{test}, {label}",
                dataset_config=label,
                dataset_split=record["settings"].get("split") or "test",
                metric_type=metric,
                metric_value=value,
            )
            yield record["model"], result


def _records_of(content: Any) -> Iterator[Any]:
    """Yield the record of each model and test in what ``xrep-eval`` wrote: of several models, of ``all``, of
    ``xtreme``, or of one test."""
    for key, inside in (("models", content), ("results", content.get("values"))):
        if isinstance(inside, dict) and isinstance(inside.get(key), dict):
            for each in filter(lambda each: isinstance(each, dict), inside[key].values()):
                yield from _records_of(each)
            return
    yield content


def _training_files(path: str | Path) -> Iterator[dict[str, str]]:
    """Yield the names and checksums of the training data of a run, as far as it is still there: of data that
    ``xrep-preprocess`` wrote the manifest, which has the checksum of every other file."""
    if not (Path(path) / MANIFEST).is_file():
        return
    checkpoint = open_checkpoint(path)
    options = flat(checkpoint.config).items()  # a run of several parts has data for each task
    data = dict.fromkeys(value for name, value in options if name.endswith("task.data") and isinstance(value, str))
    for folder in map(Path, data):
        files = [folder / MANIFEST_FILE] if (folder / MANIFEST_FILE).is_file() else sorted(folder.glob("train*"))
        for file in filter(Path.is_file, files):
            yield {"name": f"{folder.name}/{file.name}", "sha256": sha256_of(file)}
    for hashes in checkpoint.training_hashes:
        yield {"name": hashes.name, "sha256": sha256_of(hashes)}

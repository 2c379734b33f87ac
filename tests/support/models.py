"""One small model of each kind, and the other directories that may be taken for one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.support.corpus import write_lines
from tests.support.encoders import write_model
from tests.support.vocabulary import small_tokenizer
from xrep.data.batch import Annotation, TextSpec, Vocabulary
from xrep.inference.encoding import encode_file
from xrep.inference.export import export_path
from xrep.inference.search_index import SearchIndex
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.models.classifier import Classifier

CLASSIFIERS = {
    "classifier": ("classification", Annotation(kind="label", labels=["asleep", "awake"])),
    "tagger": ("tagging", Annotation(kind="tags", labels=["B-LOC", "B-PER", "O"])),
    "answerer": ("question_answering", Annotation(kind="span", labels=[])),
}


def write_classifier(path: Path, task: str, annotation: Annotation) -> None:
    """Write a checkpoint of an untrained classifier."""
    tokenizer = small_tokenizer()
    text = TextSpec(vocabularies={"shared": Vocabulary.of(tokenizer)}, max_length=48, annotation=annotation)
    sizes: dict[str, Any] = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 16, "max_positions": 64}
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = Classifier(Classifier.Config(**sizes), text)
    write_model(path, model, text, tokenizer, {"task": {"name": task}, "model": {"name": "classifier", **sizes}})


def write_models(folder: Path, encoder: Path, towers: Path, translator: Path, sentences: dict[str, list[str]]) -> None:
    """Write what can be made of three checkpoints, each into a folder named by its kind."""
    for name, (task, annotation) in CLASSIFIERS.items():
        write_classifier(folder / name, task, annotation)
    export_path(encoder, folder / "huggingface", "hf")
    export_path(towers, folder / "huggingface_towers", "hf")
    export_path(folder / "classifier", folder / "huggingface_classifier", "hf")
    export_path(encoder, folder / "sentence_transformers", "sentence-transformers")
    export_path(towers, folder / "router", "sentence-transformers")
    export_path(encoder, folder / "int8", "int8")
    export_path(translator, folder / "int8_translator", "int8")
    # As xrep-export --format onnx writes it, which needs more packages.
    shutil.copytree(folder / "sentence_transformers", folder / "graph")
    (folder / "graph" / "onnx").mkdir()
    (folder / "graph" / "model.safetensors").rename(folder / "graph" / "onnx" / "model.onnx")
    SearchIndex.build(encoder, sentences["en"], folder / "index", lang="en", show_progress=False)
    text = write_lines(folder / "encoded.txt", sentences["en"])
    encode_file(SentenceEncoder.load(encoder), text, folder / "encoded", lang="en", parts=True, show_progress=False)
    keys = [f"{code}\t{line}" for code, lines in sentences.items() for line in lines]
    write_lines(folder / "vectors" / "sentences.tsv", keys)
    vectors = np.random.default_rng(0).normal(size=(len(keys), 8)).astype(np.float32)
    np.save(folder / "vectors" / "vectors.npy", vectors)

"""A run of dap whose softmax covers the subwords of the training text, validated on text that has others."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.corpus import sentence_pairs
from tests.support.runs import options
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.text.readers import discover_bitext
from xrep.text.tokenizer import Tokenizer
from xrep_cli.train import main


def test_subwords_that_only_the_dev_split_has(data_directory: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Among them is the largest number, which is behind all that the training text has."""
    raw, every = tmp_path / "raw", sentence_pairs(300)
    raw.mkdir()
    last = [max(ids) for ids in tokenizer.encode([english for _, english in every])]
    train_pairs, valid_pairs = (
        [pair for pair, own in zip(every, last, strict=True) if (own == max(last)) is held_out]
        for held_out in (False, True)
    )
    for split, pairs in (("train", train_pairs), ("valid", valid_pairs)):
        for language, side in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
            (raw / f"{split}.de-en.{language}").write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    preprocess(
        discover_bitext(raw),
        tmp_path / "bin",
        PreprocessOptions(tokenizers={"shared": str(data_directory / "tokenizer")}),
    )
    given = {"criterion": "dap", "rtl_layers": 1, "rtl_vocabulary": "target-language", "validation": "loss"}
    assert main([str(tmp_path / "bin"), *options(**given, max_steps=1, batch_size=9, save_dir=tmp_path / "run")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (valid,) = [line for line in lines if line["kind"] == "valid"]
    assert 0 < valid["loss_rtl"] < 20

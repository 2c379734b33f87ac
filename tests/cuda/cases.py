"""Training runs of every objective, as command lines, and the small data that they read."""

from pathlib import Path
from typing import Any

MODEL = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48, "towers": "shared"}
RUN = {
    # Where a gradient is nothing but rounding, as that of the biases of keys, Adam would make a whole step of it.
    "adam_eps": 1e-5,
    "dropout": 0, "attention_dropout": 0, "batch_size": 12, "max_steps": 5, "max_length": 24, "lr": 1e-3,
    "warmup_steps": 2, "clip_norm": 1.0, "log_every": 5, "save_every": 0, "validate_every": 0, "check_every": 0,
    "no_tensorboard": None,
}  # fmt: skip
PAIRS: dict[str, Any] = {"data": "pairs", "task": "bitext", **MODEL}
SEPARATE = {**PAIRS, "towers": "separate"}
TEXT = {**PAIRS, "data": "text", "task": "monolingual", "vocab_size": 117}
TRANSLATION: dict[str, Any] = {"data": "pairs", "task": "translation", "decoder_layers": 1, "norm": "post", **MODEL}
TRANSLATION = {name: value for name, value in TRANSLATION.items() if name != "towers"}
LABELLED = {**{name: value for name, value in MODEL.items() if name != "towers"}, "vocab_size": 45, "languages": "de"}

CASES: dict[str, dict[str, Any]] = {
    "dual_moco": {**PAIRS, "queue_size": 40},
    "translation_ranking": PAIRS,
    "frozen_source": {**SEPARATE, "queue_size": 30},
    "dap": {**PAIRS, "rtl_layers": 1},
    "hictl": {**PAIRS, "word_samples": 8},
    "tlm": PAIRS,
    "mlm": TEXT,
    "cmlm": {**TEXT, "units": "adjacent", "projections": 3},
    "simcse": PAIRS,
    "nli": {**PAIRS, "data": "inference", "task": "nli", "vocab_size": 70},
    "nli_triplet": {**PAIRS, "data": "inference", "task": "nli", "form": "triplets", "vocab_size": 70},
    "cosent": {**PAIRS, "data": "scored", "task": "similarity", "vocab_size": 70},
    "angle": {**PAIRS, "data": "scored", "task": "similarity", "vocab_size": 70},
    "label_smoothed_cross_entropy": TRANSLATION,
    "classification": {**LABELLED, "data": "labels", "task": "classification"},
    "tagging": {**LABELLED, "data": "tags", "task": "tagging"},
    "span": {**LABELLED, "data": "questions", "task": "question_answering"},
}
"""The options of a run of each criterion, and the folder of its data."""

VARIANTS: dict[str, dict[str, Any]] = {
    "dual_moco, equal sentences masked": {**CASES["dual_moco"], "mask_equal_sentences": None},
    "dual_moco, too near": {**CASES["dual_moco"], "mask_margin": 0.1},
    "translation_ranking, too near": {**PAIRS, "mask_margin": 0.1},
    "dual_moco, bfloat16 queue": {**CASES["dual_moco"], "queue_dtype": "bfloat16"},
    "dual_moco, in pieces": {**CASES["dual_moco"], "micro_batch": 5},
    "dual_moco, accumulated": {**CASES["dual_moco"], "update_freq": 2},
    "translation_ranking, LAMB": {**PAIRS, "optimizer": "lamb"},
    "translation_ranking, SGD": {**PAIRS, "optimizer": "sgd"},
    "dap, both directions": {**CASES["dap"], "reconstruction_ratio": 0.5, "rtl_direction": "both"},
    "dual_moco, sharded": {**CASES["dual_moco"], "shard": "optimizer"},
    "dual_moco, as deep as BERT": {
        **SEPARATE, "layers": 12, "queue_size": 409600, "queue_dtype": "bfloat16", "batch_size": 2, "max_steps": 4,
        "dropout": 0.1,
    },
}  # fmt: skip
"""Further runs; those in pieces and with a sharded optimizer are of several ranks, too."""


def command_line(name: str, data: Path, folder: Path, **given: Any) -> list[str]:
    """Return the arguments of xrep-train for a case, which reads below ``data`` and writes below ``folder``."""
    criterion = name.partition(",")[0]
    options = {**RUN, "criterion": criterion, **{**CASES, **VARIANTS}[name], "save_dir": folder / "run", **given}
    if "optimizer" in options:
        del options["adam_eps"]
    if options["task"] == "translation":
        del options["batch_size"]
        options["max_tokens"] = 150
    place = str(data / options.pop("data"))
    return [place, *option_line(**options)]


def option_line(**options: Any) -> list[str]:
    parts = [[f"--{name.replace('_', '-')}", *([] if v is None else [str(v)])] for name, v in options.items()]
    return [part for option in parts for part in option]


def write_data(folder: Path) -> Path:
    """Write the data of all cases."""
    from tests.support.annotated import write_labels, write_questions, write_tags
    from tests.support.corpus import sentence_pairs, write_corpus, write_lines
    from tests.support.nli_data import nli_rows, write_jsonl
    from xrep.data.preprocess import PreprocessOptions, preprocess
    from xrep.text.find import discover_bitext

    raw = write_corpus(folder / "raw", train=400)
    preprocess(discover_bitext(raw), folder / "pairs", PreprocessOptions(vocabulary_size=120), print, progress=False)
    (folder / "text").mkdir()
    for side, language in enumerate(("de", "en")):
        lines = [f"{pair[side]}\n" + "\n" * (number % 10 == 9) for number, pair in enumerate(sentence_pairs(400))]
        (folder / "text" / f"train.{language}").write_text("".join(lines[40:]), encoding="utf-8")
        (folder / "text" / f"valid.{language}").write_text("".join(lines[:40]), encoding="utf-8")
    (folder / "inference").mkdir()
    for split, seed in (("train", 0), ("dev", 1)):
        write_jsonl(folder / "inference" / f"snli_1.0_{split}.jsonl", nli_rows(60, seed=seed))
    english = [pair[1] for pair in sentence_pairs(120)]
    write_lines(
        folder / "scored" / "train.tsv", [f"{n % 6}\t{english[n]}\t{english[n - 1 - n % 6]}" for n in range(120)]
    )
    for name, write in {"labels": write_labels, "tags": write_tags, "questions": write_questions}.items():
        write(folder / name)
    return folder

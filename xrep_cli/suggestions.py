"""Advice on options that a command does not have: the one that means the same, or else the one of nearly that name."""

from __future__ import annotations

from collections.abc import Collection

from xrep.registry import nearest

_SAME = (
    "save-dir output destdir output-dir output-path output-folder out checkpoint-dir",
    "path encoder init model model-path model-name model-name-or-path checkpoint pretrained-model",
    "init restore-file finetune-from-model resume-from resume-from-checkpoint",
    "input data bitext file corpus text train-file dataset dataset-name",
    "lr learning-rate",
    "max-steps steps num-steps max-update max-updates total-num-update",
    "max-epochs max-epoch epochs num-epochs num-train-epochs",
    "patience early-stopping early-stopping-patience",
    "batch-size train-batch-size per-device-train-batch-size max-sentences",
    "batch-tokens max-tokens batch-size",
    "update-freq gradient-accumulation-steps accumulation-steps accumulate-grad-batches",
    "warmup-steps warmup warmup-updates num-warmup-steps warmup-ratio",
    "max-length max-len max-seq-len max-seq-length max-source-positions",
    "precision fp16 bf16 amp mixed-precision dtype",
    "save-every save-interval save-interval-updates save-steps",
    "validate-every validate-interval validate-interval-updates eval-steps eval-every",
    "keep-last save-total-limit keep-last-epochs keep-interval-updates",
    "log-every log-interval logging-steps",
    "clip-norm max-grad-norm gradient-clip-val",
    "data-workers workers num-workers dataloader-num-workers",
    "layers num-layers num-hidden-layers encoder-layers",
    "heads num-heads num-attention-heads encoder-attention-heads",
    "lang language source-lang src-lang",
    "langs languages language lang",
    "beam num-beams beam-size",
    "device gpu cuda use-gpu cpu",
    "vocab-size vocabulary-size num-bpe",
)
"""Names of the same thing, ours first, then those of fairseq, transformers and sentence-transformers."""


def suggestion(option: str, known: Collection[str]) -> str:
    """Return "--save-dir means that" or "did you mean '--save-dir'?" for an option ``--output-dir``; empty if no known
    option is near."""
    if near := nearest(option, list(known)):
        return near
    name = option.removeprefix("--").replace("_", "-")
    for names in map(str.split, _SAME):
        for other in names if name in names else ():
            if f"--{other}" in known:
                return f"--{other} is the option for that"
    return ""

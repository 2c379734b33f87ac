"""The options of the trainer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch

from xrep.config.fields import Count, CountOrZero, NotNegative, Positive
from xrep.number_types import TrainingPrecision
from xrep.training.distributed import pick_device
from xrep.training.freezing import pattern_problems


@dataclass(kw_only=True)
class TrainerOptions:
    max_steps: Count | None = None
    """Number of optimizer steps after which training ends. Whichever of max_steps, max_epochs and max_minutes is
    reached first ends the run; if none is set, training ends after 15 epochs (see also size)."""
    max_epochs: Annotated[float, "(0, 1e9]"] | None = None
    """Number of passes over the training examples after which training ends."""
    max_minutes: Positive | None = None
    """Minutes of training and validation after which training ends; the learning rate decays towards that time."""
    clock: Literal["wall", "cpu"] = "wall"
    """What the minutes are, also those that are said to be left: wall: those of the clock; cpu: the time that this
    process keeps processors busy (on several ranks the first one), so that comparisons in equal minutes do not depend
    on what else a machine does."""
    update_freq: Count = 1
    """Number of batches whose gradients are accumulated for one step."""
    micro_batch: Count | None = None
    """Number of sentence pairs that are encoded at a time, if a batch's activations do not fit into memory. Losses
    and gradients stay those of the whole batch, with all its pairs as negatives, for a third more work (gradient
    caching, Gao et al. 2021). For objectives that compare the sentences of a batch. none: all at once."""
    clip_norm: NotNegative = 10.0
    """Largest norm of the gradient, to which larger gradients are scaled down. 0: no clipping."""
    freeze: list[str] = field(default_factory=list)
    """Parts that are not trained, as patterns of parameter names such as 'encoders.source' or
    'encoders.*.token_embedding*'; 'PATTERN@N' trains them from step N on. Dropout of a frozen part is off."""
    lora_rank: Annotated[int, "[0, 2147483647]"] = 0
    """Rank of low-rank adaptation (LoRA), such as 8, for pretrained encoders: their linear layers change by the
    products of two matrices of this rank. Of the encoders, these alone are trained, and the embeddings of a new
    vocabulary. The saved model has the changed weights. Learning rates are some ten times those of training all
    weights. 0: train all weights."""
    lora_alpha: Annotated[float, "(0, 1e9]"] = 16.0
    """Factor of the changes of LoRA, which are multiplied by lora_alpha / lora_rank."""
    precision: TrainingPrecision = "auto"
    """Type in which matrices are multiplied; weights stay float32. auto: bf16 on GPUs that have it, else float32, which
    is TF32 (10 bits of fraction) on GPUs. CPUs without bf16 use float32. fp16: for older GPUs; the loss is scaled."""
    compile: bool = False
    """Compile the encoder's layers with torch.compile. It is for GPUs and makes CPUs slower. The first steps take
    long."""
    activation_checkpointing: bool = False
    """Compute each encoder layer again in the backward pass instead of keeping its activations. This needs less
    memory and a third more work."""
    data_workers: Annotated[int, "[0, 1024]"] = 0
    """Number of processes per rank that make batches ahead of the training loop. 0: the loop makes
    them itself."""
    patience: Count | None = None
    """Number of validations in a row that may be worse than the best one before training ends; none: training goes
    on to the end of its budget."""
    validate_every: CountOrZero = 1000
    """Number of steps between validations. 0: validate only at the end."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device on which to train. auto: a GPU if there is one, else the CPU."""

    def problems(self) -> list[str]:
        problems = pattern_problems(self.freeze)
        if self.patience is not None and not self.validate_every:
            problems.append("patience needs validations; set `validate_every`")
        if self.device == "cuda" and not torch.cuda.is_available():
            problems.append("device is cuda, but there is no GPU here")
        elif self.precision in ("fp16", "float16") and pick_device(self.device) == "cpu":
            problems.append("precision fp16 is for GPUs; set `precision` to bf16 on a CPU")
        return problems

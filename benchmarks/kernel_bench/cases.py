"""The cases of the benchmark and their sizes."""

from __future__ import annotations

from dataclasses import dataclass

Size = tuple[int, int, int]
"""Rows, columns and width, for example numbers of queries and negatives, and their dimension."""


@dataclass(frozen=True)
class Case:
    """One loss at one size.

    Attributes:
        kind: The loss, a key of ``contestants.KINDS``.
        cpu: Size on CPUs.
        cuda: Size on GPUs.
        summary: Description for --help.
        usual: Devices on which the case is measured by default.
        once: Whether there is only one round without warm-up, because a pass takes a minute, and no contestant that
            writes all similarities out.
        queue_dtype: Type of the queue if it differs from that of the queries, which are float32 then.
        learn_temperature: Whether the temperature gets a gradient as well.
    """

    kind: str
    cpu: Size
    cuda: Size
    summary: str
    usual: tuple[str, ...] = ("cpu", "cuda")
    once: bool = False
    queue_dtype: str | None = None
    learn_temperature: bool = False

    def size(self, device: str, scale: float) -> Size:
        """Return the size on a device, with ``scale`` times as many rows and columns."""
        rows, columns, width = self.cpu if device == "cpu" else self.cuda
        return max(16, round(rows * scale)), max(64, round(columns * scale)), width


_QUEUE, _FEW, _SHORT = (1024, 409600, 768), (64, 65536, 768), (1024, 65536, 768)
_LARGE, _WIDE, _RECIPE = (1024, 2**22, 768), (65536, 65536, 768), (256, 256, 768)

CASES = {
    "queue": Case("queue", _QUEUE, _QUEUE, "the batch and the queue of dual momentum contrast"),
    "queue-bfloat16": Case("queue", _QUEUE, _QUEUE, "the same, kept in bfloat16", ("cpu",), queue_dtype="bfloat16"),
    "queue-small": Case("queue", _FEW, _FEW, "few queries: ours must not lose to plain torch"),
    "queue-tiny": Case("queue", (64, 4096, 128), (64, 4096, 128), "the same, from one softmax"),
    "queue-whole": Case("queue", (512, 8192, 256), (512, 8192, 256), "the most logits that one softmax computes"),
    "queue-temperature": Case("queue", _SHORT, _SHORT, "with a learnable temperature", learn_temperature=True),
    "queue-large": Case("queue", _LARGE, _LARGE, "four million negatives", ("cuda",)),
    "inbatch": Case("inbatch", (4096, 4096, 768), (8192, 8192, 768), "both directions of a batch"),
    "inbatch-small": Case("inbatch", _RECIPE, _RECIPE, "the batch of a recipe: ours must not lose to plain torch"),
    "inbatch-large": Case("inbatch", _WIDE, _WIDE, "similarities too many to store", (), once=True),
    "hard": Case("hard", (2048, 2048, 768), (4096, 4096, 768), "hard negatives of HiCTL, both sides of a batch"),
    "hard-small": Case("hard", _RECIPE, _RECIPE, "the batch of a recipe: ours must not lose to plain torch"),
    "vocabulary": Case("vocabulary", (4096, 32000, 768), (32768, 250002, 1024), "cross-entropy of a language model"),
}

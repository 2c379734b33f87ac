"""Contrastive losses and the cross-entropy of a large vocabulary, which can also be used without the rest of xrep.

What cannot be stored is fused: ``queue_infonce`` and ``linear_cross_entropy`` never store all of their logits, except
those of a small queue, and their gradients are known after the forward pass. They work in blocks: on GPUs in Triton's
kernels, where these agree with plain torch at their first use, and else in plain torch (``xrep.kernels.fused``).

Losses within a batch (``inbatch_infonce``, ``hard_infonce``, ``triplet_infonce``) are plain torch on every device. They
keep up to 2^24 similarities for the backward pass, and up to 2^26 on GPUs. If there are more, they compute them in
blocks of rows, each block twice.
``word_infonce`` and ``add_own_negatives`` are plain torch, too.
"""

from xrep.kernels.hard_infonce import HardInfoNCE, hard_infonce
from xrep.kernels.inbatch_infonce import InBatchInfoNCE, inbatch_infonce
from xrep.kernels.judge import Judge
from xrep.kernels.linear_cross_entropy import CrossEntropy, linear_cross_entropy
from xrep.kernels.pairs import add_own_negatives
from xrep.kernels.queue_infonce import InfoNCE, queue_infonce
from xrep.kernels.triplet_infonce import triplet_infonce
from xrep.kernels.word_infonce import WordInfoNCE, word_infonce

__all__ = [
    "CrossEntropy",
    "HardInfoNCE",
    "InBatchInfoNCE",
    "InfoNCE",
    "Judge",
    "WordInfoNCE",
    "add_own_negatives",
    "hard_infonce",
    "inbatch_infonce",
    "linear_cross_entropy",
    "queue_infonce",
    "triplet_infonce",
    "word_infonce",
]

"""Contrastive losses and large-vocabulary cross-entropy that never store their logits, each of use without xrep.

Every loss has a plain reference in ``xrep.kernels.reference``, a path in chunks that runs on any device, and a path in
Triton for CUDA.
"""

from xrep.kernels import first_use  # noqa: F401 - it sets the check of fused kernels on a GPU
from xrep.kernels.hard_infonce import HardInfoNCE, hard_infonce
from xrep.kernels.inbatch_infonce import InBatchInfoNCE, inbatch_infonce
from xrep.kernels.linear_cross_entropy import CrossEntropy, linear_cross_entropy
from xrep.kernels.own_negatives import add_own_negatives
from xrep.kernels.queue_infonce import InfoNCE, queue_infonce
from xrep.kernels.triplet_infonce import TripletInfoNCE, triplet_infonce
from xrep.kernels.word_infonce import WordInfoNCE, word_infonce

__all__ = [
    "CrossEntropy",
    "HardInfoNCE",
    "InBatchInfoNCE",
    "InfoNCE",
    "TripletInfoNCE",
    "WordInfoNCE",
    "add_own_negatives",
    "hard_infonce",
    "inbatch_infonce",
    "linear_cross_entropy",
    "queue_infonce",
    "triplet_infonce",
    "word_infonce",
]

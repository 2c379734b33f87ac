"""Contrastive losses and the cross-entropy of a large vocabulary, each of use without xrep.

``queue_infonce`` and ``linear_cross_entropy`` never store their logits. They have a plain reference
(``xrep.kernels.reference``), a path in chunks that runs on any device, and a path in Triton for CUDA
(``xrep.kernels.paths``).

The losses within a batch (``inbatch_infonce``, ``hard_infonce``, ``triplet_infonce``, ``add_own_negatives``) are plain
torch on every device, and so is ``word_infonce``. Up to 2^24 similarities of a batch are stored for the backward pass.
If there are more, they are computed in blocks of rows, and again in the backward pass.
"""

from xrep.kernels import first_use  # noqa: F401 - it sets the check of fused kernels on a GPU
from xrep.kernels.hard_infonce import HardInfoNCE, hard_infonce
from xrep.kernels.inbatch_infonce import InBatchInfoNCE, inbatch_infonce
from xrep.kernels.linear_cross_entropy import CrossEntropy, linear_cross_entropy
from xrep.kernels.pairs import add_own_negatives
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

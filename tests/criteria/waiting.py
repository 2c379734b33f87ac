"""A context in which no code may wait for the device."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from xrep.kernels.precision import fast_float32_is_exact, multiplies_bfloat16

aten = torch.ops.aten


class NoWaiting(TorchDispatchMode):
    """A context that forbids reading a tensor's values, or a size that depends on them, because that would wait for a
    GPU."""

    FORBIDDEN = (aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.repeat_interleave)

    def __enter__(self):
        for ask in (fast_float32_is_exact, multiplies_bfloat16):  # the first products of a process do so, and read
            ask()
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        by_mask = func is aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        waits = by_mask or func.overloadpacket in self.FORBIDDEN
        assert not waits or kwargs.get("output_size") is not None, func
        return func(*args, **kwargs)

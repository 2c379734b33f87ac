"""A CUDA device for machines without one: tensors that carry CUDA's dispatch keys and compute on the CPU.

In a ``with EmulatedDevice() as device:`` block, ``device="cuda"`` works in any code: autocast, autograd, the fused
optimizers, DistributedDataParallel (over gloo) and Triton's interpreter take the ways that they take on a GPU. As on a
GPU, an operation on tensors of both devices is an error. ``device.counts`` has what a real device would be slowed down
by: host synchronisations, and kernel launches.

This module must be imported before torch, and it needs g++ and torch's headers.
"""

# ruff: noqa: E402
from __future__ import annotations

import importlib.util
import os
from contextlib import ExitStack
from typing import Any
from unittest import mock

from tests.cuda.library import load

load()

import torch
import torch._dynamo
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.cuda.counts import Counts, lines_of_xrep
from tests.cuda.flash import flash, flash_backward

CUDA = torch.device("cuda", 0)
READ_ON_THE_HOST = {
    "_local_scalar_dense", "nonzero", "nonzero_numpy", "masked_select", "_unique2", "unique_dim", "unique_consecutive",
    "bincount", "equal", "is_nonzero", "histc",
}  # fmt: skip
NOT_LAUNCHED = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "_unsafe_view", "detach_",
    "is_pinned", "set_", "is_same_size", "sym_size", "requires_grad_",
}  # fmt: skip
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "_addmm_activation"}
KERNELS = {
    "triton_kernels": ("absorb_row", "vocabulary_row"),
    "triton_norm": ("normalise_rows", "differentiate_rows", "add_parts"),
}


class DeviceMismatch(RuntimeError):
    """An operation got tensors of both devices."""


class EmulatedTensor(Tensor):
    """A tensor on cuda:0 whose numbers are those of ``held``, a tensor on the CPU."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> EmulatedTensor:
        with torch.inference_mode(False):
            shape = torch.empty_strided(held.shape, held.stride(), dtype=held.dtype, device="meta")
            self = Tensor._make_subclass(cls, shape, False, dispatch_device=True, device_for_backend_keys=CUDA)
        self.held = held
        return self

    @property
    def device(self) -> torch.device:
        return CUDA

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: EmulatedTensor) -> None:
        self.held = other.held

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"EmulatedTensor({self.held!r})"

    def __deepcopy__(self, memo: Any) -> EmulatedTensor:
        return EmulatedTensor(self.held.clone()).requires_grad_(self.requires_grad)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        assert EmulatedDevice.current is not None, f"{func} outside of the block"
        return EmulatedDevice.current.run(func, args, kwargs or {})


def held(values: Any) -> Any:
    return tree_map_only(EmulatedTensor, lambda tensor: tensor.held, values)


class EmulatedDevice(TorchDispatchMode):
    """See the head of this module."""

    current: EmulatedDevice | None = None

    def __init__(self, **stand_ins: Any) -> None:
        """Create the device; ``stand_ins`` are functions of tensors on the CPU that replace kernels of Triton."""
        super().__init__()
        self.counts, self.stand_ins = Counts(), stand_ins
        self._pinned: dict[int, Tensor] = {}  # by address, which is not used again while the tensor is held
        self._exchanged: dict[int, Tensor] = {}

    def __enter__(self):
        EmulatedDevice.current = self
        self._undo = ExitStack()
        self._patch()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._undo.close()
        EmulatedDevice.current = None

    # -- what is not an operation -------------------------------------------------------------------------------------

    def _patch(self) -> None:
        from torch.optim import optimizer
        from torch.utils import _foreach_utils as foreach

        def set(owner: Any, **values: Any) -> None:
            for name, value in values.items():
                self._undo.enter_context(mock.patch.object(owner, name, value))

        of_cpu = torch.get_rng_state
        set(torch.cuda, is_available=lambda: True, is_initialized=lambda: True, device_count=lambda: 1)
        set(torch.cuda, _lazy_init=lambda: None, _is_in_bad_fork=lambda: False, current_device=lambda: 0)
        set(torch.cuda, set_device=lambda device: None, manual_seed_all=lambda seed: None)
        set(torch.cuda, get_rng_state=lambda device=None: of_cpu(), set_rng_state=lambda state, device=None: None)
        set(torch.cuda, mem_get_info=lambda device=None: (10**11, 10**11), memory_reserved=lambda device=None: 0)
        set(torch.cuda, max_memory_allocated=lambda device=None: 0, get_device_capability=lambda device=None: (9, 0))
        set(torch.cuda, memory_allocated=lambda device=None: 0, reset_peak_memory_stats=lambda device=None: None)
        set(torch.cuda, is_bf16_supported=lambda including_emulation=True: True, get_device_name=lambda d=None: "none")
        set(torch.cuda, synchronize=lambda device=None: self.note_sync("synchronize"), Event=self._event())
        set(torch.backends.cuda, is_flash_attention_available=lambda: True)
        set(torch.nn.functional, scaled_dot_product_attention=self._attention)
        tensor = Tensor
        to, tolist, numpy = tensor.to, tensor.tolist, tensor.numpy
        set(tensor, to=lambda t, *a, **k: to(t, *map(numbered, a), **{name: numbered(v) for name, v in k.items()}))
        set(tensor, tolist=lambda t: tolist(self._read(t, "tolist")), pin_memory=lambda t, device=None: self._pin(t))
        set(tensor, numpy=lambda t, *, force=False: numpy(self._read(t, "numpy") if force else t, force=force))
        set(tensor, is_pinned=lambda t, device=None: self.is_pinned(t))
        types = [*foreach._foreach_supported_types, EmulatedTensor]
        for module in (foreach, optimizer):
            if hasattr(module, "_foreach_supported_types"):
                set(module, _foreach_supported_types=types)
        for get, change in (
            (torch.__future__.get_overwrite_module_params_on_conversion,
             torch.__future__.set_overwrite_module_params_on_conversion),
            (torch._C._only_lift_cpu_tensors, torch._C._set_only_lift_cpu_tensors),
        ):  # fmt: skip
            self._undo.callback(change, get())
            change(True)
        if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None:
            for room, names in KERNELS.items():
                module = importlib.import_module(f"xrep.kernels.{room}")
                set(module, **{name: self._kernel(name, getattr(module, name)) for name in names})

    def note_sync(self, what: str) -> None:
        self.counts.syncs[f"{what} at {lines_of_xrep()}"] += 1

    def _read(self, tensor: Tensor, what: str) -> Tensor:
        if not isinstance(tensor, EmulatedTensor):
            return tensor
        self.note_sync(what)
        return tensor.held.detach().clone()

    def _pin(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, EmulatedTensor):
            raise RuntimeError("only memory of the host can be pinned")
        return tensor if self.is_pinned(tensor) else self._mark(tensor.clone())

    def _mark(self, tensor: Tensor) -> Tensor:
        self._pinned[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        plain = not isinstance(tensor, EmulatedTensor) and tensor.device.type == "cpu"
        return plain and tensor.untyped_storage().data_ptr() in self._pinned

    def _event(device) -> type:
        class Event:
            def record(self, stream: Any = None) -> None:
                pass

            def query(self) -> bool:
                return True

            def synchronize(self) -> None:
                device.note_sync("event")

        return Event

    def _attention(self, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        """Scaled dot-product attention in one kernel, with three in the backward pass."""
        if not isinstance(q, EmulatedTensor):
            return torch._C._nn.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale=scale)
        assert not dropout_p, "the emulated attention has no dropout"
        if torch.is_autocast_enabled("cuda"):
            q, k, v = (tensor.to(torch.get_autocast_dtype("cuda")) for tensor in (q, k, v))
        for tensor in (k, v, *([] if attn_mask is None else [attn_mask])):
            if not isinstance(tensor, EmulatedTensor):
                raise DeviceMismatch("attention between tensors of both devices")
        return Attention.apply(self, q, k, v, attn_mask, is_causal)

    def _kernel(self, name: str, kernel: Any) -> Any:
        """Return a kernel of Triton that runs on the tensors that are held."""

        class Launched:
            def __getitem__(_, grid):
                def launch(*args, **kwargs):
                    if any(isinstance(x, Tensor) and not isinstance(x, EmulatedTensor) for x in args):
                        raise DeviceMismatch(f"the kernel {name} got a tensor on the CPU")
                    self.counts.launches[f"triton {name}"] += 1
                    with torch._C._DisableTorchDispatch():
                        if name in self.stand_ins:
                            return self.stand_ins[name](*held(args))
                        return kernel[grid](*held(args), **held(kwargs))

                return launch

        return Launched()

    # -- operations ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation on the tensors that are held, and return its results as tensors of the device."""
        name = func._schema.name.partition("::")[2]
        if func is torch.ops.prim.device.default:
            return args[0].device
        if func.namespace == "c10d":
            return self._collective(func, args, kwargs)
        if torch.is_inference_mode_enabled() and func.namespace == "aten":  # composite ones arrive undivided
            with self.again():
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if kwargs.get("pin_memory"):
            return self._mark(func(*args, **{**kwargs, "pin_memory": False}))
        device = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        ours = [x for x in tree_leaves((args, kwargs)) if isinstance(x, EmulatedTensor)]
        if not ours and (device is None or device.type != "cuda"):
            return func(*args, **kwargs)
        if name in ("_to_copy", "copy_"):
            return self._copy(func, name, args, kwargs, device)
        self._check(func, name, args, kwargs, len(ours))
        inner = {**held(kwargs), **({} if device is None else {"device": torch.device("cpu")})}
        if name == "mm" and func._overloadname == "dtype":  # CPUs have no product into another type
            result = torch.mm(*(x.to(args[2]) for x in held(args[:2])))
        elif name == "mm" and func._overloadname == "dtype_out":
            result = inner["out"].copy_(torch.mm(*(x.to(args[2]) for x in held(args[:2]))))
        elif name == "addmm" and func._overloadname == "dtype_out":
            result = inner["out"].copy_(torch.addmm(*(x.to(args[3]) for x in held(args[:3]))))
        elif name == "_softmax" and args[2]:  # CPUs have no softmax of half precision into float32
            result = torch.softmax(args[0].held.float(), args[1])
        elif name == "_flash_attention_forward":
            result = flash(*held(args), **inner)
        elif name == "_flash_attention_backward":
            result = flash_backward(*held(args), **inner)
        else:
            result = func(*held(args), **inner)
        self._count(func, name, args)
        return self._wrapped(result, ours)

    def again(self) -> ExitStack:
        """Return a context in which this device is in force, inside of an operation that runs on it."""
        stack = ExitStack()
        TorchDispatchMode.__enter__(self)
        stack.callback(TorchDispatchMode.__exit__, self, None, None, None)
        return stack

    def _wrapped(self, result: Any, given: list[Any]) -> Any:
        known = {id(tensor.held): tensor for tensor in given}

        def wrap(tensor: Tensor) -> Tensor:
            if isinstance(tensor, EmulatedTensor):
                return tensor
            return known[id(tensor)] if id(tensor) in known else EmulatedTensor(tensor)

        return tree_map_only(Tensor, wrap, result)

    def _check(self, func: Any, name: str, args: Any, kwargs: Any, ours: int) -> None:
        """Raise DeviceMismatch where a GPU would fail, and note where the host waits."""
        plain = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and not isinstance(x, EmulatedTensor)]
        indexes = name in ("index", "index_put", "index_put_", "_index_put_impl_")
        if indexes and isinstance(args[0], EmulatedTensor):
            where = [x for x in args[1] if isinstance(x, Tensor)]
            if any(not isinstance(x, EmulatedTensor) for x in where):
                self.note_sync(f"{name} with indices on the CPU")
            elif any(x.dtype in (torch.bool, torch.uint8) for x in where):
                self.note_sync(f"{name} with a mask")
        elif ours and not name.startswith(("_foreach", "_fused")) and any(x.dim() for x in plain):
            raise DeviceMismatch(f"{func} at {lines_of_xrep()}: shapes {[tuple(x.shape) for x in plain]} on the CPU")
        if name in READ_ON_THE_HOST or (
            name == "repeat_interleave" and "Tensor" in func._overloadname and kwargs.get("output_size") is None
        ):
            self.note_sync(name)

    def _count(self, func: Any, name: str, args: Any) -> None:
        if name not in NOT_LAUNCHED and not func.is_view:
            self.counts.launches[name] += 1
        if name in PRODUCTS and [x for x in args if isinstance(x, Tensor)][-1].dtype == torch.float32:
            self.counts.float32_products[lines_of_xrep()] += 1

    def _copy(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], device: torch.device | None) -> Any:
        if name == "copy_":
            target, source = args[:2]
            held(target).copy_(held(source))
            self._moved(source, target, bool(args[2] if len(args) > 2 else kwargs.get("non_blocking")))
            return target
        (source,) = args
        stays = isinstance(source, EmulatedTensor) if device is None else device.type == "cuda"
        rest = {key: value for key, value in kwargs.items() if key not in ("device", "non_blocking", "pin_memory")}
        made = torch.ops.aten._to_copy.default(held(source), **rest)
        # A copy to the host that does not block is made into pinned memory.
        target = EmulatedTensor(made) if stays else self._mark(made)
        self._moved(source, target, bool(kwargs.get("non_blocking")))
        return target

    def _moved(self, source: Tensor, target: Tensor, non_blocking: bool) -> None:
        """Note a copy, and whether the host waits for it."""
        from_device, to_device = isinstance(source, EmulatedTensor), isinstance(target, EmulatedTensor)
        if from_device and to_device:
            self.counts.launches["copy"] += 1
            return
        host = target if from_device else source
        if not host.numel() or host.untyped_storage().data_ptr() in self._exchanged:
            return
        if not (non_blocking and self.is_pinned(host)):
            kind = "" if self.is_pinned(host) else " unpinned"
            self.note_sync(f"{'copy to' if from_device else 'copy from'}{kind} memory of the host")

    def _collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a collective by gloo, which moves the tensors that are held, as NCCL would those of the device."""
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        ours = [x for x in tensors if isinstance(x, EmulatedTensor)]
        if ours and len(ours) < len(tensors):
            raise DeviceMismatch(f"{func} of tensors on both devices")
        name = func._schema.name.partition("::")[2]
        if ours:
            self.counts.collectives[name] += 1
            self.counts.exchanged[name] += sum(x.numel() * x.element_size() for x in ours)
        # DistributedDataParallel copies the result, which is one of the tensors that are held, into the gradients.
        self._exchanged |= {x.held.untyped_storage().data_ptr(): x.held for x in ours}
        result = func(*held(args), **held(kwargs))
        return self._wrapped(result, ours) if ours else result


def numbered(value: Any) -> Any:
    """Return cuda:0 for cuda; a build of torch without CUDA does not know which device is the current one."""
    is_cuda = isinstance(value, str | torch.device) and str(value) == "cuda"
    return CUDA if is_cuda else value


class Attention(torch.autograd.Function):
    """Attention on the tensors that are held."""

    @staticmethod
    def forward(ctx, device, q, k, v, mask, causal):
        device.counts.launches["attention"] += 1
        if q.dtype == torch.float32:
            device.counts.float32_products[lines_of_xrep()] += 2
        ctx.device, ctx.causal = device, causal
        ctx.save_for_backward(q, k, v, mask)
        with torch._C._DisableTorchDispatch():
            result = attend(*held((q, k, v, mask)), causal)
        return EmulatedTensor(result)

    @staticmethod
    def backward(ctx, *gradients):
        ctx.device.counts.launches["attention_backward"] += 3
        with torch._C._DisableTorchDispatch(), torch.enable_grad():
            *leaves, mask = held(ctx.saved_tensors)
            leaves = [leaf.detach().requires_grad_() for leaf in leaves]
            found = torch.autograd.grad(attend(*leaves, mask, ctx.causal), leaves, held(gradients[0]))
        return None, *map(EmulatedTensor, found), None, None


def attend(q, k, v, mask, causal):
    return torch._C._nn.scaled_dot_product_attention(q, k, v, mask, 0.0, causal)

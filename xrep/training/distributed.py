"""The processes of one run: how they connect, exchange values, and end together.

torch.distributed does the work (torchrun starts the processes; NCCL is used on GPUs, gloo on CPUs). In addition to the
process group for gradients there are two trees of gloo groups for plain numbers, which never make a GPU wait:
``control``, for what ranks exchange at every step, and ``patient``, with a very long timeout, for preparing data and
for validation.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from xrep.config.fields import CountOrZero
from xrep.errors import TrainingError, UserError
from xrep.training.tree import Tree, plant

T = TypeVar("T")
MOST_RANKS = 1_000_000


class Distributed:
    """How the processes that torchrun starts work together; not used by a single process."""

    @dataclass(kw_only=True)
    class Config:
        backend: Literal["auto", "nccl", "gloo"] = "auto"
        """Library that exchanges gradients between processes. auto: nccl on GPUs, gloo on CPUs."""
        timeout_minutes: Annotated[float, "(0, 1e6]"] = 10.0
        """Minutes that a process waits for another one before it gives up."""
        check_every: CountOrZero = 1000
        """Steps between checks that weights, momentum encoders and queues are equal on every rank. 0: never."""
        shard: Literal["none", "optimizer"] = "none"
        """What each rank has only a share of. optimizer: the optimizer's state (ZeRO, stage 1), for models above a
        billion parameters. Weights are the same as without it, and so are checkpoints."""
        gradient_compression: Literal["none", "bf16"] = "none"
        """Type in which gradients are summed over the ranks. bf16: half the bytes, for slow networks; the sums have 8
        bits of fraction. none: that of the weights, float32."""


@dataclass(frozen=True)
class World:
    """The processes of a run, seen from one of them."""

    rank: int
    size: int
    local_rank: int
    device: torch.device
    control: Tree | None = None
    patient: Tree | None = None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sums(self, values: list[float]) -> list[float]:
        """Return each value summed over the ranks, on the CPU."""
        return self.sums_later(values)()

    def sums_later(self, values: list[float]) -> Callable[[], list[float]]:
        """Send the values to the other ranks; return a function that waits for their sums, on the CPU."""
        if self.control is None:
            return lambda: values
        wait = self.control.sum_later(torch.tensor(values, dtype=torch.float64))
        return lambda: wait().tolist()

    def from_main(self, value: T) -> T:
        """Return the value of rank 0; the other ranks wait for it as long as it takes."""
        return value if self.patient is None else self.patient.from_first(value)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of the ranks."""
        return self.from_main(self.gather_to_main(value))

    def gather_to_main(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of the ranks, on rank 0, and an empty list on the others."""
        return [value] if self.patient is None else self.patient.to_first(value)

    def tensors_from_main(self, read: Callable[[], Any]) -> Any:
        """Return what ``read`` returns on rank 0, which alone calls it: plain data with tensors, on the CPU.

        The tensors go through the process group for gradients, which is the fastest way.

        Raises:
            UserError: as ``together``.
        """
        value = None
        with self.together():
            if self.is_main:
                value = read()
        # Tensors on the device "meta" have shapes and types, but no numbers.
        described = self.from_main(tree_map_only(Tensor, lambda tensor: tensor.to("meta"), value))

        def sent(tensor: Tensor) -> Tensor:
            own = tensor if self.is_main else torch.empty(tensor.shape, dtype=tensor.dtype)
            # As bytes, because backends do not know all types.
            content = own.contiguous().reshape(-1).view(torch.uint8).to(self.device)
            if len(content):
                dist.broadcast(content, src=0)
            return tensor if self.is_main else content.cpu().view(tensor.dtype).reshape(tensor.shape)

        return tree_map_only(Tensor, sent, value if self.is_main else described)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Context manager after which either all ranks go on or none does: an error on one rank ends all ranks.

        Raises:
            UserError: on rank 0, the error of the first rank that has one, so that it is reported once.
            SystemExit: with code 2, on the other ranks.
        """
        problem: UserError | None = None
        try:
            yield
        except UserError as error:
            problem = error
        except OSError as error:
            if self.size == 1:
                raise
            problem = UserError(f"{error.strerror or error}", path=error.filename)
        self.stop_all(problem, 2)

    def stop_all(self, problem: UserError | TrainingError | None, code: int) -> None:
        """End every rank if one has a problem: rank 0 raises the problem of the first such rank, to report it."""
        if self.size == 1:
            if problem is not None:
                raise problem
            return
        told = self.gather(None if problem is None else str(problem))
        first = next((rank for rank, text in enumerate(told) if text is not None), None)
        if first is None:
            return
        if not self.is_main:
            raise SystemExit(code)
        if problem is None:
            text = f"rank {first}: {told[first]}"
            problem = UserError(text) if code == 2 else TrainingError(text)
        raise problem

    def in_turn(self, make: Callable[[], T]) -> T:
        """Return ``make()``, which is called on rank 0, then on the first rank of every host, then on all others.

        Later ranks find what earlier ones have written (a cache, a download). Errors are handled as in ``together``.
        """
        mine = 0 if self.is_main else 1 if self.local_rank == 0 else 2
        made: list[T] = []
        for turn in range(1 if self.size == 1 else 3):
            with self.together():
                if turn == mine:
                    made.append(make())
        return made[0]


def alone(device: torch.device | str) -> World:
    """Return the world of a single process."""
    return World(0, 1, 0, torch.device(device))


def start(config: Distributed.Config, device: str) -> World:
    """Connect the processes that torchrun started; without torchrun, or with one process, there is nothing to do.

    Args:
        device: auto, cpu or cuda; every rank takes its own GPU.

    Raises:
        UserError: the environment is not one that torchrun makes, the other ranks cannot be reached, or there are fewer
            GPUs than ranks on this host.
    """
    kind = pick_device(device)
    size = _variable("WORLD_SIZE", 1, MOST_RANKS, "1")
    if size == 1:
        return alone(kind)
    rank, local_rank = _variable("RANK", 0, size - 1), _variable("LOCAL_RANK", 0, size - 1, "0")
    if kind == "cpu" and config.backend == "nccl":
        raise UserError("`backend` is nccl, which is for GPUs, and `device` is cpu", cure="set `backend` to auto")
    place = torch.device(kind)
    if kind == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise UserError(
                f"rank {rank} finds {torch.cuda.device_count()} GPUs on its host, and is number {local_rank} there",
                cure="start fewer processes, or set `device` to cpu",
            )
        place = torch.device("cuda", local_rank)
        torch.cuda.set_device(place)
    backend = {"auto": "nccl" if kind == "cuda" else "gloo"}.get(config.backend, config.backend)
    limit = timedelta(minutes=config.timeout_minutes)
    _join(backend, limit, rank, size)
    return World(rank, size, local_rank, place, *plant(rank, size, limit, timedelta(days=7)))


def _variable(name: str, least: int, most: int, default: str = "") -> int:
    """Return a number of the environment, as torchrun sets it."""
    text = os.environ.get(name, default)
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
        problem = f"{name} in the environment is {text!r}, not a number from {least} to {most}"
        raise UserError(problem, cure="start the processes with torchrun, or unset WORLD_SIZE")
    return int(text)


def _join(backend: str, limit: timedelta, rank: int, size: int) -> None:
    address, port = os.environ.get("MASTER_ADDR", ""), _variable("MASTER_PORT", 1, 65535)
    cure = "set MASTER_ADDR and MASTER_PORT to the host and a free port of rank 0, the same on every host"
    try:
        socket.getaddrinfo(address, None)
    except (OSError, UnicodeError):
        raise UserError(f"MASTER_ADDR {address!r} is not the name of a host", cure=cure) from None
    try:
        dist.init_process_group(backend, timeout=limit, **_meeting_place(limit, rank, size, port))
    except (RuntimeError, ValueError) as error:  # what torch raises if a rank cannot be reached
        reason = str(error).splitlines()[0]
        problem = f"not all {size} ranks met at {address}:{port} ({reason})"
        raise UserError(problem, cure=cure) from None


def _meeting_place(limit: timedelta, rank: int, size: int, port: int) -> dict[str, Any]:
    """Return arguments for ``init_process_group``: torchrun's own store, with a prefix that no earlier attempt used.

    torchrun keeps one store across restarts, which still has the addresses of processes that have died. Hosts do not
    count restarts alike, so the ranks agree on a new prefix: each rank asks with its own unique word, and rank 0
    answers every word with the prefix, until all ranks have confirmed that they received it.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, timeout=limit)
    mine = uuid.uuid4().hex
    if rank:
        store.set(f"xrep/asks/{rank}", mine)
        name = store.get(f"xrep/answer/{mine}").decode()
        store.add(f"xrep/met/{name}", 1)
    else:
        name = mine
        deadline = time.monotonic() + limit.total_seconds()
        while store.add(f"xrep/met/{name}", 0) < size - 1:
            for other in range(1, size):
                if store.check([f"xrep/asks/{other}"]):
                    store.set(f"xrep/answer/{store.get(f'xrep/asks/{other}').decode()}", name)
            if time.monotonic() > deadline:
                raise RuntimeError("some ranks did not come in time")
            time.sleep(0.01)
    return {"store": dist.PrefixStore(f"xrep/{name}", store), "rank": rank, "world_size": size}


@contextmanager
def explain_lost_ranks(world: World) -> Iterator[None]:
    """Report in one line that another rank is gone, instead of torch's traceback about its sockets.

    Raises:
        TrainingError: another rank died or did not answer in time.
    """
    try:
        yield
    except RuntimeError as error:
        if world.size == 1 or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        reason = str(error).splitlines()[0]
        raise TrainingError(
            f"rank {world.rank}: another rank died or did not answer ({reason}); the same command goes on from the "
            "last checkpoint, torchrun --max-restarts N does so by itself"
        ) from None


def leave(world: World) -> None:
    """Disconnect from the other processes."""
    if world.size > 1 and dist.is_initialized():
        dist.destroy_process_group()


def pick_device(wanted: str) -> str:
    """Return the device to use; ``auto`` is cuda if there is a GPU, else cpu."""
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_equal(world: World, facts: dict[str, Any]) -> None:
    """Refuse to train if the ranks were given different values.

    Raises:
        UserError: the values differ; it names which, and a rank that differs from rank 0.
    """
    for rank, name, theirs, ours in _differences(world.gather(facts)):
        problem = f"rank {rank} has another {name} than rank 0: {theirs!r} against {ours!r}"
        raise UserError(problem, cure="start every rank with the same command and the same files")


def check_in_step(world: World, module: nn.Module) -> None:
    """Check that every tensor of the module is equal on all ranks, by checksum.

    Raises:
        TrainingError: a tensor differs; it names the first one (on rank 0; the other ranks exit).
    """
    if world.size == 1:
        return
    digests = {name: _digest(tensor) for name, tensor in module.state_dict().items()}
    everyone = world.gather({name: digest.tolist() for name, digest in digests.items()})
    for rank, name, _, _ in _differences(everyone):
        problem = f"{name} is no longer the same on rank 0 and rank {rank}: the ranks have drifted apart"
        cure = "go on from the last checkpoint, and look for a criterion that treats ranks differently"
        world.stop_all(TrainingError(f"{problem}; {cure}"), 1)


def _differences(everyone: list[dict[str, Any]]) -> Iterator[tuple[int, str, Any, Any]]:
    """Yield rank, name, the rank's value and that of rank 0, wherever they differ."""
    for name, ours in everyone[0].items():
        yield from ((rank, name, v.get(name), ours) for rank, v in enumerate(everyone) if v.get(name) != ours)


def _digest(tensor: Tensor) -> Tensor:
    """Return two sums over the bits of a tensor: unweighted, and weighted by row number, to detect a changed order."""
    words = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[tensor.element_size()]
    rows = tensor.detach().contiguous().reshape(max(len(tensor), 1) if tensor.ndim else 1, -1).view(words)
    sums = rows.sum(1, dtype=torch.int64)
    places = torch.arange(1, len(sums) + 1, device=sums.device)
    return torch.stack([sums.sum(), (sums * places).sum()])

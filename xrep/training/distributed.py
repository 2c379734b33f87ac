"""The processes of one run: how they connect, exchange values, and end together.

torch.distributed does the work (torchrun starts the processes), with one process group: NCCL sends the gradients of
GPUs, and gloo those of CPUs and all plain numbers, which so never make a GPU wait. Its messages have a limit in time.
Before each message for which one rank may have to work for long (read data, validate, save), the ranks meet in torch's
store, as long as it takes: what ends a run there is that the pulse of a rank has stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from xrep.config.fields import CountOrZero
from xrep.errors import TrainingError, UserError
from xrep.training.pulse import GO_ON, Pulse, connect, name_of_attempt

T = TypeVar("T")
_OF_GLOO = "gloo", "pair closure"
"""What errors of gloo say, which are plain RuntimeErrors; most name one of its files."""


@dataclass(frozen=True)
class World:
    """The processes of a run, which torchrun starts if there are several, seen from one of them."""

    @dataclass(kw_only=True)
    class Config:
        backend: Literal["auto", "nccl", "gloo"] = "auto"
        """Library that exchanges gradients between processes. auto: nccl on GPUs, gloo on CPUs."""
        timeout_minutes: Annotated[float, "(0, 1e6]"] = 10.0
        """Minutes after which the run ends if nothing is heard of a process, or its part of a step does not come. One
        that reads data, validates or saves may take longer."""
        check_every: CountOrZero = 1000
        """Steps between checks that weights, momentum encoders and queues are equal on every rank. 0: never."""
        shard: Literal["none", "optimizer"] = "none"
        """What is divided among the ranks. optimizer: the optimizer's state (ZeRO, stage 1), for models above a
        billion parameters. Weights are the same as without it, and so are checkpoints."""
        gradient_compression: Literal["none", "bf16"] = "none"
        """Type in which gradients are summed over the ranks. bf16: half the bytes, for slow networks; the sums have 8
        bits of fraction. none: that of the weights, float32."""

    rank: int
    size: int
    local_rank: int
    device: torch.device
    pulse: Pulse | None = None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sums(self, values: list[float]) -> list[float]:
        """Return each value summed over the ranks, on the CPU."""
        return self.sums_later(values)()

    def sums_later(self, values: list[float]) -> Callable[[], list[float]]:
        """Send the values to the other ranks; return a function that waits for their sums, on the CPU."""
        if self.size == 1:
            return lambda: values
        numbers = torch.tensor(values, dtype=torch.float64)
        work = dist.all_reduce(numbers, async_op=True)
        assert work is not None

        def wait() -> list[float]:
            work.wait()
            return numbers.tolist()

        return wait

    def from_main(self, value: T) -> T:
        """Return the value of rank 0; all ranks wait for each other as long as it takes."""
        return self.gather(value)[0]

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of the ranks; they wait for each other as long as it takes."""
        values = [value] * self.size
        if self.pulse is not None:
            self.pulse.meet()
            dist.all_gather_object(values, value)
        return values

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
        self.raise_on_all_ranks(problem, 2)

    def raise_on_all_ranks(self, problem: UserError | TrainingError | None, code: int) -> None:
        """End every rank if one has a problem: rank 0 raises the problem of the first such rank, to report it."""
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


def start(config: World.Config, device: str) -> World:
    """Connect the processes that torchrun started; without torchrun, or with one process, there is nothing to do.

    Args:
        device: auto, cpu or cuda; every rank takes its own GPU.

    Raises:
        UserError: the other ranks cannot be reached, or there are fewer GPUs than ranks on this host.
    """
    kind = pick_device(device)
    rank, size, local = (int(os.environ.get(name, 0)) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if size < 2:
        return alone(kind)
    if kind == "cpu" and config.backend == "nccl":
        raise UserError("`backend` is nccl, which is for GPUs, and `device` is cpu", cure="set `backend` to auto")
    if kind == "cuda":
        if local >= (count := torch.cuda.device_count()):
            problem = f"rank {rank} finds {count} GPUs on its host, and is number {local} there"
            raise UserError(problem, cure="start fewer processes, or set `device` to cpu")
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" and config.backend != "gloo" else "gloo"
    limit = timedelta(minutes=config.timeout_minutes)
    try:
        store = connect(limit, is_main=rank == 0)
        name = name_of_attempt(store, rank, size, limit)
        dist.init_process_group(backend, store=dist.PrefixStore(name, store), rank=rank, world_size=size, timeout=limit)
        pulse = Pulse(name, rank, size, limit.total_seconds())
    except (RuntimeError, ValueError) as error:  # what torch raises if a rank cannot be reached
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        problem = f"not all {size} ranks met at {place} ({str(error).splitlines()[0]})"
        cure = "set MASTER_ADDR and MASTER_PORT to the host and a free port of rank 0, the same on every host"
        raise UserError(problem, cure=cure) from None
    return World(rank, size, local, torch.device(f"cuda:{local}" if kind == "cuda" else kind), pulse)


@contextmanager
def explain_lost_ranks(world: World) -> Iterator[None]:
    """Report in one line that another rank is gone, instead of torch's traceback about its sockets.

    Raises:
        TrainingError: another rank died or did not answer in time.
    """
    try:
        yield
    except RuntimeError as error:
        if world.size == 1 or not (isinstance(error, dist.DistError) or any(each in str(error) for each in _OF_GLOO)):
            raise
        reason = str(error).splitlines()[0]
        raise TrainingError(f"rank {world.rank}: another rank died or did not answer ({reason}); {GO_ON}") from None


def leave(world: World) -> None:
    """Disconnect from the other processes, when all have come so far."""
    if world.pulse is not None:
        world.pulse.stop()
        dist.destroy_process_group()


def pick_device(wanted: str) -> str:
    """Return the device to use; ``auto`` is cuda if there is a GPU, else cpu."""
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_equal(world: World, facts: dict[str, Any]) -> None:
    """Refuse to train if the ranks were given different values.

    Raises:
        UserError: the values differ; it names the first that does.
    """
    main = world.from_main(facts)
    with world.together():
        for name in {**main, **facts}:
            if facts.get(name) != main.get(name):
                problem = f"another {name} than on rank 0: {facts.get(name)!r} against {main.get(name)!r}"
                raise UserError(problem, cure="start every rank with the same command and the same files")


def check_in_step(world: World, module: nn.Module) -> None:
    """Check that every tensor of the module is equal on all ranks, by checksum.

    Raises:
        TrainingError: a tensor differs; it names the first one (on rank 0; the other ranks exit).
    """
    if world.size == 1:
        return
    own = {name: _digest(tensor).tolist() for name, tensor in module.state_dict().items()}
    problem, main = None, world.from_main(own)
    if drifted := [name for name in own if own[name] != main[name]]:
        cure = "go on from the last checkpoint, and look for a criterion that treats ranks differently"
        problem = TrainingError(
            f"{drifted[0]} is no longer the same as on rank 0: the ranks have drifted apart; {cure}"
        )
    world.raise_on_all_ranks(problem, 1)


def _digest(tensor: Tensor) -> Tensor:
    """Return two sums over the bits of a tensor: unweighted, and weighted by row number, to detect a changed order."""
    words = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[tensor.element_size()]
    rows = tensor.detach().contiguous().reshape(max(len(tensor), 1) if tensor.ndim else 1, -1).view(words)
    sums = rows.sum(1, dtype=torch.int64)
    places = torch.arange(1, len(sums) + 1, device=sums.device)
    return torch.stack([sums.sum(), (sums * places).sum()])

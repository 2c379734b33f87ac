"""What a run says of its steps: a line of progress after each one, and a record of the means of some."""

from __future__ import annotations

import math
import resource
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch

from xrep.criteria.criterion import with_perplexity
from xrep.nn.encoder import counting_sentences
from xrep.nn.queue import Queue
from xrep.progress import duration
from xrep.training.log import Log, Quiet
from xrep.training.results import Numbers
from xrep.training.state import TrainingState
from xrep.training.step import Pair

_RECENT = 20
"""Steps whose means are on the line of progress, since single steps differ too much to be read."""
_SHOWN_METRICS = 3


class Averages:
    """Sums and means of numbers by name. Not all steps have all numbers; one that is NaN counts as none."""

    def __init__(self, steps: Iterable[dict[str, float]] = ()) -> None:
        self.sums, self._counts = defaultdict[str, float](float), defaultdict[str, int](int)
        for step in steps:
            self.add(step)

    def add(self, numbers: dict[str, float]) -> None:
        for name, number in numbers.items():
            if not math.isnan(number):
                self.sums[name] += number
                self._counts[name] += 1

    def means(self) -> dict[str, float]:
        return with_perplexity({name: total / self._counts[name] for name, total in self.sums.items()})


class Reports:
    """Averages the numbers of steps, as they become known, for the log of a run.

    Args:
        spent: returns the share of the budget that is spent in a state.
        examples: number of examples in an epoch.
    """

    def __init__(self, log: Log | Quiet, pair: Pair, spent: Callable[[TrainingState], float], examples: int) -> None:
        self.log, self._pair, self._spent, self._examples = log, pair, spent, examples
        self._queues = [part for part in pair.criterion.modules() if isinstance(part, Queue)]
        self._values, self._counts = Averages(), Averages()  # since the last record
        self._recent = deque[tuple[dict[str, float], dict[str, float]]](maxlen=_RECENT)  # values and counts
        self._rate, self._scale, self._validation = 0.0, None, ""

    def add(self, numbers: Numbers, rate: float, counts: dict[str, float]) -> None:
        """Add a step.

        Args:
            rate: its learning rate.
            counts: its ``pairs`` and ``tokens``, the seconds that it took (``busy``) and waited for data (``waited``).
        """
        self._rate, self._scale = rate, numbers.scale
        values = {"loss": numbers.loss, **numbers.values}
        self._values.add(values if numbers.skipped else {**values, "gradient_norm": numbers.norm})
        self._counts.add({**counts, "skipped": numbers.skipped})
        self._recent.append((values, counts))

    def record(self, state: TrainingState, stalled: float) -> None:
        """Log the means since the last record, if there were steps; speeds count the time of steps alone.

        Args:
            stalled: seconds for which checkpoints have kept the run from training.
        """
        totals = self._counts.sums
        if not totals["pairs"]:
            return
        speeds = {"pairs_per_second": "pairs", "tokens_per_second": "tokens", "waiting_for_data": "waited"}
        values = {
            **self._values.means(),
            "learning_rate": self._rate,
            "epoch": state.examples / self._examples,
            **{name: totals[count] / totals["busy"] for name, count in speeds.items()},
            "memory_megabytes": _memory_megabytes(next(self._pair.parameters()).device),
            "stalled_seconds": stalled,
            "seconds": state.seconds,
        }
        if self._scale is not None:
            values |= {"loss_scale": self._scale, "skipped_steps": totals["skipped"]}
        self.log.record(state.step, values, "train")
        is_full = all(queue.filled == len(queue.vectors) for queue in self._queues)  # the loss of an empty one is 0
        if is_full and values.get("gradient_norm") == 0.0 == values.get("loss"):
            why = "perhaps a batch has one example, or no negative counts"
            self.log.say(f"step {state.step}: loss and gradient are 0, so that nothing is learnt; {why}")
        self._values, self._counts = Averages(), Averages()

    def validated(self, state: TrainingState, metrics: dict[str, float], metric: str, better: bool) -> None:
        """Log a validation, whose best state is chosen by ``metric``."""
        self.log.record(state.step, metrics, "valid")
        self._validation = f"validation {metric} {metrics[metric]:.4g}"
        shown = ", ".join(f"{name} {metrics[name]:.2f}" for name in metrics if "-" not in name)
        self.log.say(f"step {state.step}: validation {shown}{' (best so far)' if better else ''}")

    def line(self, state: TrainingState, doing: str = "") -> None:
        """Show the line of progress; ``doing`` says what a long step or validation is at."""
        spent = self._spent(state)
        left = state.seconds * (1 / spent - 1) if spent else 0.0
        counts = Averages(counts for _, counts in self._recent).sums
        speeds = [f"{counts[unit] / counts['busy']:,.0f} {unit}/s" for unit in ("pairs", "tokens") if counts["busy"]]
        parts = [f"epoch {state.examples / self._examples:.2f}", f"step {state.step}", *self._quality()]
        parts += [self._validation, f"lr {self._rate:.2e}", *speeds, f"{duration(left)} left", doing]
        self.log.line(" | ".join(filter(None, parts)))

    def _quality(self) -> list[str]:
        """Return the loss and the first metrics as text, or how full the queue is: they become worse with every
        negative that joins, which says nothing about the model."""
        filling = min(self._queues, key=lambda queue: queue.filled / len(queue.vectors), default=None)
        if filling is not None and filling.filled < len(filling.vectors):
            return [f"queue {filling.filled:,} of {len(filling.vectors):,} filled"]
        means = Averages(values for values, _ in self._recent).means()
        shown = [f"{name} {mean:.4g}" for name, mean in means.items() if not name.startswith("loss_")]
        return shown[: 1 + _SHOWN_METRICS]

    def counting(self, state: TrainingState, doing: str) -> AbstractContextManager[None]:
        """Return a context in which the line of progress counts the sentences that the model encodes."""
        done = 0

        def tell(sentences: int) -> None:
            nonlocal done
            done += sentences
            self.line(state, f"{doing}: {done:,} sentences encoded")

        return counting_sentences(self._pair.model, tell)


def _memory_megabytes(device: torch.device) -> float:
    """Return the peak memory so far: what torch allocated on a GPU, or the resident size of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6

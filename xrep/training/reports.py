"""What a run says of its steps: a line of progress after each one, and a record of the means of some."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from xrep.nn.encoder import counting_sentences
from xrep.progress import duration
from xrep.training.log import Log, Meters, Quiet, Recent, memory_megabytes
from xrep.training.results import Numbers
from xrep.training.state import TrainingState
from xrep.training.step import Pair


class Reports:
    """Averages the numbers of steps, as they become known, for the log of a run.

    Args:
        spent: returns the share of the budget that is spent in a state.
        examples: number of examples in an epoch.
    """

    def __init__(self, log: Log | Quiet, pair: Pair, spent: Callable[[TrainingState], float], examples: int) -> None:
        self.log, self._pair, self._spent, self._examples = log, pair, spent, examples
        self._meters, self._recent = Meters(), Recent(pair.criterion)
        self._rate, self._scale, self._validation = 0.0, None, ""

    def add(self, numbers: Numbers, rate: float, counts: dict[str, float]) -> None:
        """Add a step.

        Args:
            rate: its learning rate.
            counts: its ``pairs`` and ``tokens``, the seconds that it took (``busy``) and waited for data (``waited``).
        """
        self._rate, self._scale = rate, numbers.scale
        values = {"loss": numbers.loss, **numbers.values}
        self._meters.count(**counts, skipped=numbers.skipped)
        self._meters.add(values if numbers.skipped else {**values, "gradient_norm": numbers.norm})
        self._recent.add({**values, **{name: count for name, count in counts.items() if name != "waited"}})

    def record(self, state: TrainingState, stalled: float) -> None:
        """Log the means since the last record, if there were steps; speeds count the time of steps alone.

        Args:
            stalled: seconds for which checkpoints have kept the run from training.
        """
        totals = self._meters.totals
        if not totals["pairs"]:
            return
        speeds = {"pairs_per_second": "pairs", "tokens_per_second": "tokens", "waiting_for_data": "waited"}
        values = {
            **self._meters.means(),
            "learning_rate": self._rate,
            "epoch": state.examples / self._examples,
            **{name: totals[count] / totals["busy"] for name, count in speeds.items()},
            "memory_megabytes": memory_megabytes(next(self._pair.parameters()).device),
            "stalled_seconds": stalled,
            "seconds": state.seconds,
        }
        if self._scale is not None:
            values |= {"loss_scale": self._scale, "skipped_steps": totals["skipped"]}
        self.log.record(state.step, values, "train")
        self._meters.clear()

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
        place = [f"epoch {state.examples / self._examples:.2f}", f"step {state.step}"]
        how_good = [*self._recent.quality(), self._validation, f"lr {self._rate:.2e}"]
        parts = [*place, *how_good, *self._recent.speeds(), f"{duration(left)} left", doing]
        self.log.line(" | ".join(filter(None, parts)))

    def counting(self, state: TrainingState, doing: str) -> AbstractContextManager[None]:
        """Return a context in which the line of progress counts the sentences that the model encodes."""
        done = 0

        def tell(sentences: int) -> None:
            nonlocal done
            done += sentences
            self.line(state, f"{doing}: {done:,} sentences encoded")

        return counting_sentences(self._pair.model, tell)

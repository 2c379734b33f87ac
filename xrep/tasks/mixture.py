"""Several tasks as one: every step has a batch of each task, or of one task that is drawn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from xrep.config import Parts
from xrep.data.batch import Movable
from xrep.data.plan import mean_size
from xrep.data.stream import Plan
from xrep.errors import UserError
from xrep.hashing import GOLDEN
from xrep.tasks.task import ExampleKind, Pool, TableTask, Task
from xrep.text.sides import same_tokenizers


@dataclass
class MixedBatch(Movable):
    """The batches of a step, by name of their part. Its length is that of all batches together.

    It stays in host memory: what is computed with are the plans of the batches.
    """

    kept = ("parts",)
    parts: dict[str, Any]

    @property
    def token_count(self) -> int:
        return sum(batch.token_count for batch in self.parts.values())

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.parts.values())


class MixtureTask(Task):
    """The tasks of several parts, which read text of one vocabulary, as one task.

    With mixing ``weight``, each batch contains a batch of every part. With ``proportion`` it contains a batch of one
    part, drawn with probability proportional to the part's proportion: the one whose share of [0, 2⁶⁴) contains the
    n-th number of the Weyl sequence n·2⁶⁴/φ + start, modulo 2⁶⁴. The draw depends only on (seed, n), and any stretch
    of the training has the parts in their proportions, except for a few batches.

    An epoch ends when the part that takes longest has been seen once; smaller parts are repeated, each in the order of
    its own epochs. ``examples`` counts what all parts consume until then. ``stop`` counts in the same way, and cuts the
    last batch of the part that takes longest so that this part ends exactly.

    ``text`` has the languages of all parts and the largest of their lengths. The parts' own specs get these languages,
    too.

    Raises:
        UserError: two parts have different vocabularies, or anything that the parts' own tasks raise.
    """

    gives = ExampleKind.MIXTURE

    Config = Parts

    def __init__(self, config: Parts, seed: int, tokenizers: Mapping[str, str] | None = None) -> None:
        self.config = config
        self._tasks: dict[str, TableTask] = {
            part.name: part.kind(part.config, seed, tokenizers) for part in config.parts
        }
        first, *others = self._tasks
        for name in others:
            if not same_tokenizers(self._tasks[first].tokenizers, self._tasks[name].tokenizers):
                problem = f"the parts {first} and {name} have different vocabularies"
                raise UserError(problem, cure="preprocess the text of both with the same `tokenizer`")
        self.tokenizers = self._tasks[first].tokenizers
        self.has_validation = any(task.has_validation for task in self._tasks.values())
        texts = [task.text for task in self._tasks.values()]
        sides = ("source_languages", "target_languages")
        languages: Any = {side: sorted({code for text in texts for code in getattr(text, side)}) for side in sides}
        self.text = replace(texts[0], max_length=max(text.max_length for text in texts), **languages)
        for task in self._tasks.values():  # languages then have the places that models and criteria use
            task.text = replace(task.text, **languages)
        by_proportion = config.mixing == "proportion"
        shares = {part.name: part.proportion if by_proportion else 1.0 for part in config.parts}
        rates = {name: shares[name] * mean_size(task.order, task.size) for name, task in self._tasks.items()}
        # The longest part has the most steps per epoch; rates omit a factor that all parts share.
        self._longest = max(self._tasks, key=lambda name: self._tasks[name].examples / rates[name])
        steps = self._tasks[self._longest].examples / rates[self._longest]
        self.examples = sum(round(steps * rate) for rate in rates.values())
        borders = np.cumsum(list(shares.values()))
        self._borders = [int(border * 2**64) for border in (borders / borders[-1]).tolist()]
        self._start = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])

    @property
    def parts(self) -> Mapping[str, TableTask]:
        return self._tasks

    def check_size(self, world_size: int) -> None:
        for name, task in self._tasks.items():
            try:
                task.check_size(world_size)
            except UserError as error:
                raise UserError(f"the part {name}: {error.problem}", path=error.path, cure=error.cure) from None

    def drawn(self, step: int) -> list[str]:
        """Return the parts in batch number ``step``, counted from 0 at the start of training."""
        if self.config.mixing == "weight":
            return list(self._tasks)
        number = (self._start + step * GOLDEN) % 2**64
        return [next(name for name, border in zip(self._tasks, self._borders, strict=True) if number < border)]

    def plan(
        self, cursor: dict[str, Any] | None = None, rank: int = 0, world_size: int = 1, stop: int | None = None
    ) -> Iterator[Plan]:
        """Return the plans of the training batches of one rank. ``stop`` counts the examples of all parts.

        ``Plan.rows`` has those of each part, by its name. ``Plan.cursor`` has the cursors and the examples of
        the parts, and the number of batches so far.
        """
        cursor = cursor or {"step": 0, "parts": {}, "examples": {}}
        step, cursors, seen = cursor["step"], dict(cursor["parts"]), dict(cursor["examples"])
        longest = self._longest
        # The end of a whole number of epochs is exact, because stop is then a multiple of ``examples``.
        end = None if stop is None else -(-stop * self._tasks[longest].examples // self.examples)
        plans = {
            name: task.plan(cursors.get(name), rank, world_size, end if name == longest else None)
            for name, task in self._tasks.items()
        }
        while end is None or seen.get(longest, 0) < end:
            rows = {}
            for name in self.drawn(step):
                part = next(plans[name])
                rows[name], cursors[name], seen[name] = part.rows, part.cursor, part.examples
            step += 1
            examples = sum(seen.values())
            if end is not None and stop is not None:  # shares are rounded; the end of the longest part is exact
                examples = max(examples, stop) if seen.get(longest, 0) >= end else min(examples, stop - 1)
            yield Plan(rows, {"step": step, "parts": dict(cursors), "examples": dict(seen)}, examples)

    def make(self, rows: Mapping[str, Any]) -> MixedBatch:
        return MixedBatch({name: self._tasks[name].make(own) for name, own in rows.items()})

    def describe(self, batch: MixedBatch, limit: int = 3) -> str:
        return "; ".join(f"{name}: {self._tasks[name].describe(each, limit)}" for name, each in batch.parts.items())

    def fingerprint(self) -> str:
        prints = {name: task.fingerprint() for name, task in self._tasks.items()}
        return hashlib.sha256(json.dumps(prints, sort_keys=True).encode()).hexdigest()

    @property
    def training_hashes(self) -> list[Path]:
        return list(dict.fromkeys(file for task in self._tasks.values() for file in task.training_hashes))

    def validation_pools(self, max_pool_size: int) -> list[Pool]:
        """Return the pools of all parts. Pools of one language pair are joined, and equal data counts once."""
        pools: dict[tuple[str, str], list[Pool]] = {}
        for task in {task.fingerprint(): task for task in self._tasks.values()}.values():
            for pool in task.validation_pools(max_pool_size):
                pools.setdefault((pool.source_language, pool.target_language), []).append(pool)
        return [replace(some[0], batches=_one_after_another(some)) for some in pools.values()]

    def validation_batches(self) -> Iterator[MixedBatch]:
        """Return the batches of the dev splits, each with one part."""
        for name, task in self._tasks.items():
            yield from (MixedBatch({name: batch}) for batch in task.validation_batches())


def _one_after_another(pools: list[Pool]) -> Callable[[], Iterator[Any]]:
    def batches() -> Iterator[Any]:
        first = 0
        for pool in pools:
            rows = 0
            for batch in pool.batches():
                rows += len(batch)
                yield replace(batch, facts={**batch.facts, "indices": batch.indices + first})
            first += rows

    return batches

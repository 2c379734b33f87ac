"""The engine that gives the units of a job to actors of a Ray cluster, which know of each other by the markers alone.
So nothing is lost when the cluster or this process, the driver, ends, and any engine goes on."""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import xrep
from xrep.errors import UserError
from xrep.jobs.notes import DONE
from xrep.jobs.plan import PLAN, TRIES, Job, MachineError
from xrep.jobs.status import statuses
from xrep.jobs.work import Engine, Share, work
from xrep.progress import ProgressLine
from xrep.store import addresses
from xrep.store.addresses import join

_PATIENCE = 10.0
"""Seconds that a machine of the cluster has to answer."""
_PAUSE = 2.0
"""Seconds between two looks at the markers, for the progress."""
_PASSED_ON = "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
"""Variables of the environment by which this process limits the memory of torch, which actors have as well."""


class Worker:
    """The actor: a process on any machine of the cluster.

    Args:
        folder: That of the driver, which relative paths begin at.
    """

    def __init__(self, folder: str) -> None:
        with suppress(OSError):  # a machine that shares no folders may still reach all that has an address
            os.chdir(folder)

    def work(self, job: Job, share: Share) -> bool:
        """Do the units of a worker and return whether all are done. A MachineError tells what differs here."""
        here = socket.gethostname()
        if job.plan["xrep"] != xrep.__version__:
            problem = f"the machine {here} has xrep {xrep.__version__}, and the driver {job.plan['xrep']}"
            raise MachineError(problem, cure="install one version on all")
        if not addresses.exists(join(job.address, PLAN)):
            cure = "write to a folder that all machines share, or to an object store"
            raise MachineError(f"the machine {here} does not see this folder", path=job.address, cure=cure)
        return work(job, share, False)


def run_on_ray(job: Job, engine: Engine, show_progress: bool) -> None:
    """Do all units of a job on a Ray cluster.

    Raises:
        UserError: Of a unit.
        MachineError: There is no cluster, or it is too small, or workers end at once.
    """
    with _connected(engine) as ray:
        engine = fit_workers(engine, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        job.before = {stage.name: job.notes(stage).numbers(DONE) for stage in job.stages}
        actors = _Actors(ray, job, engine)
        try:
            _wait(ray, actors, ProgressLine(shown=show_progress))
        finally:
            for actor, _ in actors.working.values():
                ray.kill(actor)


@contextmanager
def _connected(engine: Engine) -> Iterator[Any]:
    """Context manager that yields the module ``ray``, connected to a cluster: the one that this process has joined, or
    that RAY_ADDRESS names, or a new one of this machine, which ends with the block."""
    ray = importlib.import_module("ray")  # not a plain import: the type checker would need the extra, too
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        if address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it reports to Ray's authors
            os.environ.setdefault("RAY_worker_niceness", "0")  # else any other process comes first
            quiet["include_dashboard"] = False
            if engine.workers is not None:
                quiet["num_cpus"] = engine.workers * engine.cpus_per_worker
        elif address != "auto":
            _reach(address)
        ray.init(address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:  # also another version of Ray or Python
        cure = "start one (ray start --head), correct or unset RAY_ADDRESS; one with tokens needs RAY_AUTH_MODE=token"
        reason = " ".join(str(error).split())
        raise MachineError(f"no Ray cluster can be used at {address}: {reason}", cure=cure) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raise an OSError or a ValueError if nothing answers at HOST:PORT. Ray itself would try for minutes."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.hostname is None or place.port is None:
        raise ValueError("it is not HOST:PORT")
    socket.create_connection((place.hostname, place.port), _PATIENCE).close()


def fit_workers(engine: Engine, nodes: list[dict[str, float]]) -> Engine:
    """Return how many workers there shall be, and with what, from the resources of the nodes of a cluster: one for each
    GPU, or else for each so many processors. A MachineError says that no node is large enough for a worker."""
    if engine.workers is not None:
        return engine
    cpus, gpus = engine.cpus_per_worker, engine.gpus_per_worker
    if not gpus and any(node.get("GPU") for node in nodes):
        gpus = 1
    places = [(node.get("CPU", 0) // cpus, node.get("GPU", 0) // gpus if gpus else float("inf")) for node in nodes]
    workers = int(sum(map(min, places)))
    if not workers:
        needed = f"{cpus} processors" + (f" and {gpus:g} GPUs" if gpus else "")
        cure = "lower `cpus_per_worker` or `gpus_per_worker`, or give `workers` if the cluster will grow"
        raise MachineError(f"no machine of the Ray cluster has {needed} for a worker", cure=cure)
    return replace(engine, workers=workers, gpus_per_worker=gpus)


class _Actors:
    """The actors of a job. One that dies is replaced, and what it had begun is done anew."""

    def __init__(self, ray: Any, job: Job, engine: Engine) -> None:
        variables = {"OMP_NUM_THREADS": str(engine.cpus_per_worker)}
        variables |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        resources = {"num_cpus": engine.cpus_per_worker, "num_gpus": engine.gpus_per_worker}
        self._actor = ray.remote(Worker).options(**resources, runtime_env={"env_vars": variables})
        self._ray, self.job = ray, job
        self.working = dict[Any, tuple[Any, Share]]()
        self._deaths = Counter[tuple[str, int]]()
        self._early_deaths = Counter[Share]()
        for number in range(engine.workers or 1):
            self._start(Share(number, engine.workers or 1))

    def _start(self, share: Share) -> None:
        actor = self._actor.remote(os.getcwd())
        self.working[actor.work.remote(self.job, share)] = actor, share

    def replace(self, ended: Any, reason: str) -> None:
        """Start a new actor for one that died. A unit at which actors died three times has failed.

        Raises:
            MachineError: Actors of this share died three times before they began a unit.
        """
        _, share = self.working.pop(ended)
        begun = [(stage, number) for stage in self.job.stages for number in self.job.notes(stage).begun(share.worker)]
        for stage, number in begun:
            self._deaths[stage.name, number] += 1
            if self._deaths[stage.name, number] == TRIES:
                self.job.notes(stage).fail(number, f"the death of its worker, {TRIES} times", reason)
            else:
                self.job.notes(stage).forget(number)
        self._early_deaths[share] = 0 if begun else self._early_deaths[share] + 1
        if self._early_deaths[share] == TRIES:
            last = reason.strip().splitlines()[-1]
            cure = "install xrep, with the same packages, on all machines of the cluster"
            raise MachineError(f"a worker of Ray ended {TRIES} times before it could begin: {last}", cure=cure)
        self._start(share)


def _wait(ray: Any, actors: _Actors, line: ProgressLine) -> None:
    """Return when a worker says that all is done."""
    pause = _PAUSE
    while True:
        ended, _ = ray.wait(list(actors.working), timeout=pause)
        for one in ended:
            try:
                ray.get(one)
                return
            except ray.exceptions.RayActorError as error:
                actors.replace(one, str(error))
            except ray.exceptions.RayTaskError as error:
                raise error.cause from (None if isinstance(error.cause, UserError | OSError) else error)
        began = time.monotonic()
        if states := [str(status) for status in statuses(actors.job.address) if status.running]:
            line.show("; ".join(states))
        pause = max(_PAUSE, 10 * (time.monotonic() - began))

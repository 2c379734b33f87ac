"""The engine that gives the units of a job to actors of a Ray cluster, which know of each other by the markers alone.
So nothing is lost when the cluster or this process, the driver, ends, and any engine goes on."""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any
from urllib.parse import urlsplit

from xrep.errors import UserError
from xrep.jobs.notes import PLAN, TRIES
from xrep.jobs.plan import Job, MachineError
from xrep.jobs.work import Engine, WorkerShare, work
from xrep.progress import ProgressLine
from xrep.store import addresses
from xrep.store.addresses import join
from xrep.version import __version__

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

    def work(self, job: Job, share: WorkerShare) -> bool:
        """Do the units of a worker and return whether all are done. A MachineError tells what differs here."""
        here = socket.gethostname()
        if job.plan["xrep"] != __version__:
            problem = f"the machine {here} has xrep {__version__}, and the driver {job.plan['xrep']}"
            raise MachineError(problem, cure="install one version on all")
        if not addresses.exists(join(job.address, PLAN)):
            cure = "write to a folder that all machines share, or to an object store"
            raise MachineError(f"the machine {here} does not see this folder", path=job.address, cure=cure)
        return work(job, share, False)


def run_on_ray(job: Job, engine: Engine, show_progress: bool) -> bool:
    """Do all units of a job on a Ray cluster, and return whether they are done, as ``work``.

    Raises:
        UserError: Of a unit.
        MachineError: There is no cluster, or it is too small, or workers end before they have begun a unit.
    """
    ray = importlib.import_module("ray")  # not a plain import: the type checker would need the extra, too
    with _connected(ray, engine):
        count, gpus = fit_workers(engine, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        variables["OMP_NUM_THREADS"] = str(engine.cpus_per_worker)
        how = {"num_cpus": engine.cpus_per_worker, "num_gpus": gpus, "runtime_env": {"env_vars": variables}}
        actor, actors, calls = ray.remote(Worker).options(**how), dict[WorkerShare, Any](), dict[Any, WorkerShare]()

        def start(share: WorkerShare) -> None:
            actors[share] = actor.remote(os.getcwd())
            calls[actors[share].work.remote(job, share)] = share

        try:
            for number in range(count):
                start(WorkerShare(number, count))
            line, pause, early, before = ProgressLine(shown=show_progress), _PAUSE, Counter[WorkerShare](), 0
            while True:
                for call in ray.wait(list(calls), timeout=pause)[0]:
                    try:
                        return ray.get(call)
                    except ray.exceptions.RayActorError as error:
                        share, reason = calls.pop(call), str(error).strip()
                    begun = sum(job.notes(stage).release(str(share), reason) for stage in job.stages)
                    finished = sum(job.notes(stage).status()["done"] for stage in job.stages)
                    if finished > before:  # machines that are lost do not end what others go on with
                        early.clear()
                    before, early[share] = finished, 0 if begun else early[share] + 1
                    if early[share] == TRIES:
                        problem = f"a worker of Ray ended {TRIES} times before it could begin"
                        cure = "install xrep, with the same packages, on all machines of the cluster"
                        raise MachineError(f"{problem}: {reason.splitlines()[-1]}", cure=cure)
                    start(share)
                began = time.monotonic()
                states = [status for stage in job.stages if (status := job.notes(stage).status())["running"]]
                if states:
                    line.show("; ".join("{stage}: {done:,} of {count:,} units".format(**status) for status in states))
                pause = max(_PAUSE, 10 * (time.monotonic() - began))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from (None if isinstance(error.cause, UserError | OSError) else error)
        finally:
            for one in actors.values():
                ray.kill(one)


def _connected(ray: Any, engine: Engine) -> AbstractContextManager[object]:
    """Return a context manager in which ``ray`` is connected to a cluster: the one that this process has joined, or
    that RAY_ADDRESS names, or a new one of this machine, which ends with the block."""
    if ray.is_initialized():
        return nullcontext()
    address = os.environ.get("RAY_ADDRESS") or "local"
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        if address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it reports to Ray's authors
            os.environ.setdefault("RAY_worker_niceness", "0")  # else any other process comes first
            quiet["include_dashboard"] = False
            if engine.workers is not None:
                quiet["num_cpus"] = engine.workers * engine.cpus_per_worker
        else:
            place = urlsplit(address if "://" in address else f"//{address}")
            if place.hostname and place.port:  # Ray itself would try for minutes, and then end this process
                socket.create_connection((place.hostname, place.port), _PATIENCE).close()
        return ray.init(address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:  # also another version of Ray or Python
        cure = "start one (ray start --head), correct or unset RAY_ADDRESS; one with tokens needs RAY_AUTH_MODE=token"
        reason = " ".join(str(error).split())
        raise MachineError(f"no Ray cluster can be used at {address}: {reason}", cure=cure) from None


def fit_workers(engine: Engine, nodes: list[dict[str, float]]) -> tuple[int, float]:
    """Return how many workers there shall be, and the GPUs of each, from the resources of the nodes of a cluster: one
    for each GPU, or else for each so many processors. A MachineError says that no node is large enough for a worker."""
    cpus, gpus = engine.cpus_per_worker, engine.gpus_per_worker
    if engine.workers is not None:
        return engine.workers, gpus
    gpus = gpus or float(any(node.get("GPU") for node in nodes))
    places = [min(node.get("CPU", 0) // cpus, node.get("GPU", 0) // gpus if gpus else float("inf")) for node in nodes]
    if not sum(places):
        needed = f"{cpus} processors" + (f" and {gpus:g} GPUs" if gpus else "")
        cure = "lower `cpus_per_worker` or `gpus_per_worker`, or give `workers` if the cluster will grow"
        raise MachineError(f"no machine of the Ray cluster has {needed} for a worker", cure=cure)
    return int(sum(places)), gpus

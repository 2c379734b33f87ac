"""Two hosts train one run, and the link between them is cut: network namespaces with a link of their own."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.runs import environment, options

pytestmark = pytest.mark.nightly
LIMIT = 15.0
"""Seconds after which a host that is silent is given up."""
HOSTS, ADDRESS = ("xrep-test-1", "xrep-test-2"), "10.77.3."
SLOW = '''
import os, sys, time
from pathlib import Path

from xrep.criteria.dual_moco import DualMoco
from xrep.tasks.bitext import BitextTask
from xrep.training.checkpoint import Checkpoints
from xrep.validation.loss import LossValidator

PLACES = {"step": (DualMoco, "after_step"), "validation": (LossValidator, "measure"), "save": (Checkpoints, "save"),
          "data": (BitextTask, "__init__")}
place, seconds = os.environ["SLOW"].split()
owner, name = PLACES[place]
call = getattr(owner, name)

def slow(*arguments, **options):
    """Rank 0 sleeps before it does what is called."""
    if os.environ["RANK"] == "0":
        Path(os.environ["HERE"]).touch()
        time.sleep(float(seconds))
    return call(*arguments, **options)

setattr(owner, name, slow)
'''


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def link() -> Iterator[Callable[[str], None]]:
    """Two hosts; the function sets the link between them ``up`` or ``down``."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    try:
        for host in HOSTS:
            ip("netns", "add", host)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces can be made here: {error.stderr.decode().strip()}")
    try:
        ip("link", "add", "xrep1", "type", "veth", "peer", "name", "xrep2")
        for number, host in enumerate(HOSTS, 1):
            ip("link", "set", f"xrep{number}", "netns", host)
            ip("-n", host, "addr", "add", f"{ADDRESS}{number}/24", "dev", f"xrep{number}")
            for device in (f"xrep{number}", "lo"):
                ip("-n", host, "link", "set", device, "up")
        yield lambda state: ip("-n", HOSTS[1], "link", "set", "xrep2", state)
    finally:
        for host in HOSTS:
            ip("netns", "del", host)


def start(data: Path, folder: Path, slow: str = "data 0") -> list[subprocess.Popen[bytes]]:
    """Start a run on both hosts; rank 0 sleeps for some seconds at a place."""
    (folder / "slowness.py").write_text(SLOW, encoding="utf-8")
    (folder / "here").unlink(missing_ok=True)
    line = [str(data), *options(lr_scheduler="constant", batch_size=15, max_steps=8, save_every=3, validate_every=3)]
    line += ["--save-dir", str(folder / "run"), "--plugin", "slowness", "--timeout-minutes", str(LIMIT / 60)]
    line += ["--validation", "loss"]
    found = []
    for number, host in enumerate(HOSTS):
        given = {**environment(folder, threads=1), "SLOW": slow, "HERE": str(folder / "here")}
        given["GLOO_SOCKET_IFNAME"] = f"xrep{number + 1}"
        torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={number}"]
        torchrun += [f"--master-addr={ADDRESS}1", "--master-port=29511", "-m", "xrep_cli.train"]
        command = ["ip", "netns", "exec", host, sys.executable, *torchrun, *line]
        with open(folder / f"host{number}.txt", "wb") as said:
            found.append(subprocess.Popen(command, env=given, stdout=said, stderr=said))
    return found


def ended(hosts: list[subprocess.Popen[bytes]], seconds: float) -> list[int]:
    """Return the exit codes of both hosts, which have so much time."""
    until = time.monotonic() + seconds
    try:
        return [host.wait(until - time.monotonic()) for host in hosts]
    finally:
        for host in hosts:
            host.kill()


def weights(folder: Path) -> list[bytes]:
    return [(folder / "run" / "last" / name).read_bytes() for name in ("model.safetensors", "criterion.safetensors")]


@pytest.fixture(scope="module")
def undisturbed(link, data_directory, tmp_path_factory) -> list[bytes]:
    """The weights of a run whose rank 0 prepares data for longer than the limit, which alone ends nothing."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert ended(start(data_directory, folder, f"data {1.5 * LIMIT}"), 300) == [0, 0], (
        folder / "host0.txt"
    ).read_text()
    return weights(folder)


@pytest.mark.parametrize("place", ["step", "validation", "save", "data"])
def test_a_cut_ends_the_run_on_both_hosts_and_it_goes_on(link, undisturbed, data_directory, tmp_path, place):
    hosts = start(data_directory, tmp_path, f"{place} {2 * LIMIT if place == 'data' else 1}")
    try:
        while not (tmp_path / "here").exists():
            assert all(host.poll() is None for host in hosts), (tmp_path / "host0.txt").read_text()
            time.sleep(0.05)
        link("down")
        codes = ended(hosts, LIMIT + 30)
    finally:
        link("up")
    assert codes == [1, 1]
    for number in range(2):
        said = (tmp_path / f"host{number}.txt").read_text()
        (error,) = [text for text in said.splitlines() if text.startswith("xrep-train: error:")]
        assert f"rank {number}: " in error and "the same command goes on from the last checkpoint" in error, error
    assert ended(start(data_directory, tmp_path), 300) == [0, 0], (tmp_path / "host0.txt").read_text()
    assert weights(tmp_path) == undisturbed

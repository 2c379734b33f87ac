"""The environment of every test: a cache of its own, one thread unless OMP_NUM_THREADS is set, Triton kernels that are
interpreted on the CPU where there is no GPU, and the same examples of hypothesis in every run, without a deadline."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.once import changed, shared_folder

# This comes before any import of torch and triton. Programs that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test asks the network for a model that is named by mistake
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")
# torch.compile keeps compiled kernels on disk. In a run in which the environment hides some instructions of the
# processor, kernels from earlier runs ended in a segmentation fault, so such a run uses a folder of its own.
hidden = [os.environ.get(name) for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")]
if any(hidden):
    folder = os.path.join(tempfile.gettempdir(), f"xrep-torchinductor-{os.getuid()}-{'-'.join(map(str, hidden))}")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)


pytest_plugins = ["tests.support.plugin"]

settings.register_profile(
    "xrep", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("xrep")


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "go on with other generated files for N minutes in each test that fuzzes a reader"
    parser.addoption("--fuzz-minutes", metavar="N", type=float, default=0.0, help=help)


def pytest_configure(config: pytest.Config) -> None:
    shared_folder()  # the processes of pytest-xdist inherit its name


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if tests have changed what all of them share, after the last of the processes has ended."""
    if hasattr(session.config, "workerinput"):
        return
    for name in changed():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"error: a test changed {name}, which all tests share (tests/support/once.py)", file=sys.stderr)
    shutil.rmtree(shared_folder(), ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what each fuzzed reader did, if ``--fuzz-minutes`` is given."""
    if terminalreporter.config.getoption("--fuzz-minutes"):
        for report in terminalreporter.getreports("passed"):
            for line in (value for name, value in report.user_properties if name == "fuzz" and report.when == "call"):
                terminalreporter.write_line(str(line))


@pytest.fixture(scope="session", autouse=True)
def xrep_home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Set $XREP_HOME to a temporary folder, unless it is set already."""
    return os.environ.setdefault("XREP_HOME", str(tmp_path_factory.mktemp("xrep-home")))


@pytest.fixture(scope="session", autouse=True)
def _freed_memory_is_given_back() -> Iterator[None]:
    """Some tests measure the memory of this process, and others run ``xrep-train`` in it, which would keep memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xrep.memory.keep_freed_memory", lambda: None)
        yield

"""What the control of a job costs: units that do nothing, by their number.

Each number of units is done by a process of its own. It prints the seconds of processor time and the calls of
``xrep.store.addresses`` (the requests, if the job were in an object store) for each unit, and the peak memory that the
process has above one that does no unit.

    python benchmarks/jobs.py --units 10000 100000 1000000
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile

_MEASURE = """
import json, resource, sys
from xrep.jobs import plan
from xrep.jobs.work import Share, work
from xrep.store import addresses

class Nothing(plan.Stage):
    name = "nothing"

    units = range(int(sys.argv[2]))

    def run(self, unit, folder, advance):
        return {}

calls = 0

def counted(function):
    def call(*arguments):
        global calls
        calls += 1
        return function(*arguments)
    return call

for name in ("exists", "names_in", "read", "create", "write", "publish", "remove"):
    setattr(addresses, name, counted(getattr(addresses, name)))
job = plan.Job(sys.argv[1], "nothing", {}, [Nothing()])
job.begin()
work(job, Share(), False)
units = job.stages[0].results
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([usage.ru_utime + usage.ru_stime, calls, usage.ru_maxrss / 1024]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    options = parser.parse_args()
    base_seconds, base_calls, base_memory = measure(0)
    print("units      microseconds a unit  requests a unit  peak MB above none")
    for units in options.units:
        seconds, calls, memory = measure(units)
        each = 1e6 * (seconds - base_seconds) / units, (calls - base_calls) / units
        print(f"{units:<9,}  {each[0]:19.0f}  {each[1]:15.2f}  {memory - base_memory:18.0f}", flush=True)


def measure(units: int) -> list[float]:
    """Return the seconds of processor time, the calls and the peak MB of a job of so many units."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _MEASURE, f"{folder}/job", str(units)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()

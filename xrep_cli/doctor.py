"""xrep-doctor: check the installation and the machine, and print what a bug report needs."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from xrep_cli import common
from xrep_cli.command import Command


@dataclass(kw_only=True)
class Diagnosis(common.JsonOption):
    """Check the installation and the machine, and print what a bug report needs: versions, extras, processor, memory,
    GPUs, caches and plugins. The computation on every device is checked, too, in a few seconds.

      # Check an installation and a machine
      xrep-doctor                      # each line says ok, absent (what is optional) or problem, with what to do
      # Print only the problems
      xrep-doctor | grep '^problem '
      # Write what a bug report needs
      xrep-doctor --json doctor.json

    The exit code is 1 if there is a problem."""


def run(options: Diagnosis) -> None:
    from xrep_cli.diagnosis import rows  # imports torch

    found = list(rows())
    lines = [f"{state:<8} {part}: {name}: {told}{cure and '; ' + cure}" for part, (state, name, told, cure) in found]
    problems = sum(row.state == "problem" for _, row in found)
    summary = {"problems": problems, "findings": [{"section": section, **row._asdict()} for section, row in found]}
    common.write_summary(summary, options.json, "\n".join([*lines, f"problems: {problems}"]))
    if problems:
        raise SystemExit(1)


main = Command("xrep-doctor", Diagnosis, run)

if __name__ == "__main__":
    sys.exit(main())

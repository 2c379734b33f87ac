"""sts_across.py STS OUT: writes the STS-B test in English, German, French and Chinese for `xrep-eval sts`, and with an
English sentence beside a German, French or Chinese one, in files of the codes eo, ia and io: a test has one."""

import csv
import shutil
import sys
from pathlib import Path

sts, out = map(Path, sys.argv[1:])
out.mkdir(parents=True, exist_ok=True)
shutil.copy(sts / "STSBenchmark" / "sts-test.csv", out)
english = [line.split("\t") for line in (out / "sts-test.csv").read_text(encoding="utf-8").splitlines()]
for language, code in (("de", "eo"), ("fr", "ia"), ("zh", "io")):
    shutil.copy(sts / "stsb_multi_mt" / f"stsb-{language}-test.csv", out)
    with (out / f"stsb-{language}-test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    if [float(row[2]) for row in rows] != [float(fields[4]) for fields in english]:
        sys.exit(f"the {language} test has other scores than the English one")
    with (out / f"stsb-{code}-test.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows((fields[5], row[1], row[2]) for fields, row in zip(english, rows, strict=True))

"""The commands as on a processor with AVX2 and without AVX-512, to which libraries are restricted."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs, write_lines
from tests.support.runs import environment, options
from xrep.inference.generation.decoding import DecodingOptions
from xrep.inference.generation.translator import Translator
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.kernels.precision import SLOW_BFLOAT16

GERMAN = [pair[0] for pair in sentence_pairs(100)]
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
COMMANDS = """
import json, sys
import torch
from xrep_cli import encode, eval, generate, mine, train

mains = {command.__name__.rpartition(".")[2]: command.main for command in (encode, eval, generate, mine, train)}
for name, line in json.loads(sys.argv[1]):
    print(f"now {name}", file=sys.stderr, flush=True)
    if mains[name](line):
        sys.exit(f"{name} failed")
print(torch.backends.cpu.get_cpu_capability())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="AVX2 is an extension of x86")
def test_commands_in_float32_and_bfloat16(data_directory, shared_encoder, translator, tmp_path):
    encoder, source = shared_encoder, write_lines(tmp_path / "lines.txt", GERMAN)
    write_lines(tmp_path / "bitext.tsv", [f"{line}\tline {n}" for n, line in enumerate(GERMAN)])
    steps, lines = options(max_steps=3), list[tuple[str, list[object]]]()
    for precision in ("float32", "bfloat16"):
        given = ["--input", source, "--device", "cpu", "--precision", precision]
        lines.append(("encode", ["--path", encoder, *given, "--output", tmp_path / f"{precision}.npy"]))
        searched = ["--beam", 1, "--max-length-b", 1, "--jsonl", "--output", tmp_path / f"{precision}.jsonl"]
        lines.append(("generate", ["--path", translator, *given, *searched]))
        pairs = ["--source", source, "--source-lang", "de", "--target", source, "--target-lang", "en"]
        bitext = ["--bitext", f"de-en={tmp_path / 'bitext.tsv'}", "--relative-margin", -9]
        more = ["--path", encoder, *given[2:]]
        lines.append(("mine", [*more, *pairs, "--output", tmp_path / f"{precision}.tsv"]))
        lines.append(("mine", ["negatives", *more, *bitext, "--output", tmp_path / f"{precision}-negatives.tsv"]))
        aligned = ["--data", f"de-en={tmp_path / 'bitext.tsv'}", "--pairs", 3, "--true-pairs", 3]
        lines.append(("eval", ["alignment", "--path", encoder, *aligned, "--precision", precision]))
        half = ["--precision", "bf16"] if precision == "bfloat16" else []  # another name of the same
        lines.append(("train", [data_directory, *steps, *half, "--save-dir", tmp_path / f"trained_{precision}"]))
    script = json.dumps([(name, [str(part) for part in line]) for name, line in lines])
    finished = subprocess.run(
        [sys.executable, "-c", COMMANDS, script], env={**environment(threads=1), **AVX2}, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == "AVX2"
    single, half = finished.stderr.split("now encode\n")[1:]
    assert SLOW_BFLOAT16 not in single and half.count(SLOW_BFLOAT16) == 6, "one line of each command"

    expected = SentenceEncoder.load(encoder, device="cpu").encode(GERMAN)
    np.testing.assert_allclose(np.load(tmp_path / "float32.npy"), expected, atol=1e-5)
    assert np.array_equal(*(np.load(tmp_path / f"{name}.npy") for name in ("float32", "bfloat16")))

    found = Translator.load(translator, "cpu").translate(GERMAN, options=DecodingOptions(beam=1, max_length_b=1))
    differences = np.abs(scores(tmp_path / "float32.jsonl") - [best[0].score for best in found])
    assert np.median(differences) < 1e-4
    assert np.array_equal(scores(tmp_path / "bfloat16.jsonl"), scores(tmp_path / "float32.jsonl"))

    one, other = (tmp_path / f"trained_{name}" / "last" / "model.safetensors" for name in ("float32", "bfloat16"))
    assert one.read_bytes() == other.read_bytes(), "both are trained in float32"


def scores(path: Path) -> np.ndarray:
    values = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return np.array([value["translations"][0]["score"] for value in values])

"""Plugins that are missing, that raise, or whose parts are not what their contract says: a line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from xrep.registry import CRITERIA
from xrep_cli import encode, eval, train

HEAD = """
from dataclasses import dataclass, field
from xrep.criteria.criterion import Criterion
from xrep.registry import CRITERIA
"""
PART = f"""{HEAD}
@CRITERIA.register("hostile")
class Hostile(Criterion):
    @dataclass
    class Config:
        size: int = 1
"""
PLUGINS = {
    "raise RuntimeError('two\\nlines')": "cannot be imported: RuntimeError: two lines (",
    "import sys; sys.exit(0)": "cannot be imported: SystemExit",
    "def f(:": "cannot be imported: SyntaxError",
    "import nowhere_at_all": "cannot be imported: ModuleNotFoundError: No module named 'nowhere_at_all'",
    f"{HEAD}@CRITERIA.register('hostile')\ndef f(): pass": "which is no class; register a class",
    f"{HEAD}CRITERIA.register('hostile', 5)": "'hostile' is registered as 5, which is no class",
    f"{HEAD}CRITERIA.register('hostile', 'hostile')": "registered as 'hostile', which is no class",
    f"{HEAD}CRITERIA.register(5)": "5 cannot be the name of a part",
    f"{HEAD}CRITERIA.register('../x', 'os:path')": "'../x' cannot be the name of a part",
    f"{HEAD}CRITERIA.register('dual_moco', 'os:path')": "'dual_moco' is registered twice",
    f"{HEAD}CRITERIA.register('hostile', 'os:path')": "os:path.Config cannot be loaded",
    f"{HEAD}@CRITERIA.register('hostile')\nclass A: Config = 5": "5 is not a dataclass; declare the options",
    f"{HEAD}@CRITERIA.register('hostile')\nclass A:\n @dataclass\n class Config: x: int = 1": "A is not a criterion; "
    "derive it from xrep.criteria.criterion.Criterion",
    PART.replace("int", "'Nowhere'"): "cannot be read: NameError: name 'Nowhere' is not defined",
    PART.replace("1", "field(default_factory=lambda: 1 / 0)"): "cannot be read: ZeroDivisionError",
    f"{PART}        def problems(self): return None": "Config cannot check its options: TypeError",
    f"{PART}        def problems(self): return [5]": "Config cannot check its options: TypeError",
    f"{PART}        def problems(self): return self.nothing": "Config cannot check its options: AttributeError",
    f"{PART}        def __post_init__(self): raise KeyError": "Config cannot check its options: KeyError",
}


@pytest.mark.parametrize(("text", "message"), PLUGINS.items(), ids=range(len(PLUGINS)))
def test_a_hostile_plugin_is_one_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"hostile_plugin_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(CRITERIA, "_targets", dict(CRITERIA._targets))
    assert train.main(["--plugin", name, "--task", "bitext", "--criterion", "hostile", "--print-config"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and message in lines[0], lines


@pytest.mark.parametrize("module", ["nowhere_at_all", "..relative", "a/b.py", "os.nothing", "a b", ""])
def test_a_plugin_that_is_missing(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    for main, line in (
        (train.main, "--task bitext --criterion dual_moco --print-config"),
        (eval.main, "sts --path x"),
        (encode.main, "--path x --input y --output z.npy"),
    ):
        assert main([*line.split(), "--plugin", module]) == 2
        errors = capsys.readouterr().err.splitlines()
        assert len(errors) == 1 and ("cannot be imported" in errors[0] or "--plugin" in errors[0]), errors

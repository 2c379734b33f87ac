"""The objectives that the guide of objectives shows, as plugins of this process."""

import importlib
import re
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from xrep.registry import CRITERIA

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "objective.md"


def programs() -> dict[str, str]:
    """Return the Python code on the page by the names of its modules."""
    blocks = re.findall(r"^```python\n(# (\w+)\.py\n.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return {name: code for code, name in blocks}


_FOLDER = tempfile.TemporaryDirectory()  # as long as the process, because help texts are read from the files


def _registered() -> dict[str, str]:
    """Import the modules, and return what they register as criteria."""
    with patch.dict(CRITERIA._targets):
        known = set(CRITERIA._targets)
        sys.path.append(_FOLDER.name)
        for name, code in programs().items():
            Path(_FOLDER.name, f"{name}.py").write_text(code, encoding="utf-8")
            importlib.import_module(name)
        return {name: target for name, target in CRITERIA._targets.items() if name not in known}


TARGETS = _registered()

"""Reading and writing of YAML: plain nested values, as OmegaConf reads them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from xrep.errors import UserError
from xrep.registry import one_line


def load_yaml(path: str | Path) -> Mapping[Any, Any]:
    """Read a YAML file, whose interpolations (``${trainer.max_steps}``) are resolved. Raises UserError if the file is
    missing or is not a YAML mapping."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise UserError("no such file", path=path, cure="name an existing YAML file") from None
    try:
        values = OmegaConf.to_container(OmegaConf.load(io.StringIO(content.decode("utf-8"))), resolve=True)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        problem = " ".join((error.problem or error.context or "").split())
        raise UserError(f"not a valid configuration: {problem}", path=path, line=line, cure="correct it") from error
    except Exception as error:  # YAML and OmegaConf raise nearly every type, such as IndexError for "!!int ''"
        raise UserError(f"not a valid configuration: {one_line(error)[:300]}", path=path, cure="correct it") from error
    if not isinstance(values, Mapping):
        raise UserError("is not a mapping of sections", path=path, cure="write for example 'task: bitext'")
    return values


class _Dumper(yaml.SafeDumper):
    """A YAML dumper for plain data. It quotes text that OmegaConf would read as a number although YAML 1.1 does not
    (``1e3``)."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="'" if text[:1] in "+-.0123456789" else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def to_yaml(values: Mapping[str, Any]) -> str:
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def flat(values: Any, above: str = "") -> dict[str, Any]:
    """Return nested values as one mapping ``criterion.temperature`` -> value. Items of lists are called by their name
    or number."""
    if isinstance(values, Mapping):
        items = [(str(key), value) for key, value in values.items()]
    elif isinstance(values, list) and any(isinstance(value, Mapping) for value in values):
        items = [
            (str(value.get("name", i) if isinstance(value, Mapping) else i), value) for i, value in enumerate(values)
        ]
    else:
        return {above: values}
    return {key: own for name, value in items for key, own in flat(value, f"{above}.{name}" if above else name).items()}

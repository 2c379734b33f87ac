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

MOST_BYTES, MOST_VALUES, MOST_LEVELS, MOST_INTERPOLATIONS = 100_000, 10_000, 50, 20
"""What a configuration file may have; a file that is made for it needs seconds and gigabytes beyond."""


def load_yaml(path: str | Path) -> Mapping[Any, Any]:
    """Read a YAML file, whose interpolations (``${trainer.max_steps}``) are resolved. Raises UserError if the file is
    missing, is not a YAML mapping, or has more than the MOST... of something."""
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise UserError("no such file", path=path, cure="name an existing YAML file") from None
    try:
        text = content.decode("utf-8")
        if excess := excess_of(text):
            raise UserError(f"not a valid configuration: {excess}", path=path, cure="write a smaller one")
        values = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=True)
    except UserError:
        raise
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        problem = " ".join((error.problem or error.context or "").split())
        raise UserError(f"not a valid configuration: {problem}", path=path, line=line, cure="correct it") from error
    except Exception as error:  # YAML and OmegaConf raise nearly every type, such as IndexError for "!!int ''"
        raise UserError(f"not a valid configuration: {one_line(error)[:300]}", path=path, cure="correct it") from error
    if not isinstance(values, Mapping):
        raise UserError("is not a mapping of sections", path=path, cure="write for example 'task: bitext'")
    return values


def excess_of(text: str) -> str:
    """Return what a file has too much of; empty if nothing. It is counted event by event, so that nothing is built."""
    if len(text.encode()) > MOST_BYTES:
        return f"it is larger than {MOST_BYTES:,} bytes"
    if text.replace("${oc.env:", "").count("${") > MOST_INTERPOLATIONS:
        return f"it has more than {MOST_INTERPOLATIONS} interpolations"
    sizes: dict[str | None, int] = {}
    levels: list[tuple[str | None, int]] = []  # the anchor of each open list or mapping, and the values before it
    count = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            count += sizes.get(event.anchor, 1)
            if any(event.anchor == anchor for anchor, _ in levels):
                return f"the alias {event.anchor!r} stands inside of its own value"
        elif isinstance(event, yaml.CollectionStartEvent):
            levels.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = levels.pop()
            sizes[anchor] = count - before
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            sizes[event.anchor] = 1
        if len(levels) > MOST_LEVELS:
            return f"it has more than {MOST_LEVELS} levels"
        if count > MOST_VALUES:
            return f"it has more than {MOST_VALUES:,} values"
    return ""


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

"""Imports by name that wait until something is used, so that ``--help`` does not wait for torch.

Only this module and ``xrep.registry`` import modules of xrep by name; elsewhere the imports can be read in the source.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def load(module: str) -> Any:
    """Import a module by its name, and return it."""
    return importlib.import_module(module)


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package or module, some names of which are imported when they are used.

    Args:
        package: Name of the package, for its errors.
        modules: The module of each such name.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(load(modules[name]), name)

    return get

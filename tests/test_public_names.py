"""What ``help(xrep)`` and the advertised packages offer: every name can be imported, and help shows it."""

from __future__ import annotations

import importlib
import pydoc

import pytest


@pytest.mark.parametrize("package", ["xrep", "xrep.kernels", "xrep.metrics"])
def test_every_public_name_can_be_imported_and_is_shown(package: str) -> None:
    module = importlib.import_module(package)
    text = pydoc.plain(pydoc.render_doc(module))
    for name in module.__all__:
        assert getattr(module, name) is not None and name in dir(module)
        assert name == "__version__" or f" {name}(" in text, name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'xrep.metrics' has no attribute 'blue'"):
        getattr(importlib.import_module("xrep.metrics"), "blue")  # noqa: B009

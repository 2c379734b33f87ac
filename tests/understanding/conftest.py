"""Fixtures of the tests of commands."""

from tests.cli.conftest import measure

__all__ = ["measure"]

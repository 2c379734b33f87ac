"""Text that the tests of tasks share."""

from pathlib import Path

import pytest

from tests.support.once import made_once
from tests.tasks.kinds import write_text


@pytest.fixture(scope="session")
def texts() -> Path:
    """Monolingual text, inference data and labels (``write_text``)."""
    return made_once("texts-of-tasks", write_text)

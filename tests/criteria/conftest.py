import pytest

from tests.criteria.objectives import Maker


@pytest.fixture(scope="module")
def make(text, make_batch) -> Maker:
    """Makes (model, criterion, batch) of a row of the table of objectives, by its name."""
    return Maker(text, make_batch)

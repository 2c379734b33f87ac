from tests.fixtures import data_directory
from tests.runs import two_terms

__all__ = ["data_directory", "two_terms"]

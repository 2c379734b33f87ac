from tests.fixtures import data_directory as data_directory
from tests.fixtures import tokenizer as tokenizer

__all__ = ["data_directory"]

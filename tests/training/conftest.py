from tests.fixtures import data_directory, make_batch, text, tokenizer
from tests.runs import two_terms

__all__ = ["data_directory", "make_batch", "text", "tokenizer", "two_terms"]

from tests.fixtures import data_directory, make_batch, text, tokenizer

__all__ = ["data_directory", "make_batch", "text", "tokenizer"]

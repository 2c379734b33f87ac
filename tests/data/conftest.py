from tests.fixtures import data_directory, text, tokenizer

__all__ = ["data_directory", "text", "tokenizer"]

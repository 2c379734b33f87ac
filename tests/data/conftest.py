from tests.fixtures import data_directory

__all__ = ["data_directory"]

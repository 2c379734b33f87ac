from tests.fixtures import data_directory as data_directory
from tests.hostile.fuzzing import fuzz as fuzz

from tests.hostile.fuzzing import fuzz as fuzz

"""The configuration of a run: defaults < YAML < command line, with all problems reported together.

``fields``: the options of one part, which are the fields of a dataclass. ``values``: flat dicts of dotted keys, and
YAML files. ``recipes``: the YAML files that come with xrep. ``sections``: the parts of a run. ``sizes``: what ``size``
stands for. ``resolve``: turns layers into runs. ``saved``: what an earlier version saved.
"""

from xrep.config.fields import Count, CountOrZero, NotNegative, Positive, Share, convert, problems_of, read_fields
from xrep.config.recipes import RECIPES, read_recipe, recipe_names
from xrep.config.resolve import Part, Parts, RunConfig, runs_of, to_configuration
from xrep.config.saved import completed, say_ignored, still_known
from xrep.config.sections import SECTIONS, TOP_LEVEL
from xrep.config.values import Layer, flat, nested, over, read_yaml, to_yaml

__all__ = [
    "RECIPES", "SECTIONS", "TOP_LEVEL", "Count", "CountOrZero", "Layer", "NotNegative", "Part", "Parts",
    "Positive", "RunConfig", "Share", "completed", "convert", "flat", "nested", "over", "problems_of", "read_fields",
    "read_recipe", "read_yaml", "recipe_names", "runs_of", "say_ignored", "still_known", "to_configuration", "to_yaml",
]  # fmt: skip

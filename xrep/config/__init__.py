"""The configuration of a run: defaults < YAML < command line, with all problems reported together.

``source`` and ``fields``: the options of one part, which are the fields of a dataclass. ``sections``: what a run is
made of, and layers of values. ``resolve``: turns values into a ``RunConfig``. ``course``: turns layers into the runs of
a course of training. ``saved``: what an earlier version saved, as options of this one.
"""

from xrep.config.course import compose, compose_course, course_directory, course_to_yaml
from xrep.config.fields import convert, read_fields
from xrep.config.resolve import Part, RunConfig
from xrep.config.saved import completed, say_ignored, still_known
from xrep.config.sections import FIXED_SECTIONS, SECTIONS, TOP_LEVEL, Mixing, merge, read_yaml
from xrep.config.yaml_files import to_yaml

__all__ = [
    "FIXED_SECTIONS", "SECTIONS", "TOP_LEVEL", "Mixing", "Part", "RunConfig", "completed", "compose", "compose_course",
    "convert", "course_directory", "course_to_yaml", "merge", "read_fields", "read_yaml", "say_ignored", "still_known",
    "to_yaml",
]  # fmt: skip

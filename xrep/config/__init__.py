"""The configuration of a run: defaults < YAML < command line, with all problems reported together.

``fields``: the options of one part. ``sections``: what a run is made of, and layers of values. ``resolve``: turns
values into a ``RunConfig``. ``course``: turns layers into the runs of a course of training.
"""

from __future__ import annotations

from xrep.config.course import COMMAND_LINE, compose, compose_course, course_directory, course_to_yaml, stages_of
from xrep.config.fields import FieldSpec, choices, convert, describe, fields_of_class, members, read_fields
from xrep.config.resolve import Part, RunConfig
from xrep.config.sections import (
    DEFAULT_NAMES,
    FIXED_SECTIONS,
    SECTIONS,
    TOP_LEVEL,
    Section,
    expand,
    fields_of,
    merge,
    plugins_of,
    read_yaml,
    sections_of,
    to_yaml,
)
from xrep.config.source import docstring

__all__ = [
    "COMMAND_LINE",
    "DEFAULT_NAMES",
    "FIXED_SECTIONS",
    "SECTIONS",
    "TOP_LEVEL",
    "FieldSpec",
    "Part",
    "RunConfig",
    "Section",
    "choices",
    "compose",
    "compose_course",
    "convert",
    "course_directory",
    "course_to_yaml",
    "describe",
    "docstring",
    "expand",
    "fields_of",
    "fields_of_class",
    "members",
    "merge",
    "plugins_of",
    "read_fields",
    "read_yaml",
    "sections_of",
    "stages_of",
    "to_yaml",
]

"""Evaluations of encoders and translators, each in one module.

Functions that read data or options raise a ``UserError`` if these are wrong, and functions that measure raise one if
the model does not fit them. The message says what is wrong and how to correct it, so docstrings do not repeat it.
"""

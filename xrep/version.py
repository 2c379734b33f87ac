"""The version of xrep."""

__version__ = "0.1.0"

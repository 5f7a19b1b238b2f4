"""Pomona serves large language models on one Mac, to many clients at once, several models side by side."""

__version__ = "0.1.0"

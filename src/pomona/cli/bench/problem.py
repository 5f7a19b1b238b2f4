"""The error that ends a benchmark with one line."""

from pomona.refusal import Refusal


class BenchError(Refusal):
    """The message names the thing that is wrong and the mend."""

"""What goes wrong with models on disk."""

from pomona.refusal import Refusal


class ModelError(Refusal):
    """A model cannot be found, imported or loaded; the text is one line that names the thing and the mend."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type's name where it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__

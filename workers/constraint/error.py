"""What a constraint fails with; it ends the one request, and never lets it go on without its constraint."""

import re

LONGEST = 300
"""Characters of a reason."""
_PICTURE = re.compile(r"^\s*(\d+ \||\^+\s*$|<non-verbose/>)")
"""Lines that show the grammar instead of saying something about it."""
_REGEX_ERROR = re.compile(r"^error: (.+)$", re.MULTILINE)


class ConstraintError(Exception):
    """The grammar cannot be followed any further; the message is for the client, in one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(_told(reason))


def _told(reason: str) -> str:
    """llguidance's words without the pictures that it draws of the grammar, which may be long."""
    wrong = _REGEX_ERROR.search(reason)
    if wrong is not None:
        return f"the regular expression is invalid: {wrong.group(1)}"
    lines = [line.strip() for line in reason.splitlines() if line.strip() and not _PICTURE.match(line)]
    if lines == ["NoExtensionBias"]:
        return "it refers to itself without end"
    text = "; ".join(lines) or "the grammar failed"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"

"""What a constraint fails with; it ends the one request, and never lets it go on without its constraint."""


class ConstraintError(Exception):
    """The grammar cannot be followed any further; the message is for the client."""

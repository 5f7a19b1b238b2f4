"""Where a token event belongs in the tokens seen so far: the one rule that keeps delivery exact."""

from typing import Literal

from pomona.workers.messages import TokenEvent

Place = Literal["next", "seen", "broken"]


def place(event: TokenEvent, seen: int) -> Place:
    """`next`: deliver it; `seen`: drop it, all of it was delivered; `broken`: the sequence needs a resume.

    `seen` is the number of output tokens already delivered. A run goes on exactly behind its committed tokens, so an
    event that begins below `seen` and ends above it comes from no run of ours; its text cannot be cut at a token, so it
    counts as broken, like a gap. So does an end that lies below `seen`: to drop it would leave the stream open.
    """
    if event.position == seen:
        return "next"
    if event.position + len(event.tokens) <= seen and event.finish is None:
        return "seen"
    return "broken"

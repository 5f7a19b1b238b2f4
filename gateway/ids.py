"""Names for what the gateway makes."""

import secrets

from pomona.workers.messages import RequestId


def new_id(prefix: str) -> str:
    """`prefix` and 24 hexadecimal digits; never the same twice, and not to be guessed."""
    return prefix + secrets.token_hex(12)


def new_request_id() -> RequestId:
    return RequestId(new_id("r-"))

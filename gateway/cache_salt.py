"""Whose stored prefixes a request may use: its own salt decides, and where keys are kept apart, its key."""

import hashlib


def tenant_of(key: bytes) -> str:
    """A digest that stands for an API key: the same after a restart and in whatever order the keys are listed."""
    return hashlib.blake2b(key, digest_size=32, person=b"pomona.tenant").hexdigest()


def salt_of(tenant: str, own: str) -> str:
    """The salt that goes down to the worker; `tenant` is empty where keys share what is stored.

    A keyed digest: no `cache_salt` that a client can write is the salt of another key.
    """
    if not tenant:
        return own
    return hashlib.blake2b(own.encode(), digest_size=32, key=bytes.fromhex(tenant), person=b"pomona.salt").hexdigest()

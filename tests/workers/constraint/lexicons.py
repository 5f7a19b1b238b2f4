"""The tiny tokeniser as grammars see it, and what its tokens make of texts."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlx_lm.utils import load_tokenizer

from pomona.workers.constraint.grammar import grammar_of
from pomona.workers.constraint.matcher import Matcher
from pomona.workers.constraint.tokens import Tokens, Words, tokens_of
from pomona.workers.messages import Constraint
from pomona.workers.vocabulary import Vocabulary
from tests.support.tiny_model import build_tiny_model

LONGEST = 32
"""Bytes of the longest token."""


@cache
def tokenizer() -> Any:
    with TemporaryDirectory() as folder:
        return load_tokenizer(build_tiny_model(Path(folder) / "tiny"))


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(tokenizer())


@cache
def tokens() -> Tokens:
    return tokens_of(tokenizer(), vocabulary())


def matcher(constraint: Constraint) -> Matcher:
    return Matcher(tokens(), grammar_of(constraint))


def allowed(mask: Words, token: int) -> bool:
    return bool(int(mask[token // 32]) >> token % 32 & 1)


def may_end(one: Matcher) -> bool:
    """Whether the masks allow the end here."""
    return one.over or any(allowed(one.masks()[0], token) for token in tokens().eos)


def fitting(one: Matcher, left: bytes) -> list[int]:
    """Tokens that the masks allow and that `left` begins with, the longest first."""
    mask = one.masks()[0]
    found = [token for token in _beginnings(left) if allowed(mask, token)]
    return sorted(found, key=lambda token: -len(vocabulary().bytes_of(token)))


def _beginnings(left: bytes) -> Iterator[int]:
    for length in range(1, min(len(left), LONGEST) + 1):
        yield from _tokens_by_bytes().get(left[:length], ())


@cache
def _tokens_by_bytes() -> dict[bytes, list[int]]:
    known: dict[bytes, list[int]] = {}
    for token in range(len(vocabulary())):
        known.setdefault(vocabulary().bytes_of(token), []).append(token)
    return known


def read(one: Matcher, text: str, choose: Callable[[list[int]], int] = lambda found: found[0]) -> bool:
    """Feed a text token by token, as the masks allow; False if they refuse all that it could go on with."""
    left = text.encode()
    while left:
        found = [] if one.over else fitting(one, left)
        if not found:
            return False
        token = choose(found)
        one.commit(token)
        left = left[len(vocabulary().bytes_of(token)) :]
    return True


def accepts(constraint: Constraint, text: str, choose: Callable[[list[int]], int] = lambda found: found[0]) -> bool:
    """Whether a whole answer may be this text."""
    one = matcher(constraint)
    return read(one, text, choose) and may_end(one)

"""Prompts that share what a cache can hold: a long system prompt asked about again, and a chat that grows by turns."""

import asyncio
import time
from collections.abc import Sequence
from itertools import repeat

import httpx

from pomona.cli.bench.answer import Answer, AnswerReader, Failure, Outcome
from pomona.cli.bench.load import Message, Target, fetch, streamed
from pomona.cli.bench.problem import BenchError
from pomona.cli.bench.prompts import unique_prompts

ASK_S = 600.0
FEW_WORDS = 12


def system_prompt(seed: str, words: int) -> Message:
    """One that no other seed shares a beginning with."""
    return {"role": "system", "content": next(unique_prompts(f"{seed} system", repeat(words)))}


def question(seed: str, words: int = FEW_WORDS) -> Message:
    return {"role": "user", "content": next(unique_prompts(f"{seed} question", repeat(words)))}


def ask(target: Target, messages: Sequence[Message], max_tokens: int) -> Answer:
    """One streamed answer. Raises BenchError if it does not come whole."""

    async def once() -> Outcome:
        async with httpx.AsyncClient(timeout=ASK_S, trust_env=False) as http:
            return await send(http, target, messages, max_tokens, AnswerReader(time.perf_counter()))

    outcome = asyncio.run(once())
    if not isinstance(outcome, Answer):
        why = outcome.reason if isinstance(outcome, Failure) else "it ended early"
        raise BenchError(f"a request failed: {why}")
    return outcome


async def send(
    http: httpx.AsyncClient, target: Target, messages: Sequence[Message], max_tokens: int, reader: AnswerReader
) -> Outcome:
    """One greedy request, read to its end; `max_tokens` alone ends its answer."""
    body = {"model": target.model, **streamed(messages, max_tokens), "ignore_eos": True}
    return await fetch(http, f"{target.url.rstrip('/')}/chat/completions", body, reader, ASK_S)

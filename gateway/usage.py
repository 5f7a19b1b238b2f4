"""Usage counters of an answer, summed over its token streams, in OpenAI's shape."""

from collections.abc import Sequence

from pomona.gateway.body import JsonObject
from pomona.workers.messages import Usage


def openai_usage(prompt_tokens: int, usages: list[Usage], cached_tokens: int) -> JsonObject:
    """`prompt_tokens` counts each prompt once, however many choices it has; so does `cached_tokens`."""
    completion = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": sum(usage.reasoning_tokens for usage in usages),
            "audio_tokens": 0,
            **predicted(usages),
        },
    }


def predicted(usages: Sequence[Usage]) -> JsonObject:
    """Guessed tokens that became part of the answer, and those that were verified in vain, which are no part of it."""
    return {
        "accepted_prediction_tokens": sum(usage.accepted_tokens for usage in usages),
        "rejected_prediction_tokens": sum(usage.rejected_tokens for usage in usages),
    }


def predicted_if_any(usage: Usage) -> JsonObject:
    """The same for APIs that do not know these counts: nothing where nothing was guessed."""
    return predicted([usage]) if usage.accepted_tokens or usage.rejected_tokens else {}

"""Usage counters of an answer, summed over its token streams, in OpenAI's shape."""

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
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }

"""Fields that a route does not know: what is harmless, what is refused, and why never silently dropped."""

from collections.abc import Mapping

from pomona.gateway.body import JsonValue, RequestBody
from pomona.gateway.errors import ApiError, invalid

HARMLESS = frozenset(
    {
        "audio_options",
        "client_metadata",
        "guided_decoding_backend",
        "include_reasoning",
        "metadata",
        "moderation",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "session_id",
        "store",
        "user",
        "verbosity",
    }
)
"""Labels and hints of clients; leaving them out changes no token that this server would give."""

CONSTRAINTS = frozenset(
    {
        "ebnf",
        "grammar",
        "guided_whitespace_pattern",
        "json_schema",
        "output_format",
        "regex",
    }
)

SAMPLERS = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "best_of",
        "dry_allowed_length",
        "dry_base",
        "dry_multiplier",
        "dynatemp_exponent",
        "dynatemp_range",
        "early_stopping",
        "echo",
        "epsilon_cutoff",
        "eta_cutoff",
        "frequency_penalty",
        "ignore_eos",
        "include_stop_str_in_output",
        "length_penalty",
        "logit_bias",
        "logits_processors",
        "logprob_token_ids",
        "logprobs",
        "min_p",
        "min_tokens",
        "mirostat",
        "mirostat_eta",
        "mirostat_tau",
        "n",
        "n_probs",
        "num_beams",
        "presence_penalty",
        "prompt_logprobs",
        "repeat_last_n",
        "repeat_penalty",
        "repetition_detection",
        "repetition_penalty",
        "seed",
        "stop",
        "stop_token_ids",
        "temperature_last",
        "tfs",
        "tfs_z",
        "top_a",
        "top_logprobs",
        "truncate_prompt_tokens",
        "typical",
        "typical_p",
        "use_beam_search",
        "vllm_xargs",
        "xtc_probability",
        "xtc_threshold",
    }
)
"""Names that would change which tokens come out; a route that does not take one refuses it."""

NEUTRAL: Mapping[str, JsonValue] = {
    "add_special_tokens": False,
    "bad_words": [],
    "early_stopping": False,
    "echo": False,
    "include_stop_str_in_output": False,
    "length_penalty": 1,
    "n": 1,
    "return_token_ids": False,
    "return_tokens_as_token_ids": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "typical_p": 1,
    "use_beam_search": False,
}
"""Values that ask for what happens anyway; some clients send every field that they know."""


def check_extras(body: RequestBody, *, strict: bool) -> None:
    """Raises ApiError 400 for unknown fields: all but harmless ones if `strict`, else those that steer the sampler.

    A null is nothing asked for, so it is never refused.
    """
    for name, value in (body.model_extra or {}).items():
        if value is None or name in HARMLESS or (name in NEUTRAL and value == NEUTRAL[name]):
            continue
        if name in CONSTRAINTS:
            raise unavailable(name, name)
        if strict or name in SAMPLERS:
            raise invalid(f"unknown field {name[:80]!r}: this route would not honour it, so leave it out", name[:80])


def unavailable(what: str, param: str) -> ApiError:
    return invalid(f"{what} is not available on this server yet; leave it out", param)

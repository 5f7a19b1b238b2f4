"""Who may wait: a request is refused at once where it could never run, or where the queue is full."""

import math

from pomona.scheduler.refusal import Refusal
from pomona.scheduler.state import Model, State
from pomona.workers.messages import Request


def refusal(state: State, request: Request, now: float, *, resumed: bool) -> Refusal | None:
    """None if the request may wait.

    The bounds of the queue and of the client do not apply to a resumed one, which was admitted before; nor does that of
    the queue where a row is free for it.
    """
    if state.stopping:
        return Refusal("unavailable", "the server is stopping; send the request again once it is back", 5)
    model = state.models.get(request.model)
    if model is None:
        served = ", ".join(sorted(state.models)) or "none"
        return Refusal("unknown_model", f"model {request.model!r} is not served here; served: {served}")
    if (lost := hopeless(state, model)) is not None:
        return lost
    if (misfit := outgrows(state, model, request)) is not None:
        return misfit
    if not resumed and (greedy := _exceeds_client(state, request.client, now)) is not None:
        return greedy
    row_is_free = any(worker.free > 0 for worker in state.workers_of(model.id))
    if not resumed and not row_is_free and state.waiting >= state.limits.max_waiting:
        return Refusal(
            "queue_full",
            f"{state.waiting} requests are waiting, the most that may (scheduler.max_waiting); send it again later",
            state.rate.retry_after_s(state.waiting, now),
        )
    return None


def hopeless(state: State, model: Model) -> Refusal | None:
    """A refusal if none of the model's workers is there or will come."""
    if model.failure is None or any(state.workers_of(model.id)):
        return None
    return Refusal("unavailable", f"model {model.id!r} cannot be served: {model.failure}")


def outgrows(state: State, model: Model, request: Request) -> Refusal | None:
    """A refusal if prompt and answer can never fit; the context and the memory count once a worker has stated them."""
    prompt, answer = len(request.prompt), request.limits.max_tokens
    if not prompt:
        return Refusal("context_length", "the prompt holds no token; send at least one")
    if 0 < state.limits.max_prompt_tokens < prompt:
        return Refusal(
            "prompt_length",
            f"the prompt holds {prompt} tokens, and the most that one may is {state.limits.max_prompt_tokens} "
            "(scheduler.max_prompt_tokens); shorten the prompt",
        )
    if 0 < model.context < prompt + answer:
        return Refusal(
            "context_length",
            f"{prompt} prompt tokens and {answer} output tokens (max_tokens) are {prompt + answer}, but the context of "
            f"model {model.id!r} holds {model.context}; shorten the prompt or lower max_tokens",
        )
    roomiest = max(state.workers_of(model.id), key=lambda worker: worker.kv_capacity, default=None)
    if roomiest is None or roomiest.holds(request):
        return None
    need = roomiest.kv_whole(request)
    return Refusal(
        "kv_memory",
        f"{prompt} prompt tokens and {answer} output tokens (max_tokens) take {need} bytes of KV, but a worker "
        f"of model {model.id!r} has {roomiest.kv_capacity} for all its requests (worker.kv_bytes); shorten the prompt, "
        "lower max_tokens or raise the setting",
    )


def _exceeds_client(state: State, client: str, now: float) -> Refusal | None:
    """A refusal if the client has as many requests here as it may."""
    theirs, limit = state.shares.requests_of(client), state.limits.max_per_client
    if not limit or theirs < limit:
        return None
    all_but_theirs_end_first = math.ceil(len(state.jobs) / theirs)
    return Refusal(
        "client_limit",
        f"this client has {theirs} requests running or waiting, and the most that it may is {limit} "
        "(scheduler.max_per_client); send it again when one has ended",
        state.rate.retry_after_s(all_but_theirs_end_first, now),
    )

"""Who may wait: a request is refused at once where it could never run, or where the queue is full."""

from dataclasses import dataclass

from pomona.scheduler.messages import RefusalKind
from pomona.scheduler.state import Model, State
from pomona.workers.messages import Request


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request will not run; `message` names the thing, the numbers and the mend."""

    kind: RefusalKind
    message: str
    retry_after_s: int | None = None


def refusal(state: State, request: Request, now: float, *, resumed: bool) -> Refusal | None:
    """None if the request may wait.

    The bound of the queue does not apply to a resumed one, which was admitted before, nor where a row is free for it.
    """
    if state.stopping:
        return Refusal("unavailable", "the server is stopping; send the request again once it is back", 5)
    model = state.models.get(request.model)
    if model is None:
        served = ", ".join(sorted(state.models)) or "none"
        return Refusal("unknown_model", f"model {request.model!r} is not served here; served: {served}")
    if (lost := hopeless(state, model)) is not None:
        return lost
    if (misfit := outgrows(model, request)) is not None:
        return misfit
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


def outgrows(model: Model, request: Request) -> Refusal | None:
    """A refusal if prompt and answer do not fit; None while the model's context is unknown."""
    prompt, answer = len(request.prompt), request.limits.max_tokens
    if not prompt:
        return Refusal("context_length", "the prompt holds no token; send at least one")
    if not model.context or prompt + answer <= model.context:
        return None
    return Refusal(
        "context_length",
        f"{prompt} prompt tokens and {answer} output tokens (max_tokens) are {prompt + answer}, but the context of "
        f"model {model.id!r} holds {model.context}; shorten the prompt or lower max_tokens",
    )

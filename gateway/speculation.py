"""The field `speculation`, the same on every route: which guesses are verified. It changes no law, only the speed."""

from pydantic import ConfigDict, Field

from pomona.config import DEEPEST, Method, MethodChoice, SpeculationConfig
from pomona.gateway.body import RequestBody
from pomona.gateway.errors import invalid
from pomona.workers.messages import Speculation

LACKING = {
    "ngram": "its caches cannot take back what was refused",
    "grammar": "its caches cannot take back what was refused",
    "draft": "no draft model is configured for it (models.speculation.draft_model)",
    "mtp": "its weights hold no prediction head (MTP)",
    "layers": "no number of layers is configured for it (models.speculation.layers)",
}
"""Why a model does not have a method."""
UNLOADED = "models.speculation.method is off, and then a prediction head (MTP) is not loaded"


class SpeculationFields(RequestBody):
    """None is "not given": the model's configuration decides."""

    model_config = ConfigDict(extra="forbid")

    method: MethodChoice | None = None
    depth: int | None = Field(None, ge=1, le=DEEPEST)


def resolve(
    asked: SpeculationFields | None, model_id: str, config: SpeculationConfig, methods: tuple[Method, ...] | None
) -> Speculation:
    """What the worker is told; the request goes before the model's configuration, field by field.

    `methods` are those that the model's workers have, None before one of them was ready. Raises ApiError 400 where the
    request names a method that the model lacks.
    """
    if asked is None:
        return Speculation(method=config.method, depth=config.depth)
    if asked.method is not None and (reason := _lack(asked.method, config, methods)) is not None:
        raise invalid(
            f"speculation.method {asked.method!r}: model {model_id} does not have it: {reason}", "speculation.method"
        )
    return Speculation(
        method=config.method if asked.method is None else asked.method,
        depth=config.depth if asked.depth is None else asked.depth,
    )


def _lack(method: MethodChoice, config: SpeculationConfig, methods: tuple[Method, ...] | None) -> str | None:
    """Why the model does not have the method; None if it does, or if only its worker will know."""
    if method in ("auto", "off"):
        return None
    if methods is None:
        unset = {"draft": config.draft_model, "layers": config.layers}
        return LACKING[method] if method in unset and unset[method] is None else None
    if method in methods:
        return None
    if methods and method == "mtp" and config.method == "off":
        return UNLOADED
    return LACKING[method if methods else "ngram"]

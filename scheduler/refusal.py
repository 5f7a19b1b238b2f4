"""Why a request will not run, or will not run on."""

from dataclasses import dataclass

from pomona.scheduler.messages import RefusalKind


@dataclass(frozen=True, slots=True)
class Refusal:
    """`message` names the thing, the numbers and the mend."""

    kind: RefusalKind
    message: str
    retry_after_s: int | None = None

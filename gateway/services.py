"""What the routes work with; made once by the actor, passed down, never changed."""

from collections.abc import Callable
from dataclasses import dataclass

from pomona.config import Config
from pomona.gateway.cache_figures import CacheFigures
from pomona.gateway.catalog import Catalog
from pomona.gateway.closing import Closing
from pomona.gateway.grammar_check import GrammarChecker
from pomona.gateway.metrics import Metrics
from pomona.gateway.source import TokenSource
from pomona.gateway.stored import StoredResponses
from pomona.runtime.control import Roster


@dataclass(frozen=True)
class Services:
    config: Config
    source: TokenSource
    catalog: Catalog
    closing: Closing
    metrics: Metrics
    stored: StoredResponses
    grammars: GrammarChecker
    roster: Callable[[], Roster]
    """All actors as the supervisor last told."""
    started: float
    """When the gateway came up, on the clock of `now()`."""
    cache: CacheFigures | None = None
    """None where no cache service runs."""

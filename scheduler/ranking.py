"""In which order the waiting requests of one model get their turn."""

import heapq
from collections.abc import Iterable, Iterator

from pomona.scheduler.job import Job
from pomona.scheduler.shares import PROMPT_WEIGHT, Shares

MAX_OVERTAKEN = 8
"""Requests that may overtake one for whose KV there is no room; then it is the first of its priority."""

Rank = tuple[bool, int, bool, float, int]


class Ranking:
    """Requests that ran before, then priority, then what was overtaken too often, then least served client, then age.

    What is charged while the plan is made counts for those that follow.
    """

    def __init__(self, jobs: Iterable[Job], shares: Shares) -> None:
        self._shares = shares
        self._extra: dict[str, float] = {}
        self._heap = [(self._rank(job), job) for job in jobs]
        heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[Job]:
        while self._heap:
            rank, job = heapq.heappop(self._heap)
            now = self._rank(job)
            if now == rank:
                yield job
            else:
                heapq.heappush(self._heap, (now, job))

    def charge(self, job: Job) -> None:
        """It gets its turn, as `Shares.charge` will count it."""
        if not job.charged:
            client, tokens = job.request.client, len(job.request.prompt)
            self._extra[client] = self._extra.get(client, 0.0) + PROMPT_WEIGHT * tokens

    def _rank(self, job: Job) -> Rank:
        client = job.request.client
        served = self._shares.used(client) + self._extra.get(client, 0.0)
        return (not job.first, job.request.priority, job.overtaken < MAX_OVERTAKEN, served, job.order)

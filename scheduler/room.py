"""What a worker has free, now and once it has dropped what it was told to drop, while a plan fills it."""

from collections.abc import Set

from pomona.scheduler.job import Job, Phase
from pomona.scheduler.state import Worker
from pomona.workers.messages import RequestId


def urgency(job: Job) -> tuple[int, int]:
    """The least urgent is the greatest; of equal ones, the youngest."""
    return job.request.priority, job.order


class Room:
    """Rows and bytes of KV. A request that is not placed yet may claim what comes free soon: no later one gets it."""

    def __init__(self, worker: Worker) -> None:
        dropping = [job for job in worker.held.values() if job.phase is Phase.CANCELLING]
        self.worker = worker
        self.rows, self._bytes = worker.free, worker.kv_free
        self._rows_soon = self.rows + len(dropping)
        self._bytes_soon = self._bytes + sum(job.kv_bytes for job in dropping)
        self._preempted: set[RequestId] = set()

    @property
    def load(self) -> tuple[float, str, int]:
        """Share of its rows that are taken, then its name: the least comes first."""
        worker = self.worker
        return ((worker.max_running - self.rows) / worker.max_running, *worker.peer)

    def fits(self, job: Job) -> bool:
        return self.rows > 0 and self.worker.kv_need(job) <= self._bytes and self.fits_soon(job)

    def fits_soon(self, job: Job) -> bool:
        enough = self._rows_soon > 0 and self.worker.kv_need(job) <= self._bytes_soon
        return enough and self.worker.holds(job.request)

    def take(self, job: Job) -> None:
        """The request goes to the worker now."""
        self.rows -= 1
        self._bytes -= self.worker.kv_need(job)
        self.claim(job)

    def claim(self, job: Job) -> None:
        """The request will go to the worker once there is room."""
        self._rows_soon -= 1
        self._bytes_soon -= self.worker.kv_need(job)

    def close(self) -> None:
        """Nothing more goes to the worker in this plan."""
        self.rows = self._rows_soon = 0

    def preempt(self, victims: tuple[Job, ...]) -> None:
        self._preempted.update(job.id for job in victims)
        self._rows_soon += len(victims)
        self._bytes_soon += sum(job.kv_bytes for job in victims)

    def victims(self, wanting: Job, spared: Set[RequestId]) -> tuple[Job, ...]:
        """The running requests that have to go so that `wanting` fits soon, or none where that cannot be.

        Only those with a higher priority number go: the least urgent first, of equal ones the youngest.
        """
        less_urgent = [
            job
            for job in self.worker.held.values()
            if job.phase is Phase.RUNNING
            and job.request.priority > wanting.request.priority
            and job.id not in spared
            and job.id not in self._preempted
        ]
        less_urgent.sort(key=urgency, reverse=True)
        if not self.worker.holds(wanting.request):
            return ()
        need, rows, room = self.worker.kv_need(wanting), self._rows_soon, self._bytes_soon
        for count, job in enumerate(less_urgent, 1):
            rows, room = rows + 1, room + job.kv_bytes
            if rows > 0 and need <= room:
                return tuple(less_urgent[:count])
        return ()

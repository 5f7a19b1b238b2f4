"""The step loop of one model: launch the next forward, commit the last tokens while it runs, prefill in the slack."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from pomona.config import Method
from pomona.runtime.mailbox import now
from pomona.workers.batch import Batch
from pomona.workers.commit import commit
from pomona.workers.constraint.compiler import Compiler
from pomona.workers.constraint.pending import Pending
from pomona.workers.cost import PrefillCost
from pomona.workers.drawn import Drawn
from pomona.workers.messages import Request, RequestId, TokenEvent, Usage, WorkerStats
from pomona.workers.meter import Meter
from pomona.workers.prefill import Part, Prefill, plan_chunk, run_chunk, without
from pomona.workers.prefix import PrefixStore
from pomona.workers.row import Row
from pomona.workers.sampling.draw import draw
from pomona.workers.speculation.calibration import calibrate
from pomona.workers.speculation.proposal import Proposer
from pomona.workers.speculation.speculator import Drafts, Speculator
from pomona.workers.vocabulary import Vocabulary

log = logging.getLogger(__name__)

SMALLEST_CHUNK = 16
"""Prompt tokens of a prefill forward under the tightest budget."""
MARGIN = 0.7
"""Share of the stall bound that a forward aims at while rows run: what it really takes varies by about the rest."""


class EngineLimits(NamedTuple):
    max_running: int
    """Rows that decode at once."""
    prefill_chunk: int
    """Prompt tokens of one prefill forward, at most."""
    stall_s: float
    """Seconds of one prefill forward, for which the running rows and a cancel wait."""


class Left(NamedTuple):
    """What a row that left the batch holds: the KV of `tokens`."""

    row: Row
    tokens: list[int]
    caches: list[Any]


class Engine:
    """Runs requests of one model. `step` does what is due and returns the events; nothing else advances time.

    Commands (`assign`, `cancel`, `clear`) are called between steps and take effect at once.
    """

    def __init__(
        self,
        model: Any,
        vocabulary: Vocabulary,
        eos: frozenset[int],
        limits: EngineLimits,
        prefixes: PrefixStore,
        proposers: Sequence[Proposer] = (),
        compiler: Compiler | None = None,
    ) -> None:
        """Without a `compiler`, requests with a constraint fail."""
        self._model = model
        self._vocabulary = vocabulary
        self._eos = eos
        self._limits = limits
        self._prefixes = prefixes
        self.meter = Meter()
        self._batch = Batch(model)
        self._prefills: list[Prefill] = []
        self._unproven: dict[RequestId, Prefill] = {}
        """What was computed for the prompts of rows that have not drawn yet."""
        self._waiting: list[Row] = []
        self._grammars = Pending(compiler)
        self._drawn: Drawn | None = None
        self._speculator = Speculator(proposers)
        self._read_at = 0.0
        """When the last step's tokens were read."""
        self._prefill_is_next = True
        """A running row waits for one prefill forward between two of its tokens, and for no second."""

    @property
    def max_running(self) -> int:
        return min(self._limits.max_running, self._batch.width_limit or self._limits.max_running)

    @property
    def methods(self) -> tuple[Method, ...]:
        """How tokens may be drafted; none where the model's caches cannot verify drafts."""
        return self._speculator.methods(self._batch)

    @property
    def refusal(self) -> str:
        """Why this model cannot verify drafts; empty if it can."""
        return self._batch.refusal

    @property
    def busy(self) -> bool:
        return bool(self._batch.rows or self._prefills or self._waiting or self._drawn)

    def assign(self, request: Request) -> None:
        """Take a request; it is started by a later step. A second one with the same id is an error of the caller."""
        row = Row(request, self._vocabulary, self._eos)
        self._grammars.begin(row)
        self._waiting.append(row)

    def cancel(self, request_id: RequestId) -> Usage | None:
        """Drop a request, whatever its state; None if it is unknown or has ended."""
        row = self._find(request_id)
        if row is None:
            return None
        row.end("cancelled")
        self._grammars.forget(row)
        self._waiting = [other for other in self._waiting if other is not row]
        self._prefills, ended = without(self._prefills, row)
        for prefill in ended:
            prefill.store()
        if any(other is row for other in self._batch.rows):
            self._retire([row], self._drawn)
        return row.usage()

    def clear(self) -> None:
        """Drop everything; what was computed stays stored, so that the same requests go on from there."""
        for prefill in self._prefills:
            prefill.store()
        self._retire(list(self._batch.rows), self._drawn)
        for row in self._waiting:
            self._grammars.forget(row)
        self._prefills, self._waiting, self._drawn = [], [], None

    def pause(self) -> None:
        """All that was launched is computed; the time until the next step, which may come much later, is nobody's."""
        if self._drawn is not None:
            self._drawn = self._drawn._replace(ended=now())

    def _find(self, request_id: RequestId) -> Row | None:
        held = [*self._waiting, *(row for prefill in self._prefills for row in prefill.rows), *self._batch.rows]
        return next((row for row in held if row.request.id == request_id), None)

    def forget_costs(self) -> None:
        """Measure the cost of prefill anew."""
        self.meter.prefill_cost = PrefillCost()

    def calibrate(self) -> None:
        """Measure what verifying drafts costs, while no request is held."""
        calibrate(self._model, self._batch, self._vocabulary, self._speculator)

    def settle(self) -> None:
        """After the warm-up: count anew and forget its prompts; the measured costs stay."""
        self.meter.reset()
        self._speculator.reset()
        self._prefixes.forget()

    def progress(self) -> dict[RequestId, int]:
        """Prompt tokens done, for each request in prefill."""
        return {row.request.id: prefill.done for prefill in self._prefills for row in prefill.rows}

    def stats(self) -> WorkerStats:
        return self.meter.snapshot(
            running=len(self._batch.rows),
            prefilling=sum(len(prefill.rows) for prefill in self._prefills),
            waiting=len(self._waiting),
            kv_bytes=self._batch.nbytes + sum(prefill.nbytes for prefill in self._prefills),
            stored=self._prefixes.stored_blocks,
            dropped=self._prefixes.dropped_blocks,
            tiers=self._prefixes.tiers,
            speculation=self._speculator.figures,
        )

    def step(self) -> list[TokenEvent]:
        """One forward: a decode step of all running rows and a prefill chunk take turns.

        Drawn tokens are committed while the next decode step's forward runs. They come first where rows may draft
        behind them, and before a chunk, which would keep them waiting, they get a step of their own.
        """
        events = self._start()
        if self._prefills and (self._prefill_is_next or not self._batch.rows):
            if self._drawn is None:
                return events + self._prefill()
            events += self._flush()
            self._speculator.look(self._batch)
            return events
        if self._batch.rows or self._drawn is not None:
            self._prefill_is_next = True
            events += self._decode()
        elif not events:
            self._grammars.wait()
        return events

    # starting

    def _start(self) -> list[TokenEvent]:
        events = []
        for row in list(self._waiting):
            if row.finish is None and not self._grammars.ready(row):
                continue
            if row.finish is not None:  # its committed tokens already reach its end, or its grammar failed
                self._waiting.remove(row)
                events.append(row.replayed())
                continue
            if self._held() >= self.max_running:
                continue
            twin = next((prefill for prefill in self._prefills if prefill.serves(row)), None)
            if twin is not None:
                twin.attach(row)
            else:
                self._prefills.append(Prefill(self._model, row, self._prefixes))
            self._waiting.remove(row)
        return events

    def _held(self) -> int:
        return len(self._batch.rows) + sum(len(prefill.rows) for prefill in self._prefills)

    # decode

    def _decode(self) -> list[TokenEvent]:
        if self._speculator.due or (self._drawn is not None and self._drawn.drafts):
            return self._decode_behind()
        return self._decode_ahead()

    def _decode_behind(self) -> list[TokenEvent]:
        """Read the last forward's tokens, let the rows draft behind them, and launch the next one."""
        begin = now()
        reads = self._drawn is not None
        events = self._flush()
        rows = len(self._batch.rows)
        if rows:
            drafts = self._speculator.draft(self._batch)
            began = self._read_at if reads else now()
            self._draw(self._forward(drafts), began, drafts, waited=True)
        self.meter.decoded(rows, now() - begin)
        return events

    def _decode_ahead(self) -> list[TokenEvent]:
        """Launch the next forward before the last one's tokens are read."""
        begin = now()
        drawn, self._drawn = self._drawn, None
        # A row whose drawn token is its last needs no further forward.
        last = [row for row in drawn.rows if row.finish is None and row.remaining == 1] if drawn is not None else []
        left, _ = self._take_out(last)
        rows = list(self._batch.rows)
        logits = self._forward() if rows else None
        events = self._commit(drawn) if drawn is not None else []
        self._speculator.look(self._batch, drawing=True)
        if logits is not None:
            ended = [row for row in rows if row.finish is not None or row.moved]
            more, order = self._take_out(ended)
            left += more
            if self._batch.rows:
                self._draw(logits[mx.array(order)] if ended else logits, begin)
        self._keep(left)
        self._start_over(rows)
        self.meter.decoded(len(rows), now() - begin)
        return events

    def _forward(self, drafts: Drafts | None = None) -> mx.array:
        tokens = None if drafts is None else drafts.tokens
        logits = self._batch.forward() if tokens is None else self._batch.verify(tokens)
        self._speculator.launched(self._batch, tokens)
        mx.async_eval(logits)
        return logits

    def _draw(self, logits: mx.array, began: float, drafts: Drafts | None = None, *, waited: bool = False) -> None:
        rows = list(self._batch.rows)
        if drafts is None:
            draws = draw(logits, [row.law() for row in rows])
            self._batch.inputs = draws.tokens
        else:
            laws, distributions = drafts.laws(rows)
            draws = draw(logits, laws, distributions)
        mx.async_eval([array for array in draws if array is not None])
        self._drawn = Drawn(rows, draws, began, () if drafts is None else drafts.tokens, waited)

    def _commit(self, drawn: Drawn) -> list[TokenEvent]:
        """Commit what was drawn; then the batch knows what it keeps, and the speculator what became of its drafts."""
        walks = drawn.read(self._vocabulary)
        self._clock(drawn)
        events, kept = [], {}
        for walk in walks:
            if walk.row.finish is not None:  # cancelled meanwhile
                continue
            self._prove(walk.row, finite=walk.draws[0].finite)
            event, drafted, accepted = commit(walk, drawn.draws)
            events.append(event)
            kept[id(walk.row)] = 1 if walk.row.moved else max(1, len(event.tokens))
            self._speculator.tested(walk.row, drafted, accepted)
            self.meter.committed(len(event.tokens), accepted)
        if drawn.drafts:
            self._batch.settle([kept.get(id(row), 0) for row in self._batch.rows])
        return events

    def _clock(self, drawn: Drawn) -> None:
        """Tell what the step took: all the time since the one before it was read, if they follow on each other."""
        read = now()
        seconds = (drawn.ended or read) - max(drawn.began, self._read_at)
        self._read_at = read
        self._speculator.ran(len(drawn.rows), drawn.width, seconds, waited=drawn.waited)
        if drawn.drafts:
            self.meter.verified(seconds)

    def _prove(self, row: Row, *, finite: bool) -> None:
        """A row's first logits tell whether what was computed for its prompt is to be kept."""
        prefill = self._unproven.pop(row.request.id, None)
        if prefill is not None:
            prefill.prove(finite=finite)

    def _retire(self, rows: Sequence[Row], drawn: Drawn | None = None) -> None:
        """Take rows out of the batch and store what they hold.

        `drawn` is what they drew and did not commit: what it tells of their logits counts as well.
        """
        sound = [row for row in rows if drawn is None or drawn.finite(row)]
        for row in rows:
            self._prove(row, finite=row in sound)
        left, _ = self._take_out(rows)
        self._keep([each for each in left if each.row in sound])

    def _take_out(self, rows: Sequence[Row]) -> tuple[list[Left], list[int]]:
        """Rows leave the batch; their KV is on its way into copies. Also where each row that stays was before."""
        left = []
        for row in rows:
            held = 0 if row.moved else self._batch.length_of(row)
            if self._prefixes.wants(row.stored, held):
                left.append(Left(row, row.tokens[:held], self._batch.extract(row)))
            self._speculator.forget(row.request.id)
        return left, self._batch.leave(rows)

    def _start_over(self, rows: Sequence[Row]) -> None:
        """Rows that moved while they ran have left the batch: they come again, first, behind what they wrote."""
        moved = [row for row in rows if row.moved]
        for row in moved:
            row.moved = False
        self._waiting = [*moved, *self._waiting]

    def _keep(self, left: Sequence[Left]) -> None:
        """Store what rows held that left the batch, unless they failed."""
        for row, tokens, caches in left:
            if row.finish is not None and row.finish.reason == "error":
                continue
            salt = row.request.cache_salt
            self._prefixes.store(tokens, salt, caches, row.stored)
            self._prefixes.remember(tokens, salt, caches)

    # prefill

    def _flush(self) -> list[TokenEvent]:
        """Commit what was drawn, without a forward."""
        drawn, self._drawn = self._drawn, None
        events = self._commit(drawn) if drawn is not None else []
        left = [row for row in self._batch.rows if row.finish is not None or row.moved]
        self._retire(left)
        self._start_over(left)
        return events

    def _prefill(self) -> list[TokenEvent]:
        self._prefill_is_next = False
        first = self._prefills[0]
        first.begin()
        seconds = self._limits.stall_s * (MARGIN if self._batch.rows else 1.0)
        tokens = self.meter.prefill_cost.tokens_within(seconds, first.done)
        parts = plan_chunk(self._prefills, min(self._limits.prefill_chunk, max(SMALLEST_CHUNK, tokens)))
        self.meter.restored(sum(prefill.restored for prefill, _ in parts if not prefill.computed))
        return self._advance(parts)

    def _advance(self, parts: Sequence[Part]) -> list[TokenEvent]:
        begin, depth = now(), max(prefill.done for prefill, _ in parts)
        try:
            padded = run_chunk(self._model, parts)
        except (RuntimeError, ValueError, MemoryError) as error:
            return self._drop_failed(parts, error)
        self.meter.prefilled(sum(part.tokens for part in parts), padded, now() - begin, depth)
        events: list[TokenEvent] = []
        for prefill, _ in parts:
            if not prefill.left:
                events += self._finish_prefill(prefill)
        return events

    def _drop_failed(self, parts: Sequence[Part], error: Exception) -> list[TokenEvent]:
        """One prompt alone fails; several that failed together are tried again one by one."""
        if len(parts) > 1:
            return [event for part in parts for event in self._advance([part])]
        (prefill, _) = parts[0]
        log.error("prefill failed: request=%s error=%s", prefill.rows[0].request.id, error)
        self._prefills.remove(prefill)
        return [row.end("error", f"prefill failed: {error}") for row in prefill.rows]

    def _finish_prefill(self, prefill: Prefill) -> list[TokenEvent]:
        prefill.finish()
        events = []
        for row in list(prefill.rows):
            if row.remaining <= 0:
                events.append(row.end("length"))
            else:
                self._batch.join(row, prefill.caches)
                self._unproven[row.request.id] = prefill
        if len(events) == len(prefill.rows):
            prefill.prove(finite=True)
        prefill.caches = []  # a second holder would make the rows' first write a copy
        self._prefills.remove(prefill)
        self._speculator.look(self._batch)  # all tokens are committed: they come before a chunk
        return events

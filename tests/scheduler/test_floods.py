"""Many requests of one kind beside a few of another, through the core: who waits for whom, and what is delivered."""

from itertools import repeat

from pomona.config import Config, ModelConfig, SchedulerConfig
from pomona.runtime.mailbox import Peer
from pomona.scheduler.core import Core
from pomona.scheduler.messages import Events, GatewayHello, Refused, Submit
from pomona.scheduler.state import AHEAD
from pomona.workers.kv_cost import STEP, KVCost
from pomona.workers.messages import Assign, Cancel, Request, RequestId, Stepped, WorkerReady, WorkerStats
from tests.scheduler.rows import Rows, answer, request
from tests.scheduler.simulator import check

GATEWAY = Peer("gateway", 0)
CONTEXT = 4096
ROWS = 4
COST = KVCost(per_token=1)


class House:
    """A core with the models `m` and `n`, and workers that step when the test says so."""

    def __init__(self, scheduler: SchedulerConfig) -> None:
        models = tuple(ModelConfig(id=id, path="-") for id in "mn")
        self.core = Core(Config(models=models, scheduler=scheduler))
        self.now = 0.0
        self.rows: dict[Peer, Rows] = {}
        self.order: list[str] = []
        """The requests in the order in which workers got them."""
        self.got: dict[RequestId, list[int]] = {}
        self.ended: list[str] = []
        self.refused: dict[str, Refused] = {}
        self.core.receive(GATEWAY, GatewayHello(), self.now)

    def load(self, model: str, steps: int = 0) -> Peer:
        """A worker of the model is ready; `steps` is its budget of KV, 0 is no bound."""
        peer = Peer(f"worker:{model}", 0)
        self.rows[peer] = Rows(ROWS)
        kv = (COST, steps * STEP) if steps else (KVCost(), 0)
        self.core.receive(peer, WorkerReady(model, ROWS, CONTEXT, *kv), self.now)
        self.settle()
        return peer

    def ask(self, *wanted: Request) -> None:
        for each in wanted:
            self.got[each.id] = list(each.committed)
            self.core.receive(GATEWAY, Submit(each), self.now)
        self.settle()

    def step(self, peer: Peer, width: int = 1) -> None:
        events = self.rows[peer].step(repeat(width))
        self.core.receive(peer, Stepped(events, WorkerStats()), self.now)
        self.settle()

    def settle(self) -> None:
        """Until nobody has anything to say."""
        self.core.decide(self.now)
        while messages := self.core.outbox.take_messages():
            for peer, message in messages:
                match message:
                    case Assign(request=assigned):
                        self.order.append(assigned.id)
                        assert list(assigned.committed) == self.got[assigned.id]
                        self.rows[peer].assign(assigned)
                    case Cancel(id=id):
                        self.core.receive(peer, self.rows[peer].cancel(id), self.now)
                    case Events(events=events):
                        for event in events:
                            assert event.position == len(self.got[event.id])
                            self.got[event.id] += event.tokens
                            self.ended += [event.id] * (event.finish is not None)
                    case Refused(id=id):
                        self.refused[id] = message
            check(self.core.state)
            self.core.decide(self.now)


def prefill_only(count: int) -> list[Request]:
    """What embeddings would be: a prompt to read, and hardly an answer."""
    return [request(f"p{number}", prompt=(7,) * 200, max_tokens=1, client="batch") for number in range(count)]


def test_a_chat_waits_for_one_of_64_prompts_of_another_client_at_most() -> None:
    house = House(SchedulerConfig())
    worker = house.load("m")
    house.ask(*prefill_only(64))
    for turn in range(3):
        before = len(house.order)
        chat = request(f"chat{turn}", client="person", prompt=(turn,) * 20 * (turn + 1), max_tokens=4)
        house.ask(chat)
        for _ in range(2):
            house.step(worker)
        assert chat.id in house.order
        assert house.order.index(chat.id) - before <= 1, "prompts of the batch go before the chat"
        for token in range(1, 4):
            assert len(house.got[chat.id]) >= token, "each step brings the running chat a token"
            house.step(worker)
        assert house.got[chat.id] == answer(chat)
        assert house.core.state.waiting > 0
        assert sum(id.startswith("p") for id in house.ended) >= 8 * turn, "the batch goes on"
    while house.core.state.jobs:
        house.step(worker)
    assert len(house.ended) == 64 + 3


def test_two_clients_that_both_have_work_waiting_get_the_same_service() -> None:
    house = House(SchedulerConfig())
    worker = house.load("m")
    chats = [request(f"c{number}", client="people", prompt=(5,) * 30, max_tokens=20) for number in range(64)]
    house.ask(*prefill_only(64), *chats)
    shares = house.core.state.shares
    most_of_one_request = 200 + 2 * 1, 30 + 2 * 20
    waiting = {"batch", "people"}
    while waiting == {"batch", "people"}:
        house.step(worker)
        assert abs(shares.used("batch") - shares.used("people")) <= max(most_of_one_request) + ROWS * 2 * 20
        waiting = {job.request.client for queue in house.core.state.queues.values() for job in queue.values()}
    assert shares.used("batch") > 2000
    while house.core.state.jobs:
        house.step(worker)
    assert len(house.ended) == 128


def test_while_a_model_loads_its_requests_wait_and_those_of_another_go_on() -> None:
    house = House(SchedulerConfig(max_waiting=2, max_waiting_s=30))
    worker = house.load("m")
    stream = request("stream", max_tokens=40)
    house.ask(stream)
    house.ask(*(request(f"n{number}", model="n") for number in range(3)))
    assert {id: why.kind for id, why in house.refused.items()} == {"n2": "queue_full"}
    for second in range(10):
        house.now = float(second)
        house.step(worker)
    another = request("another", max_tokens=5)
    house.ask(another)  # a row is free for it, however many wait for the other model
    for _ in range(5):
        house.step(worker)
    assert house.got[another.id] == answer(another)
    assert house.got[stream.id] == answer(stream)[:15]
    loaded = house.load("n")
    assert house.order[-2:] == ["n0", "n1"]
    house.step(loaded, 8)
    assert {"n0", "n1"} <= set(house.ended)


def test_what_waits_for_a_model_that_does_not_come_is_refused_at_its_deadline_and_nothing_else_is() -> None:
    house = House(SchedulerConfig(max_waiting_s=30))
    worker = house.load("m")
    stream = request("stream", max_tokens=40)
    house.ask(stream)
    house.ask(request("n0", model="n"))
    house.now = 10.0
    house.ask(request("n1", model="n"))
    for second in (29.0, 30.0, 39.0, 40.0):
        house.now = second
        house.step(worker)
        assert list(house.refused) == ["n0"] * (second >= 30) + ["n1"] * (second >= 40)
    for why in house.refused.values():
        assert why.kind == "waited_too_long"
        assert "waited 30 s for model n to load" in why.message
        assert "scheduler.max_waiting_s" in why.message
    while house.core.state.jobs:
        house.step(worker)
    assert house.got[stream.id] == answer(stream)


def test_answers_that_outgrow_the_memory_are_all_delivered_to_their_last_token() -> None:
    house = House(SchedulerConfig(max_resumes=0))
    worker = house.load("m", steps=11)
    wanted = [request(f"r{number}", seed=number, max_tokens=1300 + number) for number in range(4)]
    house.ask(*wanted)
    for _ in range(1000):
        if not house.core.state.jobs:
            break
        house.step(worker, AHEAD // 4)
    assert house.core.counters.preempted > 1
    assert house.got == {each.id: answer(each) for each in wanted}
    assert sorted(house.ended) == [each.id for each in wanted]
    assert house.refused == {}

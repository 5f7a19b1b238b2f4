from types import UnionType
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pomona.cache.messages import CacheToWorker, WorkerToCache
from pomona.runtime.control import ActorToSupervisor, Ready, Roster, Stop, SupervisorToActor
from pomona.runtime.wire import Decoder, Message, Part, Section, WireError, encode, replace
from pomona.scheduler.messages import GatewayToScheduler, SchedulerToGateway
from pomona.workers.messages import SchedulerToWorker, TokenLogprob, WorkerToScheduler

UNIONS: dict[str, UnionType] = {
    "ActorToSupervisor": ActorToSupervisor,
    "SupervisorToActor": SupervisorToActor,
    "SchedulerToWorker": SchedulerToWorker,
    "WorkerToScheduler": WorkerToScheduler,
    "GatewayToScheduler": GatewayToScheduler,
    "SchedulerToGateway": SchedulerToGateway,
    "WorkerToCache": WorkerToCache,
    "CacheToWorker": CacheToWorker,
}

# MessagePack's integers have 64 bits, and text on the wire is UTF-8, which holds no surrogates.
st.register_type_strategy(int, st.integers(-(2**63), 2**64 - 1))
st.register_type_strategy(str, st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(bytes, st.binary(max_size=40))


def values(kind: Any) -> st.SearchStrategy[Any]:
    """All values of a message or part, its optional fields included."""
    fields = {field.name: field_values(field.type) for field in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields)


def field_values(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, type) and issubclass(kind, Message | Part):
        return values(kind)
    arguments = get_args(kind)
    if isinstance(kind, UnionType):
        return st.one_of(*(field_values(option) for option in arguments))
    if getattr(kind, "__origin__", None) is tuple:
        assert arguments[1:] == (...,), "a tuple on the wire has one type and any length"
        return st.lists(field_values(arguments[0]), max_size=3).map(tuple)
    if getattr(kind, "__origin__", None) is dict:
        return st.dictionaries(field_values(arguments[0]), field_values(arguments[1]), max_size=3)
    return st.from_type(kind)


@pytest.mark.parametrize("name", UNIONS)
@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_message_comes_back_as_it_was(name: str, data: st.DataObject) -> None:
    union = UNIONS[name]
    kind = data.draw(st.sampled_from(get_args(union)))
    message = data.draw(values(kind))
    decoded: object = Decoder(union).decode(encode(message))
    assert decoded == message
    assert type(decoded) is kind


@pytest.mark.parametrize("name", UNIONS)
@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(frame=st.binary(max_size=80))
def test_bytes_that_are_no_message_are_one_kind_of_error(name: str, frame: bytes) -> None:
    try:
        message: object = Decoder(UNIONS[name]).decode(frame)
    except WireError:
        return
    assert isinstance(message, get_args(UNIONS[name]))


def test_a_receiver_refuses_messages_of_another_direction() -> None:
    with pytest.raises(WireError, match="Ready"):
        Decoder(SupervisorToActor).decode(encode(Ready()))


def test_a_field_of_the_wrong_type_is_refused() -> None:
    frame = msgspec.msgpack.encode(["Stop", "soon"])
    with pytest.raises(WireError, match="Expected `float`, got `str`"):
        Decoder(SupervisorToActor).decode(frame)


def test_an_older_peer_leaves_new_fields_out_and_a_newer_one_adds_some() -> None:
    inbound: Decoder[ActorToSupervisor] = Decoder(ActorToSupervisor)
    assert inbound.decode(msgspec.msgpack.encode(["Ready"])) == Ready("")
    assert inbound.decode(msgspec.msgpack.encode(["Ready", "up", "a field of tomorrow"])) == Ready("up")


def test_a_nested_part_travels_without_a_tag() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(TokenLogprob(3, b"a", -0.5))) == [3, b"a", -0.5]


@settings(deadline=None)
@given(st.floats(allow_nan=False))
def test_replace_changes_a_copy(grace_s: float) -> None:
    stop = Stop(1.0)
    assert replace(stop, grace_s=grace_s) == Stop(grace_s)
    assert stop == Stop(1.0)


def test_replace_refuses_a_field_that_is_not_there() -> None:
    with pytest.raises(TypeError):
        replace(Roster(()), nobody=1)


def test_messages_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Stop(1.0).grace_s = 2.0  # type: ignore[misc]  # what is being tested


def test_a_section_names_the_field_it_does_not_know() -> None:
    class Kitchen(Section, kw_only=True):
        pots: int = 1

    with pytest.raises(msgspec.ValidationError, match="unknown field `pans`"):
        msgspec.convert({"pans": 2}, Kitchen)

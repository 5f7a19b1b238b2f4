from hypothesis import given
from hypothesis import strategies as st

from pomona.runtime.wire import replace
from pomona.scheduler.sequence import place
from tests.scheduler.rows import answer, event, request

WANTED = request("a", max_tokens=12)


def test_the_next_event_begins_where_the_seen_tokens_end() -> None:
    assert place(event(WANTED, 3, 2), 3) == "next"
    assert place(event(WANTED, 0, 0), 0) == "next"


def test_an_event_that_lies_below_was_seen() -> None:
    assert place(event(WANTED, 1, 2), 3) == "seen"
    assert place(event(WANTED, 1, 2), 9) == "seen"


def test_overlaps_gaps_and_an_end_below_are_broken() -> None:
    assert place(event(WANTED, 1, 3), 3) == "broken"
    assert place(event(WANTED, 4, 1), 3) == "broken"
    assert place(event(WANTED, 10, 2), 20) == "broken"


@given(st.lists(st.integers(1, 4), max_size=12))
def test_repeats_in_any_place_never_change_what_is_delivered(widths: list[int]) -> None:
    events, position = [], 0
    for width in widths:
        made = replace(event(WANTED, position, width), finish=None)
        if made.tokens:
            events.append(made)
            position += len(made.tokens)
    seen: list[int] = []
    for count in range(1, len(events) + 1):
        for sent in events[:count]:  # each step says all again
            if place(sent, len(seen)) == "next":
                seen.extend(sent.tokens)
    assert seen == answer(WANTED)[:position]

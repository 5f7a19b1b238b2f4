from hypothesis import given
from hypothesis import strategies as st

from pomona.workers.speculation.suffix_index import LONGEST, LOOKED_AT, SHORTEST, Match, SuffixIndex

sequences = st.lists(st.integers(0, 3), max_size=LOOKED_AT // 4) | st.lists(st.integers(0, 200_000), max_size=12)


def indexed(*parts: list[int]) -> SuffixIndex:
    index = SuffixIndex()
    for part in parts:
        index.extend(part)
    return index


def longest_match(tokens: list[int]) -> Match | None:
    """Every earlier end, the latest first."""
    last = len(tokens) - 1
    best = None
    for end in range(last - 1, -1, -1):
        length = 0
        while length <= end and tokens[end - length] == tokens[last - length]:
            length += 1
        if length >= SHORTEST and (best is None or length > best.length):
            best = Match(end, length)
    return best


@given(st.lists(sequences, max_size=4))
def test_the_longest_match_is_found_however_the_tokens_came(parts: list[list[int]]) -> None:
    index, tokens = SuffixIndex(), []
    for part in parts:
        index.extend(part)
        tokens += part
        assert len(index) == len(tokens)
        found, expected = index.match(), longest_match(tokens)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert min(found.length, LONGEST) == min(expected.length, LONGEST)
            assert tokens[found.end - found.length + 1 : found.end + 1] == tokens[-found.length :]


@given(sequences)
def test_what_is_asked_between_changes_no_length(tokens: list[int]) -> None:
    index = SuffixIndex()
    for token in tokens:
        index.extend([token])
        index.match()
    found, once = index.match(), indexed(tokens).match()
    assert found == once


def test_of_equally_long_matches_the_latest_is_taken() -> None:
    assert indexed([1, 2, 3, 0, 1, 2, 4, 0, 9, 1, 2]).match() == Match(5, 2)


def test_a_longer_match_is_taken_before_a_later_one() -> None:
    assert indexed([7, 1, 2, 3, 9, 1, 2, 4, 7, 1, 2]).match() == Match(2, 3)


def test_a_match_is_followed_past_the_length_at_which_a_search_stops() -> None:
    text = list(range(100, 200))
    index = indexed(text, text[:40])
    assert index.match() == Match(39, LONGEST)
    index.extend(text[40:60])
    assert index.match() == Match(59, LONGEST + 20)


def test_a_search_in_dull_text_looks_at_so_many_places() -> None:
    """The one place that goes on for three tokens lies one place too far, or just not."""
    for further, length in ((0, 3), (1, 2)):
        rest = [token for place in range(LOOKED_AT - 1 + further) for token in (100 + place, 1, 2)]
        assert indexed([5, 1, 2, *rest, 5, 1, 2]).match() == Match(2 if length == 3 else 2 + len(rest), length)


def test_no_match_has_no_fewer_than_two_tokens() -> None:
    assert indexed([1, 2, 3, 1]).match() is None
    assert indexed([1]).match() is None
    assert indexed().match() is None


def test_large_tokens_are_told_apart() -> None:
    assert indexed([0, 2**31, 5, 1, 0]).match() is None


def test_a_continuation_is_what_followed() -> None:
    index = indexed([1, 2, 3, 4, 5, 1, 2])
    match = index.match()
    assert match == Match(1, 2)
    assert index.continuation(match, 3) == (3, 4, 5)


def test_a_continuation_runs_on_into_itself() -> None:
    index = indexed([9, 1, 2, 3, 1, 2, 3, 1, 2])
    match = index.match()
    assert match == Match(5, 5)
    assert index.continuation(match, 8) == (3, 1, 2, 3, 1, 2, 3, 1)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 40))
def test_a_continuation_is_as_long_as_asked_and_what_a_copier_would_write(tokens: list[int], count: int) -> None:
    index = indexed(tokens)
    match = index.match()
    if match is None:
        return
    written = list(tokens)
    for offset in range(count):
        written.append(written[match.end + 1 + offset])
    assert index.continuation(match, count) == tuple(written[len(tokens) :])

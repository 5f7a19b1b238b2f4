import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pomona.workers.text import Piece, TextStream

TEXTS = st.text(alphabet=st.one_of(st.sampled_from("ab \n🍎é"), st.characters(codec="utf-8")), max_size=24)
STOPS = st.lists(st.text(alphabet="ab \n🍎é", max_size=4), max_size=4)


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[start:stop] for start, stop in zip([0, *places], [*places, len(data)], strict=True)]


def whole_characters(data: bytes) -> str:
    """The longest prefix of valid UTF-8 that ends with a character."""
    for cut in range(4):
        try:
            return data[: len(data) - cut].decode()
        except UnicodeDecodeError:
            continue
    raise AssertionError("not a prefix of valid UTF-8")


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The stop string that begins first; of several at one place the longest."""
    for start in range(len(text)):
        here = [stop for stop in stops if stop and text.startswith(stop, start)]
        if here:
            return start, max(here, key=len)
    return None


def withheld(text: str, stops: list[str]) -> str:
    """The longest end of `text` that may grow into a stop string."""
    starts = {stop[:size] for stop in stops for size in range(1, len(stop))}
    return max((start for start in starts if text.endswith(start)), key=len, default="")


@settings(deadline=None)
@given(TEXTS, st.lists(st.integers(0, 200), max_size=40), STOPS, st.booleans())
def test_pieces_are_the_text_before_the_first_stop_however_the_bytes_are_cut(
    text: str, cuts: list[int], stops: list[str], strip: bool
) -> None:
    stream = TextStream(stops, strip_first_space=strip)
    pushed, delivered = b"", ""
    for chunk in chunked(text.encode(), cuts):
        pushed += chunk
        seen = whole_characters(pushed)
        seen = seen[1:] if strip and seen.startswith(" ") else seen
        piece = stream.push(chunk)
        delivered += piece.text
        stop = first_stop(seen, stops)
        if stop is not None:
            assert (delivered, piece.stop) == (seen[: stop[0]], stop[1])
            return
        assert piece.stop is None
        assert delivered + withheld(seen, stops) == seen
    last = stream.flush()
    assert (delivered + last.text, last.stop) == (seen, None)
    assert stream.flush() == Piece("")


@settings(deadline=None)
@given(st.binary(max_size=24), st.lists(st.integers(0, 200), max_size=40))
def test_any_bytes_come_out_as_one_decoder_would_have_made_them(data: bytes, cuts: list[int]) -> None:
    stream = TextStream()
    pieces = [stream.push(chunk).text for chunk in chunked(data, cuts)]
    assert "".join([*pieces, stream.flush().text]) == codecs.decode(data, "utf-8", "replace")


def test_an_unfinished_character_is_withheld_and_ends_as_a_replacement() -> None:
    stream = TextStream()
    apple = "🍎".encode()
    assert [stream.push(apple[index : index + 1]).text for index in range(4)] == ["", "", "", "🍎"]
    assert stream.push(apple[:3]) == Piece("")
    assert stream.flush() == Piece("\ufffd")


def test_a_stop_may_lie_across_tokens_and_what_begins_one_is_withheld_no_longer_than_needed() -> None:
    stream = TextStream(["END"])
    assert stream.push(b"the E") == Piece("the ")
    assert stream.push(b"N") == Piece("")
    assert stream.push(b"T") == Piece("ENT")
    assert stream.push(b"EN") == Piece("")
    assert stream.push(b"D tail") == Piece("", "END")


def test_of_stops_that_arrive_together_the_earliest_counts_and_at_one_place_the_longest() -> None:
    assert TextStream(["b", "ab", "abc"]).push(b"xabcd") == Piece("x", "abc")
    assert TextStream(["cd", "b"]).push(b"abcd") == Piece("a", "b")


def test_a_stop_that_only_the_end_completes_is_found_there() -> None:
    stream = TextStream(["\ufffd"])
    assert stream.push(b"a\xf0\x9f") == Piece("a")
    assert stream.flush() == Piece("", "\ufffd")


def test_what_was_withheld_is_delivered_at_the_end() -> None:
    stream = TextStream(["stop"])
    assert stream.push(b"full sto") == Piece("full ")
    assert stream.flush() == Piece("sto")
    assert stream.flush() == Piece("")


def test_the_longest_end_that_begins_a_stop_is_withheld() -> None:
    stream = TextStream(["aab"])
    assert stream.push(b"xaa") == Piece("x")
    assert stream.push(b"a") == Piece("a")
    assert stream.push(b"b") == Piece("", "aab")


def test_a_stop_before_the_text_may_end_is_plain_text() -> None:
    stream = TextStream(["stop"])
    assert stream.push(b"stop sto", may_stop=False) == Piece("stop sto")
    assert stream.push(b"p") == Piece("p")
    assert stream.push(b" stop") == Piece(" ", "stop")


def test_empty_stops_end_nothing() -> None:
    assert TextStream([""]).push(b"text") == Piece("text")


def test_a_leading_newline_is_text() -> None:
    stream = TextStream(strip_first_space=True)
    assert stream.push(b"\n a").text == "\n a"


@pytest.mark.parametrize(("strip", "text"), [(True, "one two"), (False, " one two")])
def test_only_the_very_first_blank_is_stripped_and_only_where_the_tokeniser_adds_it(strip: bool, text: str) -> None:
    stream = TextStream(strip_first_space=strip)
    pieces = [stream.push(data).text for data in (b"", b" one", b" two")]
    assert "".join(pieces) == text
    assert TextStream(strip_first_space=strip).push(b"  x").text == (" x" if strip else "  x")

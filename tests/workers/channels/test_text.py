"""Bytes of several channels as text."""

from pomona.workers.channels.text import ChannelText
from pomona.workers.channels.walk import Segment
from pomona.workers.messages import Delta

CUT = "é".encode()[:1]


def test_a_character_cut_off_by_the_end_of_its_channel_is_told_there() -> None:
    text = ChannelText((), strip_first_space=False)
    assert text.push([Segment("reasoning", b"so" + CUT)], may_stop=True)[0] == (Delta("reasoning", "so"),)
    assert text.push([Segment("content", b"yes")], may_stop=True)[0] == (
        Delta("reasoning", "�"),
        Delta("content", "yes"),
    )
    assert text.flush(None) == ((), None)


def test_a_stop_string_is_looked_for_in_the_answer_alone() -> None:
    text = ChannelText(("END",), strip_first_space=False)
    assert text.push([Segment("reasoning", b"the END")], may_stop=True) == ((Delta("reasoning", "the END"),), None)
    assert text.push([Segment("tool_call", b"END", 0, "f")], may_stop=True) == (
        (Delta("tool_call", "END", 0, "f"),),
        None,
    )
    assert text.push([Segment("content", b"ok EN")], may_stop=True) == ((Delta("content", "ok "),), None)
    assert text.push([Segment("content", b"D more")], may_stop=True) == ((), "END")


def test_calls_are_told_apart() -> None:
    text = ChannelText((), strip_first_space=False)
    segments = [Segment("tool_call", b"a" + CUT, 0), Segment("tool_call", b"b", 1)]
    assert text.push(segments, may_stop=True)[0] == (
        Delta("tool_call", "a", 0),
        Delta("tool_call", "�", 0),
        Delta("tool_call", "b", 1),
    )


def test_the_end_tells_what_was_withheld_everywhere() -> None:
    text = ChannelText(("stop",), strip_first_space=False)
    text.push([Segment("content", b"a st")], may_stop=True)
    text.push([Segment("reasoning", CUT)], may_stop=True)
    deltas, stop = text.flush(Segment("reasoning", b"</th"))
    assert ("".join(each.text for each in deltas if each.channel == "reasoning"), stop) == ("�</th", None)
    assert "".join(each.text for each in deltas if each.channel == "content") == "st"

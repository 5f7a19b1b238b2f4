from pomona.runtime.tally import Histogram, Tally, empty


def test_a_value_counts_for_the_first_bound_that_it_does_not_exceed() -> None:
    histogram = Histogram((1, 2, 4))
    for value in (0.5, 1, 1.5, 4, 5):
        histogram.note(value)
    assert histogram.tally() == Tally((2, 1, 1, 1), 12.0)


def test_a_histogram_without_values_is_the_empty_tally() -> None:
    assert Histogram((1, 2)).tally() == empty((1, 2)) == Tally((0, 0, 0), 0.0)

"""What is measured before the first request, and what it is good for."""

import pytest

from pomona.workers.batch import Batch
from pomona.workers.messages import RequestId
from pomona.workers.speculation.calibration import ROUNDS, WIDTHS, calibrate
from pomona.workers.speculation.depth import DepthPolicy, Outlook
from pomona.workers.speculation.ngram import NgramProposer
from pomona.workers.speculation.speculator import Speculator
from tests.workers.engines import tiny
from tests.workers.families import SETTINGS, model_of
from tests.workers.faulty_models import Watched

COPY = Outlook(RequestId("r"), "ngram", available=7, strength=10)


@pytest.mark.parametrize("family", SETTINGS)
def test_every_width_is_run_over_every_kind_of_cache(family: str) -> None:
    model = Watched(model_of(family))
    calibrate(model, Batch(model), tiny().vocabulary, Speculator([NgramProposer()]))
    for width in WIDTHS:
        assert model.widths.count(width) >= ROUNDS


def test_without_a_method_nothing_is_run() -> None:
    model = Watched(model_of("plain"))
    calibrate(model, Batch(model), tiny().vocabulary, Speculator())
    assert max(model.widths, default=1) == 1  # a model is looked at when a batch of it is made


def test_the_first_request_drafts_where_the_calibration_says_that_it_pays() -> None:
    cheap, dear = DepthPolicy(), DepthPolicy()
    assert cheap.choose([COPY], 1) == [0]
    for _ in range(ROUNDS):
        for width in WIDTHS:
            cheap.calibrated(1, width, 1.0 + 0.05 * width)
            dear.calibrated(1, width, 1.0 * width)
    assert cheap.choose([COPY], 1)[0] >= 3
    assert dear.choose([COPY], 1) == [0]

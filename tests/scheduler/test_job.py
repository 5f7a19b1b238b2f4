import itertools

import pytest

from pomona.runtime.mailbox import Peer
from pomona.scheduler.job import IllegalMove, Job, Phase
from tests.scheduler.rows import request

LEGAL = {
    ("waiting", "running"),
    ("waiting", "ended"),
    ("running", "waiting"),
    ("running", "cancelling"),
    ("running", "ended"),
    ("cancelling", "waiting"),
    ("cancelling", "ended"),
}


@pytest.mark.parametrize(("here", "there"), list(itertools.product(Phase, Phase)))
def test_only_the_listed_moves_are_legal(here: Phase, there: Phase) -> None:
    job = Job(request("a"), Peer("gateway", 0), 1, 0.0, phase=here)
    if (here.value, there.value) in LEGAL:
        job.move(there)
        assert job.phase is there
    else:
        with pytest.raises(IllegalMove, match=f"request a cannot go from {here.value} to {there.value}"):
            job.move(there)
        assert job.phase is here

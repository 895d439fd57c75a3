"""
Bare is the oracle: a wrapped upstream behaves exactly as it does without the wrapper, apart from the frames.

The clauses C3 to C9 at once; what each of them says by itself is tested in ``test_keepalive.py``.
"""

import pytest

from tests import oracle
from tests.oracle import Behaviour, Script, Seen, observe
from tests.upstreams import GENERATORS, READY, spinner
from tests.upstreams_shaped import SHAPES

SCRIPTS = [*GENERATORS, *SHAPES]
#: A spinner meets a cancellation when it next comes round, so not at the very moment of the frame.
PARKING = [script for script in SCRIPTS if script is not spinner]
#: Frames in nearly every gap; rare ones, some in the very moment in which a step is done; none.
INTERVALS = (0.07, 0.3, 30)

BEHAVIOURS: dict[str, Behaviour] = {
    "to the end": oracle.to_the_end,
    "slowly": oracle.slowly,
    "left after 1": oracle.left_after(1),
    "left after 2": oracle.left_after(2),
    "closed unstarted": oracle.closed_unstarted,
    # Never in the moment in which a step is done, for then it depends on the heap of timers which comes first; but
    # often in that in which a frame falls due: k * 0.07 from the start or from a chunk.
    "cancelled at .04": oracle.cancelled_at(0.04),
    "cancelled at .21": oracle.cancelled_at(0.21),
    "cancelled at .44": oracle.cancelled_at(0.44),
    "cancelled at .51 and .56": oracle.cancelled_at(0.51, 0.56),
    "cancelled twice at .77": oracle.cancelled_at(0.77, number=2),
    "cancelled at .36 and then often": oracle.cancelled_at(0.36, 0.37, 0.42, 0.43, 0.57),
    "timed out at .58": oracle.timed_out_at(0.58),
    "moved on at .37": oracle.moved_on_at(0.37),
}
#: A generator that is dropped is closed by its loop. Other iterators are just gone.
OF_GENERATORS: dict[str, Behaviour] = {
    "dropped unstarted": oracle.dropped_after(0),
    "dropped after 1": oracle.dropped_after(1),
    "dropped after 2": oracle.dropped_after(2),
}
#: Where a step is ready at once while a cancellation is pending, it is thrown in at the yield (C11).
OF_AWAITING: dict[str, Behaviour] = {
    "cancelled after 1": oracle.cancelled_after(1),
    "cancelled after 2": oracle.cancelled_after(2),
}
ALL = {**BEHAVIOURS, **OF_GENERATORS, **OF_AWAITING}


def _applies(script: Script, behaviour: str) -> bool:
    if behaviour in OF_AWAITING:
        return script not in READY
    return behaviour in BEHAVIOURS or script in GENERATORS


@pytest.mark.parametrize(
    ("script", "behaviour"),
    [
        pytest.param(script, behaviour, id=f"{script.__name__}-{behaviour}")
        for script in SCRIPTS
        for behaviour in ALL
        if _applies(script, behaviour)
    ],
)
def test_transparency(script: Script, behaviour: str) -> None:
    bare = observe(script, ALL[behaviour], None).comparable()
    for interval in INTERVALS:
        assert observe(script, ALL[behaviour], interval).comparable() == bare, f"interval {interval}"


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("script", PARKING, ids=lambda script: script.__name__)
def test_c7_closing_in_the_middle_of_a_step_is_a_cancellation_and_a_close(script: Script, count: int) -> None:
    wrapped = observe(script, oracle.closed_in_a_step(count), 0.07)
    if wrapped.closed_at is None:
        return  # it is never silent there
    bare = observe(script, oracle.cancelled_and_closed_at(wrapped.closed_at), None)

    def without_counts(seen: Seen) -> list[tuple[object, ...]]:
        # Only task.cancel() raises the count of cancellations.
        return [(*entry[:4], entry[5]) for entry in seen.journal.entries]

    assert without_counts(wrapped) == without_counts(bare)
    assert wrapped.chunks == bare.chunks
    assert (wrapped.error, wrapped.notes) == (bare.error, bare.notes)
    assert (wrapped.cancelling, wrapped.tasks_left, wrapped.reports) == (0, 0, bare.reports)


def test_the_oracle_itself_sees_frames_where_upstreams_are_silent() -> None:
    frames = {script.__name__: len(observe(script, oracle.to_the_end, 0.07).frames) for script in SCRIPTS}
    assert sum(count >= 3 for count in frames.values()) > 60, frames

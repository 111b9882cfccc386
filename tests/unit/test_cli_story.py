"""How the way of a task is written for people."""

from formation_p2p.command.top import in_lines
from formation_p2p.observe.status_json import story_in_json
from formation_p2p.peer.core.story import StoryEntry, StoryStep
from tests.support.stories import at, identity

ALICE = identity("alice").peer_id


def test_each_step_has_a_line_with_the_time_since_the_one_before() -> None:
    entries = (
        StoryEntry(at(0), StoryStep.SUBMITTED, None, "job 3f2a"),
        StoryEntry(at(0.0125), StoryStep.FOUND, ALICE, "1 of 1"),
        StoryEntry(at(75.5), StoryStep.REFUSED, ALICE, "busy\x1b[31m\nand more"),
    )
    first, second, third = (line[8:] for line in in_lines(story_in_json(entries)))
    assert first == "      +0 ms  submitted             job 3f2a"
    assert second == f"     +12 ms  found      …{ALICE[-8:]}  1 of 1"
    assert third == f"    +75.5 s  refused    …{ALICE[-8:]}  busy\ufffd[31m and more"

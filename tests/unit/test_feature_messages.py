"""What features say in the work protocol on the wire: everything comes back, and nothing else gets
in."""

from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.features.gangs.core.messages import GangMessage
from formation_p2p.features.quotas.core.messages import AskSlice, QuotaMessage, SliceAnswer
from formation_p2p.leases.core.messages import WorkMessage, is_urgent, pack, parse
from tests.support.feature_messages import messages
from tests.support.work_messages import anything, check_another_kind, check_damage, paths


@settings(max_examples=60)
@given(messages)
def test_every_message_comes_back_as_it_was(message: WorkMessage) -> None:
    assert parse(pack(message)) == message


@settings(max_examples=60)
@given(messages, st.data())
def test_no_damage_to_a_frame_breaks_the_parser(message: WorkMessage, data: st.DataObject) -> None:
    check_damage(message, data)


@settings(max_examples=60)
@given(messages, paths, anything)
def test_no_field_of_another_kind_breaks_the_parser(
    message: WorkMessage, path: list[int], new: object
) -> None:
    check_another_kind(message, path, new)


def test_what_keeps_a_lease_goes_ahead_of_large_frames() -> None:
    kinds = (*GangMessage.__args__, *QuotaMessage.__args__)
    assert {kind for kind in kinds if is_urgent(kind.__new__(kind))} == {AskSlice, SliceAnswer}

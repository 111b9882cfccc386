from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.work import MAX_PAYLOAD_BYTES

CONTEXT = CallContext("cpython-3.11", b"a pickle")
CODE = Blob(Cid(RAW, digest_of(b"")), 0)
WITH_CODE = replace(CONTEXT, code=CODE)


@pytest.mark.parametrize(
    "context",
    [CONTEXT, WITH_CODE, replace(CONTEXT, name="train.fit"), replace(CONTEXT, as_member=True)],
)
def test_a_context_is_read_as_it_was_written(context: CallContext) -> None:
    assert CallContext.decode(context.encode()) == context


def test_calls_with_one_setup_share_an_interpreter() -> None:
    assert CONTEXT.needs == replace(CONTEXT, function=b"another").needs
    assert CONTEXT.needs != WITH_CODE.needs
    elsewhere = replace(CODE, sources=(Contact(Identity.from_seed(bytes(32)).peer_id, ()),))
    assert WITH_CODE.needs == replace(WITH_CODE, code=elsewhere).needs


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("python", "3.11"),
        ("python", 3),
        ("function", "text"),
        ("blob", 7),
        ("name", 7),
        ("name", "x" * 301),
        ("name", "\n"),
        ("as_member", 1),
    ],
)
def test_a_context_with_a_wrong_field_is_refused(field: str, value: Any) -> None:
    name = "code" if field == "blob" else field
    packed = cbor2.loads(CONTEXT.encode()) | {name: value}
    with pytest.raises(InvalidInput, match=field):
        CallContext.decode(cbor2.dumps(packed))


def test_a_context_fits_into_one_message() -> None:
    with pytest.raises(InvalidInput, match="at most"):
        replace(CONTEXT, function=bytes(MAX_PAYLOAD_BYTES)).encode()


@given(st.binary())
def test_any_other_bytes_are_refused(shared: bytes) -> None:
    with pytest.raises(InvalidInput):
        CallContext.decode(shared)

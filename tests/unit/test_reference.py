"""References: what calls make of them on the caller's side, and when they are not good any more."""

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from formation_p2p.api.arguments import ArgumentPickler
from formation_p2p.api.calls import LargeFunctions, packed_function, reference_to
from formation_p2p.api.submission import python_call, python_calls, with_parcels
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import KIB, MIB
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.parcel import MAX_REFERENCES, Parcel, is_parcel
from formation_p2p.workload.core.plan import plan_of
from tests.support.parcels import a_packer


def packed(pickler: ArgumentPickler, *args: Any, **kwargs: Any) -> Parcel:
    parcel = pickler.dumps(args, kwargs)
    assert isinstance(parcel, Parcel)
    return parcel


def test_each_is_named_once_in_a_call_wherever_it_is() -> None:
    packer = a_packer()
    first, second = reference_to([1, 2], packer), reference_to("text", packer)
    pickler = ArgumentPickler(packer)
    assert pickler.dumps((1,), {}) == pickle.dumps(((1,), {}), 5)
    parcel = packed(pickler, [first, {"x": second}], first, y=(second, first))
    assert parcel.references == (first.parcel, second.parcel)
    assert parcel.blob is None
    later = packed(pickler, second)
    assert later.references == (second.parcel,)
    assert pickler.dumps(([3],), {}) == pickle.dumps((([3],), {}), 5)
    beside = packed(pickler, second, b"x" * MIB)
    assert beside.blob is not None
    for each in (parcel, later, beside):
        packer.release(each)
    assert len(packer.blobs) == 2


def test_a_function_may_enclose_one() -> None:
    packer = a_packer()
    table = reference_to({"a": 1}, packer)

    def entry(name: str) -> object:
        return table, name

    function = packed_function(entry, packer)
    assert function.parcel is not None
    assert function.parcel.references == (table.parcel,)
    assert Parcel.decode(function.function) == function.parcel
    assert "formation_p2p.api.reference" not in function.modules.referred
    functions = LargeFunctions(packer)
    again = [functions.packed(entry) for _ in range(3)]
    assert len({id(each.parcel) for each in again}) == 1


def test_calls_that_were_handed_over_have_it_to_their_end() -> None:
    packer = a_packer()
    reference = reference_to(b"x" * MIB, packer)
    assert (reference.size_bytes, len(packer.blobs)) == (MIB + 64, 1)
    parcel = packed(ArgumentPickler(packer), reference)
    reference.release()
    reference.release()
    assert len(packer.blobs) == 1
    packer.release(parcel)
    assert len(packer.blobs) == 0
    assert "bytes, 1.0MiB, released" in repr(reference)


def test_one_that_is_dropped_is_released_before_memory_is_asked_for() -> None:
    packer = a_packer(PrivateBlobs(limit_bytes=3 * MIB))
    for _ in range(5):
        reference_to(b"x" * 2 * MIB, packer)
    assert len(packer.blobs) == 1
    cycle: list[Any] = [reference_to(b"y", packer)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    packer.blobs.trim()
    assert len(packer.blobs) == 0


@pytest.mark.at_length
def test_any_number_may_be_dropped_at_once(tmp_path: Path) -> None:
    blobs = PrivateBlobs(limit_bytes=MIB)
    blobs.open(tmp_path)
    packer = a_packer(blobs)
    references = [reference_to(number, packer) for number in range(2000)]
    del references
    blobs.trim()
    assert (len(blobs), list(tmp_path.iterdir())) == (0, [])


def test_one_that_is_not_good_here_is_an_error_at_once() -> None:
    packer, other = a_packer(), a_packer()
    good, foreign, released = (reference_to([1], each) for each in (packer, other, packer))
    released.release()
    pickler = ArgumentPickler(packer)

    def encloses() -> object:
        return foreign

    with pytest.raises(InvalidInput, match="another node's"):
        pickler.dumps((good, foreign), {})
    with pytest.raises(InvalidInput, match="another node's"):
        packed_function(encloses, packer)
    for _ in range(2):
        with pytest.raises(InvalidInput, match="it was released; put the object again"):
            pickler.dumps(([good, released],), {})
    other.blobs.close()
    with pytest.raises(InvalidInput, match="it was released"):
        ArgumentPickler(other).dumps((foreign,), {})
    parcel = packed(pickler, good)
    assert parcel.references == (good.parcel,)
    packer.release(parcel)
    good.release()
    assert len(packer.blobs) == 0


def test_buffers_of_a_function_that_encloses_one_are_kept_once() -> None:
    packer = a_packer()
    reference, table = reference_to([1], packer), np.ones(MIB)

    def entry(number: int) -> object:
        return table[number], reference

    function = packed_function(entry, packer)
    assert function.parcel is not None
    assert function.parcel.buffers == (8 * MIB,)


def test_calls_for_a_job_have_what_they_refer_to_until_it_is_submitted() -> None:
    packer = a_packer()
    reference = reference_to([1], packer)
    enclosed = b"x" * MIB

    def entry(number: int, other: object) -> object:
        return number, other, reference, enclosed

    plan = plan_of([python_call(entry, 1, reference), *python_calls(len, [b"y" * MIB, b"z"])])
    with pytest.raises(InvalidInput, match="submit it there"):
        plan.tasks[0].work.encode()
    packed, parcels = with_parcels(plan, "job", packer)
    calls = [each.work for each in packed.tasks]
    assert set(parcels) == {"job/0", "job/1", "function 0"}
    assert parcels["job/0"].references == parcels["function 0"].references == (reference.parcel,)
    payloads = [each.encode() for each in calls]
    assert [is_parcel(each) for each in payloads] == [True, True, False]
    context = CallContext.decode(calls[0].shared)  # type: ignore[attr-defined]  # it is a call
    assert Parcel.decode(context.function) == parcels["function 0"]
    packer.release_all(parcels.values())
    again = python_calls(lambda number: entry(number, None), [1, 2])
    assert again[0].large_function is again[1].large_function
    reference.release()
    with pytest.raises(InvalidInput, match="it was released"):
        with_parcels(plan_of([python_call(len, b"y" * MIB), *again]), "job", packer)
    assert len(packer.blobs) == 0


def test_what_cannot_be_kept_holds_no_reference() -> None:
    packer = a_packer(PrivateBlobs(max_blobs=1))
    reference = reference_to([1], packer)
    with pytest.raises(LocalError, match="1 private blobs are held"):
        ArgumentPickler(packer).dumps((reference, b"x" * MIB), {})
    reference.release()
    assert len(packer.blobs) == 0


def test_it_goes_nowhere_but_into_calls() -> None:
    packer = a_packer()
    reference = reference_to([1], packer)
    for use in (pickle.dumps, copy.copy, lambda each: reference_to([each], packer)):
        with pytest.raises(InvalidInput, match="pass it to one, or pickle the object"):
            use(reference)


def test_a_call_takes_so_many() -> None:
    packer = a_packer()
    references = [reference_to(number, packer) for number in range(MAX_REFERENCES + 1)]
    pickler = ArgumentPickler(packer)
    with pytest.raises(InvalidInput, match="a call takes 128 references; put a list"):
        pickler.dumps((references,), {})
    assert len(packed(pickler, references[1:]).references) == MAX_REFERENCES


def test_what_code_it_needs_is_asked_for_by_the_calls(tmp_path: Path) -> None:
    packer = a_packer()
    reference = reference_to([tmp_path], packer)
    pickler = ArgumentPickler(packer)
    assert "pathlib" not in pickler.modules.referred
    packed(pickler, reference)
    assert "pathlib" in pickler.modules.referred
    many = reference_to([bytearray(KIB)], packer)
    assert "pathlib" not in many.modules.referred

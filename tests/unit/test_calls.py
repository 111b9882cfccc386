"""Python functions as work: what a call is called."""

import functools
import pickle
import sys
import threading
from collections.abc import Generator
from types import ModuleType

import numpy as np
import pytest

from formation_p2p.api.arguments import ArgumentPickler
from formation_p2p.api.calls import qualified_name
from formation_p2p.api.submission import python_call, python_calls, steps_call
from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.pythons import own_name
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.parcel import LARGE_BYTES
from tests.support.calls import pickled_function
from tests.support.parcels import a_packer


def double(number: int) -> int:
    return 2 * number


def test_one_call_takes_any_arguments() -> None:
    call = python_call(double, number=4)
    function = pickle.loads(CallContext.decode(call.function).function)
    assert function(*(pickle.loads(call.arguments)[0]), number=1) == 2
    assert pickle.loads(call.arguments) == ((), {"number": 4})
    assert call.kind == f"{__name__}.double"
    assert {each.kind for each in python_calls(double, [1, 2])} == {call.kind}


def counting(last: int | None) -> Generator[int, None, None]:
    yield (last or 0) + 1


def test_steps_are_of_the_kind_of_their_function() -> None:
    assert steps_call(counting).kind == f"{__name__}.counting"


def test_what_has_no_name_of_its_own_is_of_no_kind() -> None:
    assert qualified_name(lambda: None) == ""
    assert qualified_name(functools.partial(double, 1)) == ""


def test_code_is_refused_where_another_version_is_to_run_it() -> None:
    of_a_module = CallContext.decode(pickled_function(qualified_name, "any"))
    assert of_a_module.python == own_name()
    assert pickle.loads(of_a_module.function) is qualified_name
    assert CallContext.decode(pickled_function(lambda: 1, own_name())).python == own_name()
    refused = r"python: <lambda> travels as code of .*; leave python= out, or put it into a module"
    with pytest.raises(InvalidInput, match=refused):
        pickled_function(lambda: 1, "any")
    assert ArgumentPickler(a_packer(), "any").dumps(([1], qualified_name), {})
    with pytest.raises(InvalidInput, match=refused):
        ArgumentPickler(a_packer(), "any").dumps(([lambda: 1],), {})


def test_a_function_of_a_script_goes_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("__main__")
    script.__file__ = "/home/ann/train.py"
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.setattr(double, "__module__", "__main__")
    assert qualified_name(double) == "train.double"
    monkeypatch.delattr(script, "__file__")
    assert qualified_name(double) == ""


def test_small_arguments_that_may_change_are_pickled_ahead() -> None:
    pickler = ArgumentPickler(a_packer())
    lock, row = threading.Lock(), [0.5] * 10
    for given in ((1, "x"), (list(range(10**6)),), (np.zeros(LARGE_BYTES),), (row, lock)):
        assert pickler.small(given, {}) is None
        pickled = pickler.small((row,), {"x": row})
        assert isinstance(pickled, bytes)
        assert pickle.loads(pickled) == ((row,), {"x": row})
    with pytest.raises(TypeError) as refused:
        pickler.dumps((row, lock), {})
    assert str(refused.value).startswith("argument 2 is a lock")

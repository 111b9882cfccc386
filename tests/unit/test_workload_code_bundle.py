"""Bundles of code: the same files have the same bytes, and no bytes name a file elsewhere."""

import struct
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.code_bundle import (
    MAX_BUNDLE_BYTES,
    MAX_CODE_BYTES,
    MAX_CODE_FILES,
    NO_MODULES,
    Code,
    CodeFile,
    ModuleNames,
    read_bundle,
    write_bundle,
)

FILES = [
    CodeFile("shop/__init__.py", b""),
    CodeFile("shop/data/prices.txt", b"apple 3\n"),
    CodeFile("shop/tool", b"#!/bin/sh\n", executable=True),
    CodeFile("later.py", b"x = 1\n"),
]


def bundle_of(index: Any, content: bytes = b"", *, raw: bytes | None = None) -> bytes:
    """One that no program of ours would write."""
    encoded = cbor2.dumps(index) if raw is None else raw
    return b"formcod1" + struct.pack("!I", len(encoded)) + encoded + content


def test_a_bundle_is_read_as_it_was_written_and_the_order_of_files_is_of_no_account() -> None:
    bundle = write_bundle(FILES)
    assert bundle == write_bundle(reversed(FILES))
    assert list(read_bundle(bundle)) == sorted(FILES, key=lambda file: file.name)
    assert list(read_bundle(memoryview(bundle))) == list(read_bundle(bundle))


def test_an_empty_bundle_is_one() -> None:
    assert read_bundle(write_bundle([])) == ()


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "/etc/passwd", "..", "../up.py", "a/../../up.py", "./a.py", "a//b.py", "a/"),
        *("a\0b.py", "a\nb.py", "\ud800.py", "x" * 256, "a/" * 33 + "b", "/".join("ab" * 600)),
        "/".join(["n" * 200] * 6),
    ],
)
def test_no_name_leaves_the_folder(name: str) -> None:
    with pytest.raises(InvalidInput, match="code"):
        write_bundle([CodeFile(name, b"")])
    if "\ud800" not in name:  # which CBOR cannot say either
        with pytest.raises(InvalidInput, match="code"):
            read_bundle(bundle_of([[name, 0, False]]))


@pytest.mark.parametrize(
    ("bundle", "why"),
    [
        (b"", "not a bundle"),
        (b"formcod2" + bytes(4), "not a bundle"),
        (b"formcod1" + struct.pack("!I", 9), "longer than it may be"),
        (bundle_of([], raw=b"\xff"), "not plain CBOR"),
        (bundle_of({}), "not a list"),
        (bundle_of([["a.py", 0]]), "an entry"),
        (bundle_of([["a.py", -1, False]]), "an entry"),
        (bundle_of([["a.py", True, False]]), "an entry"),
        (bundle_of([["a.py", 0, 1]]), "an entry"),
        (bundle_of([[b"a.py", 0, False]]), "an entry"),
        (bundle_of([["a.py", 2, False]], b"x"), "1 bytes of content"),
        (bundle_of([["a.py", 0, False]], b"x"), "1 bytes of content"),
        (bundle_of([["a.py", 0, False], ["a.py", 0, False]]), "twice"),
        (bundle_of([["b.py", 0, False], ["a.py", 0, False]]), "order"),
        (bundle_of([["a", 0, False], ["a/b/c", 0, False]]), "a file and a folder"),
        (bundle_of([["a", MAX_CODE_BYTES + 1, False]]), "64MiB"),
    ],
)
def test_what_is_not_a_bundle_is_refused(bundle: bytes, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        read_bundle(bundle)


def test_too_many_files_are_refused_before_they_are_looked_at() -> None:
    names = [CodeFile(f"{number:07}", b"") for number in range(MAX_CODE_FILES + 1)]
    with pytest.raises(InvalidInput, match="10,001 files, of at most 10,000"):
        write_bundle(names)
    assert len(read_bundle(write_bundle(names[1:]))) == MAX_CODE_FILES
    many = bundle_of([["a", 0, False]] * (MAX_CODE_FILES + 1))
    with pytest.raises(InvalidInput, match="10,001 files"):
        read_bundle(many)
    million = b"\x9a" + (10**6).to_bytes(4, "big") + b"\x83\x61a\x00\xf4" * 10**6
    with pytest.raises(InvalidInput, match="more than 131072 items"):
        read_bundle(bundle_of([], raw=million))


def test_a_bundle_has_a_bound() -> None:
    with pytest.raises(InvalidInput, match="more than"):
        read_bundle(memoryview(bytearray(MAX_BUNDLE_BYTES + 1)))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_bundle_or_refused(raw: bytes) -> None:
    for bundle in (raw, bundle_of([], raw=raw)):
        try:
            files = read_bundle(bundle)
        except InvalidInput:
            continue
        assert all(".." not in file.name.split("/") for file in files)


NAMES = st.lists(
    st.text("ab._é", min_size=1, max_size=3).filter(lambda part: part not in (".", "..")),
    min_size=1,
    max_size=3,
).map("/".join)


@given(st.dictionaries(NAMES, st.tuples(st.binary(max_size=4), st.booleans()), max_size=6))
def test_what_is_written_is_read(given: dict[str, tuple[bytes, bool]]) -> None:
    files = [CodeFile(name, content, mode) for name, (content, mode) in given.items()]
    clash = any(other.startswith(f"{name}/") for name in given for other in given)
    try:
        bundle = write_bundle(files)
    except InvalidInput:
        assert clash
    else:
        assert not clash
        assert {
            file.name: (bytes(file.content), file.executable) for file in read_bundle(bundle)
        } == given


def test_names_of_modules_are_added_up() -> None:
    one, other = ModuleNames(frozenset({"a"})), ModuleNames(frozenset({"b"}), frozenset({"c"}))
    assert one | other == ModuleNames(frozenset({"a", "b"}), frozenset({"c"}))
    assert (one | other) - other == one
    assert not one - one
    assert other
    assert not NO_MODULES


def test_what_goes_along_is_one_line() -> None:
    blob = Blob(Cid(RAW, digest_of(b"")), 0)
    assert str(Code(blob, ("shop",), 1, 3)) == f"shop (1 file, 3B, {blob.cid})"
    assert str(Code(blob, (), 0, 0)) == f"nothing (0 files, 0B, {blob.cid})"
    text = str(Code(blob, ("later", "shop"), 1200, 2048, ("shop/.env",)))
    assert text == f"later, shop (1,200 files, 2KiB, {blob.cid}); left out: shop/.env"

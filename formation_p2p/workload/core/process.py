"""The input and the result of the `process`, `container` and `wasm` drivers, and their CBOR.

    ProcessSpec(
        argv=("sort", "words.txt", "-o", "sorted.txt"),
        files_in={"words.txt": b"b\\na\\n"},
        files_out=("sorted.txt",),
    ).encode()

Files have names relative to the folder that the process starts in. The classes check their fields,
given by a caller or read from a stranger's bytes, and raise InvalidInput.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import KIB
from formation_p2p.machine.core.bounds import shown
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.work import (
    MAX_PAYLOAD_BYTES,
    MAX_RESULT_BYTES,
    check_size,
    decode_fields,
    encode_fields,
)

# execve(2): Linux refuses a single argument or variable of more (MAX_ARG_STRLEN).
MAX_ARGUMENT_BYTES: Final = 128 * KIB - 1
# Together execve(2) takes a quarter of the stack's limit, 2 MiB; hundreds of each are plenty.
MAX_ARGUMENTS: Final = 1024
MAX_VARIABLES: Final = 256
# Each is one open, one write and one entry of the payload.
MAX_FILES: Final = 256
# Each is asked for by itself.
MAX_SECRETS: Final = 16
# A key, a token, a bundle of certificates.
MAX_SECRET_BYTES: Final = 8 * 1024
_SECRET: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
# Well inside what file systems take for one name (255) and a path (4096).
MAX_NAME_BYTES: Final = 255
# The end of what a process printed, kept with its result; the whole is streamed while it runs.
MAX_TAIL_BYTES: Final = 64 * KIB

# HTCondor's, for the same.
CHECKPOINT_EXIT: Final = 85

# Programs of which the next argument tells more: `python3 train.py` is a run of train.py.
_INTERPRETER: Final = re.compile(
    r"(python|pypy)[0-9.]*|(ba|da|z|k)?sh|node|deno|bun|perl|ruby|php|lua|julia|Rscript"
)


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process: `argv[0]` is looked up in PATH; `env` is added to the driver's own minimum.

    `stdin` of None is an empty input. `files_in` are there, executable, when it starts;
    `files_out` must be there when it has ended with 0. `inputs` and `outputs` are files of any
    size, by content: the worker fetches the inputs from the peers that have them, may only read
    and execute them, and keeps the outputs for those that fetch them.

    With `checkpoint_files` a process saves by ending with the code `checkpoint_exit`: these files,
    as far as they are there, are its checkpoint, and it is started again, where it is or elsewhere,
    with them in its folder.

    `secrets` are files in the folder `FORMATION_SECRETS`, which is in memory alone. Each is named
    by the box in which its owner keeps it, who seals it to the worker (secrets).
    """

    driver: ClassVar[str] = "process"
    shared: ClassVar[bytes] = b""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    files_in: Mapping[str, bytes] = field(default_factory=dict)
    files_out: tuple[str, ...] = ()
    inputs: Mapping[str, Blob] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    checkpoint_files: tuple[str, ...] = ()
    checkpoint_exit: int = CHECKPOINT_EXIT
    secrets: Mapping[str, Blob] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_count("argv", self.argv, MAX_ARGUMENTS)
        if not self.argv or self.argv[0] == "":
            raise InvalidInput("argv", "names no program; give it as the first argument")
        for argument in self.argv:
            _check_text("argv", argument, MAX_ARGUMENT_BYTES)
        _check_count("env", self.env, MAX_VARIABLES)
        for name, value in self.env.items():
            _check_text("env", name, MAX_NAME_BYTES)
            if name == "" or "=" in name:
                raise InvalidInput("env", f"{name!r} is not a name; leave out the = and the empty")
            _check_text("env", value, MAX_ARGUMENT_BYTES - len(name.encode()) - 1)
        if self.stdin is not None:
            _check_type("stdin", self.stdin, bytes)
        _check_files("files_in", self.files_in, bytes)
        _check_names("files_in", self.files_in)
        _check_files("inputs", self.inputs, Blob)
        _check_names("inputs", (*self.files_in, *self.inputs))
        _check_count("files_out", self.files_out, MAX_FILES)
        _check_count("outputs", self.outputs, MAX_FILES)
        _check_names("files_out", self.files_out)
        _check_names("outputs", (*self.files_out, *self.outputs))
        _check_count("checkpoint_files", self.checkpoint_files, MAX_FILES)
        _check_names("checkpoint_files", self.checkpoint_files)
        if set(self.checkpoint_files) & set(self.inputs):
            raise InvalidInput("checkpoint_files", "an input is read-only; save under another name")
        if type(self.checkpoint_exit) is not int or not 1 <= self.checkpoint_exit <= 255:
            raise InvalidInput("checkpoint_exit", "is no exit code from 1 to 255")
        check_secrets(self.secrets)

    @property
    def kind(self) -> str:
        """What the command runs; empty where that says nothing, such as a shell's arguments."""
        program = self.argv[0].rpartition("/")[2]
        if _INTERPRETER.fullmatch(program) is None:
            return program
        for argument, following in zip(self.argv[1:], (*self.argv[2:], ""), strict=False):
            if not argument.startswith("-"):
                return argument.rpartition("/")[2]
            if argument == "-m":
                return following
            if argument in ("-c", "-e", "-"):
                break
        return ""

    def filled(self, text: Callable[[str], str]) -> Self:
        """The same, with each of its texts given to `text`."""
        return replace(
            self,
            argv=tuple(map(text, self.argv)),
            env={name: text(value) for name, value in self.env.items()},
            files_in={text(name): content for name, content in self.files_in.items()},
            files_out=tuple(map(text, self.files_out)),
            inputs={text(name): blob for name, blob in self.inputs.items()},
            outputs=tuple(map(text, self.outputs)),
            checkpoint_files=tuple(map(text, self.checkpoint_files)),
        )

    def encode(self) -> bytes:
        """The payload. Raises InvalidInput where it is more than one message carries."""
        return encode_fields("payload", _packed(self), MAX_PAYLOAD_BYTES)

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        return cls(**_unpacked("payload", payload, MAX_PAYLOAD_BYTES, cls))


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a process ended. `exit_code` is minus the signal's number where a signal ended it.
    `outputs` are to be fetched from the worker, which keeps them for an hour at least.
    `executable` are those of the files and outputs that others may run.
    `stdout_sha256` is the digest of all of stdout where stdout is longer than its tail, else empty:
    a quorum compares all that the copies print."""

    exit_code: int
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdout_tail: bytes = b""
    stderr_tail: bytes = b""
    outputs: Mapping[str, Blob] = field(default_factory=dict)
    stdout_sha256: bytes = b""
    executable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.exit_code) is not int or not -64 <= self.exit_code <= 255:
            raise InvalidInput("exit_code", "is not an exit status from -64 to 255")
        _check_files("files", self.files, bytes)
        _check_names("files", self.files)
        _check_files("outputs", self.outputs, Blob)
        _check_names("outputs", self.outputs)
        for name, tail in (("stdout_tail", self.stdout_tail), ("stderr_tail", self.stderr_tail)):
            _check_type(name, tail, bytes)
            if len(tail) > MAX_TAIL_BYTES:
                raise InvalidInput(name, f"has {len(tail)} bytes, of at most {MAX_TAIL_BYTES}")
        _check_type("stdout_sha256", self.stdout_sha256, bytes)
        if len(self.stdout_sha256) not in (0, 32):
            raise InvalidInput("stdout_sha256", "is not a digest of 32 bytes")
        _check_count("executable", self.executable, 2 * MAX_FILES)
        for name in self.executable:
            _check_text("executable", name, MAX_NAME_BYTES)

    def encode(self) -> bytes:
        """Raises InvalidInput where it is more than one message carries."""
        return encode_fields("result", _packed(self), MAX_RESULT_BYTES)

    @classmethod
    def decode(cls, result: bytes) -> Self:
        return cls(**_unpacked("result", result, MAX_RESULT_BYTES, cls))


# Their fields, with the types as they are written.
_KINDS: Final[dict[type, dict[str, str]]] = {
    noun: {each.name: str(each.type) for each in fields(noun)}
    for noun in (ProcessSpec, ProcessResult)
}


# Each is written only where the field that it names has a value.
_OPTIONAL: Final = {
    "checkpoint_files": "checkpoint_files",
    "checkpoint_exit": "checkpoint_files",
    "secrets": "secrets",
    "stdout_sha256": "stdout_sha256",
    "executable": "executable",
}


def _packed(noun: ProcessSpec | ProcessResult) -> dict[str, object]:
    packed: dict[str, object] = {}
    for name, kind in _KINDS[type(noun)].items():
        value = getattr(noun, name)
        if name in _OPTIONAL and not getattr(noun, _OPTIONAL[name]):
            continue
        packed[name] = value
        if kind.startswith("Mapping"):
            blobs = kind == "Mapping[str, Blob]"
            packed[name] = {key: each.pack() if blobs else each for key, each in value.items()}
    return packed


def _unpacked(
    field: str, encoded: bytes, max_bytes: int, noun: type[ProcessSpec | ProcessResult]
) -> dict[str, Any]:
    kinds = _KINDS[noun]
    optional = [name for name in kinds if name in _OPTIONAL]
    names = [name for name in kinds if name not in _OPTIONAL]
    read = decode_fields(field, encoded, max_bytes, names, optional)
    for name in read:
        kind = kinds[name]
        if kind.startswith("tuple"):
            if type(read[name]) is not list:
                raise InvalidInput(name, "is not a list")
            read[name] = tuple(read[name])
        elif kind.startswith("Mapping"):
            if type(read[name]) is not dict:
                raise InvalidInput(name, "is not a map")
            if kind == "Mapping[str, Blob]":
                read[name] = {key: Blob.unpack(each) for key, each in read[name].items()}
    return read


def one_text(name: str, given: str) -> InvalidInput:
    """For a text where texts belong: it would be taken for its characters."""
    return InvalidInput(name, f"{shown(given)} is one text; write a list of texts")


def check_secrets(secrets: Mapping[str, Blob]) -> None:
    """Raises InvalidInput."""
    _check_count("secrets", secrets, MAX_SECRETS)
    for name, blob in secrets.items():
        if not isinstance(name, str) or _SECRET.fullmatch(name) is None:
            problem = "is no name of a secret; use up to 64 of A-Z, a-z, 0-9, _, - and ."
            raise InvalidInput("secrets", f"{shown(name)} {problem}")
        _check_type("secrets", blob, Blob)


def _refuse_secrets(process: ProcessSpec, what: str) -> None:
    if process.secrets:
        raise InvalidInput("secrets", f"are not for {what}; run it by the driver process")


def _check_count(name: str, items: str | Sequence[str] | Mapping[str, Any], most: int) -> None:
    if isinstance(items, str):
        raise one_text(name, items)
    if len(items) > most:
        raise InvalidInput(name, f"has {len(items)} entries, of at most {most}")


def _check_text(name: str, value: object, max_bytes: int) -> None:
    if type(value) is not str:
        raise InvalidInput(name, f"holds {shown(value)} where a text belongs")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(name, f"{shown(value)} is not UTF-8; write or name it so") from None
    if size > max_bytes:
        raise InvalidInput(name, f"holds a text of {size} bytes, of at most {max_bytes}")
    if "\0" in value:
        raise InvalidInput(name, "holds a NUL, which no argument, variable or file name may")


def _check_type(name: str, value: object, kind: type[bytes | Blob]) -> None:
    if type(value) is not kind:
        wanted = "a Blob belongs; put the file first" if kind is Blob else "bytes belong"
        raise InvalidInput(name, f"holds {shown(value)} where {wanted}")


def _check_files(name: str, files: Mapping[str, object], kind: type[bytes | Blob]) -> None:
    _check_count(name, files, MAX_FILES)
    for content in files.values():
        _check_type(name, content, kind)


def _check_names(name: str, files: Iterable[str]) -> None:
    """Refuses names that lead out of the folder, and a name that is another's folder."""
    names: set[str] = set()
    folders: set[str] = set()
    for file in files:
        _check_text(name, file, MAX_NAME_BYTES)
        # Not PurePosixPath: it would quietly mend `a//b` and `./a` into other names.
        parts = file.split("/")
        if any(part in ("", ".", "..") for part in parts):
            problem = f"{file!r} is not a plain relative name such as data/words.txt"
            raise InvalidInput(name, problem)
        if file in names:
            raise InvalidInput(name, f"{file!r} is there twice")
        names.add(file)
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    if names & folders:
        raise InvalidInput(name, f"{min(names & folders)!r} is both a file and a folder")


# -- a process in a container, or in WebAssembly ---------------------------------------------------

# The reference grammar of the OCI distribution specification, without its fine points, which the
# engine knows: [host[:port]/]path[:tag][@digest]. A dash in front would make it an option of a
# program. A path after a colon, `dir:/home/ann/image` or `oci-archive:/srv/backup.tar`, would be
# files of the worker to Podman.
_IMAGE: Final = re.compile(
    r"(?=.{1,512}\Z)[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5}(?=/))?(/[A-Za-z0-9][A-Za-z0-9._-]*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@[A-Za-z0-9+._-]+:[A-Fa-f0-9]{32,128})?"
)


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A command in an image, by Docker or Podman.

        ContainerSpec("docker.io/library/python:3.13-slim", ProcessSpec(("python3", "-V")))

    `image` is named by tag (`alpine:3.22`) or, the same wherever it runs, by digest
    (`alpine@sha256:…`). `process.argv` is what `docker run` takes after the image; the folder
    with its files is where it starts, and all that it can write to but /tmp.
    """

    driver: ClassVar[str] = "container"
    shared: ClassVar[bytes] = b""

    image: str
    process: ProcessSpec

    def __post_init__(self) -> None:
        if not isinstance(self.image, str) or _IMAGE.fullmatch(self.image) is None:
            raise InvalidInput("image", "is not a name of an image such as alpine:3.22")
        _refuse_secrets(self.process, "containers")

    @property
    def kind(self) -> str:
        return f"{self.image} {kind}" if (kind := self.process.kind) else ""

    def filled(self, text: Callable[[str], str]) -> Self:
        return replace(self, image=text(self.image), process=self.process.filled(text))

    def encode(self) -> bytes:
        """The payload. Raises InvalidInput where it is more than one message carries."""
        fields = {"image": self.image, "process": self.process.encode()}
        return encode_fields("payload", fields, MAX_PAYLOAD_BYTES)

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises InvalidInput."""
        fields = decode_fields("payload", payload, MAX_PAYLOAD_BYTES, ("image", "process"))
        return cls(fields["image"], _nested(fields["process"]))


_IMAGE_NAME: Final = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*", re.ASCII)


class ImageSpec(ProcessSpec):
    """An image to be built from a Containerfile, by Docker or Podman: `argv` are the file, by its
    name in the context, and the last part of the image's name. The one input is the context, a
    tar; the one output the image, as `docker save` writes it."""

    driver: ClassVar[str] = "image"
    __slots__ = ()

    def __post_init__(self) -> None:
        ProcessSpec.__post_init__(self)
        if len(self.argv) != 2 or self.env or self.files_in or self.files_out or self.stdin:
            raise InvalidInput("argv", "has to be a Containerfile and a name, and nothing else")
        _check_names("argv", (self.containerfile,))
        if len(self.inputs) != 1 or len(self.outputs) != 1:
            raise InvalidInput("inputs", "has to be one context, for one image")
        if len(self.image) > MAX_NAME_BYTES or _IMAGE_NAME.fullmatch(self.image) is None:
            raise InvalidInput("image", "is not a name such as my-app")

    @property
    def containerfile(self) -> str:
        return self.argv[0]

    @property
    def image(self) -> str:
        return self.argv[1]

    @property
    def context(self) -> str:
        (name,) = self.inputs
        return name

    @property
    def result(self) -> str:
        return self.outputs[0]


_KINDS[ImageSpec] = _KINDS[ProcessSpec]

# The WebAssembly core specification, 5.5.16: every module in the binary format begins so.
_MAGIC: Final = b"\0asm"
MAX_FUEL: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class WasmSpec:
    """A WebAssembly module, as a program of WASI preview 1.

        WasmSpec(Path("count.wasm").read_bytes(), ProcessSpec(("count", "words.txt")), fuel=10**9)

    `process` is what the program sees: `argv[0]` is its own name for itself, its folder is
    `/` and has the files. `fuel` is how many instructions it may take, 0 for no such limit.

    The module travels to a worker once for all tasks that have it, and is compiled there once
    for each lease.
    """

    driver: ClassVar[str] = "wasm"

    module: bytes
    process: ProcessSpec
    fuel: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.module, bytes) or not self.module.startswith(_MAGIC):
            raise InvalidInput("module", "is not WebAssembly in the binary format (.wasm)")
        check_size("module", self.module, MAX_PAYLOAD_BYTES)
        _refuse_secrets(self.process, "WebAssembly")
        if type(self.fuel) is not int or not 0 <= self.fuel <= MAX_FUEL:
            raise InvalidInput("fuel", f"is not a number of instructions from 0 to {MAX_FUEL}")

    @property
    def shared(self) -> bytes:
        return self.module

    @property
    def kind(self) -> str:
        return self.process.kind

    def filled(self, text: Callable[[str], str]) -> Self:
        return replace(self, process=self.process.filled(text))

    def encode(self) -> bytes:
        """The payload. Raises InvalidInput where it is more than one message carries."""
        fields = {"process": self.process.encode(), "fuel": self.fuel}
        return encode_fields("payload", fields, MAX_PAYLOAD_BYTES - len(self.module))

    @classmethod
    def decode(cls, shared: bytes, payload: bytes) -> Self:
        """Raises InvalidInput."""
        fields = decode_fields("payload", payload, MAX_PAYLOAD_BYTES, ("process", "fuel"))
        return cls(shared, _nested(fields["process"]), fields["fuel"])


def _nested(process: object) -> ProcessSpec:
    if type(process) is not bytes:
        raise InvalidInput("process", "is not bytes")
    return ProcessSpec.decode(process)

"""A catalog as a person writes it: TOML, a table for each service.

    [ner-extraction]
    tier = 2
    priority = 2
    port = 8108
    needs = "cpu=0.5,memory=256MiB"
    argv = ["python3", "ner.py"]
    files = { "ner.py" = "services/ner.py" }
    readiness = { http = "/health", every = "2s" }

A key that is not known is refused, with its line. `files` and `call` name files beside the catalog:
who reads it has their content first.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB
from formation_p2p.features.services.core.spec import (
    MAX_SERVICES,
    ONE,
    SOME,
    Check,
    CheckKind,
    Pinned,
    Program,
    Replicas,
    ServiceSpec,
    check_uses,
)
from formation_p2p.machine.core.bounds import shown
from formation_p2p.machine.core.requirements import (
    Requirements,
    parse_requirements,
    requirements_from_mapping,
)
from formation_p2p.workload.core.blob import RAW, Blob, Cid
from formation_p2p.workload.core.scope import parse_scope

# 256 services of 4 KiB each.
MAX_CATALOG_CHARS: Final = MIB
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h)", re.ASCII)
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
# Where the content of files is not asked for: a catalog is checked without its files too.
_UNREAD: Final = Blob(Cid(RAW, bytes(32)), 0)


@dataclass(frozen=True, slots=True)
class Catalog:
    """`files` are those that the services name, as they are written; `secrets` say the service, the
    name of each, and its file."""

    specs: tuple[ServiceSpec, ...]
    files: tuple[str, ...]
    secrets: tuple[tuple[str, str, str], ...] = ()


def services_of(
    text: str,
    contents: Mapping[str, Blob] | None = None,
    home: PeerId | None = None,
    secrets: Mapping[tuple[str, str], Blob] | None = None,
) -> Catalog:
    """The services of a catalog in their order.

    `contents` has the files that they name, by the names in the catalog; without it they stand for
    nothing, and the specs are good for looking at alone. Likewise `secrets`, by their services and
    names. `home` is where pinned services are that
    name no home. Raises InvalidInput, whose `field` says which key of which service, in which line.
    """
    if len(text) > MAX_CATALOG_CHARS:
        raise InvalidInput("catalog", f"is longer than {MAX_CATALOG_CHARS} characters")
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise InvalidInput("catalog", "has too many brackets inside brackets") from None
    except ValueError as error:  # or a number of too many digits
        raise InvalidInput("catalog", f"is not TOML: {error}") from None
    if len(tables) > MAX_SERVICES:
        problem = f"has {len(tables)} services, of {MAX_SERVICES} at most; withdraw some first"
        raise InvalidInput("catalog", problem)
    listed = [name for name, table in tables.items() if isinstance(table, list)]
    if listed:
        problem = "is a list of tables; write one table for each service, under its name"
        raise InvalidInput(listed[0], f"[[{listed[0]}]] {problem}, such as [llm-inference]")
    read = _Reader(text, contents, home, secrets or {})
    specs = tuple(read.service(name, table) for name, table in tables.items())
    check_uses(specs)
    return Catalog(specs, tuple(read.files), tuple(read.secrets))


class _Reader:
    def __init__(
        self,
        text: str,
        contents: Mapping[str, Blob] | None,
        home: PeerId | None,
        put: Mapping[tuple[str, str], Blob],
    ) -> None:
        self._lines = text.splitlines()
        self._contents = contents
        self._home = home
        self._put = put
        self.files: dict[str, None] = {}
        self.secrets: list[tuple[str, str, str]] = []

    def service(self, name: str, table: object) -> ServiceSpec:
        with self._inside(name, ""):
            given = _table("service", table)
            _refuse_unknown(given, KEYS)
            for key in ("tier", "port"):
                if key not in given:
                    raise InvalidInput(key, "is missing; every service has one")
        fields: dict[str, Any] = {}
        for key, read in _PLAIN.items():
            if key in given:
                with self._inside(name, key):
                    fields[_NAMES.get(key, key)] = read(given[key])
        for key in ("readiness", "liveness"):
            if key in given:
                with self._inside(name, key):
                    fields[key] = _check(given[key])
        if "pinned" in given:
            with self._inside(name, "pinned"):
                fields["pinned"] = self._pinned(given["pinned"])
                fields.setdefault("replicas", ONE)
        with self._inside(name, "argv"):
            fields["program"] = self._program(name, given)
        with self._inside(name, ""):
            return ServiceSpec(name=name, **fields)

    def _program(self, service: str, given: dict[str, Any]) -> Program:
        driver = "python" if "call" in given else "container" if "image" in given else "process"
        files = _texts_by_name("files", given.get("files", {}))
        return Program(
            _text("driver", given.get("driver", driver)),
            _texts("argv", given.get("argv", [])),
            tuple(_texts_by_name("variables", given.get("variables", {})).items()),
            tuple((name, self._content(file)) for name, file in files.items()),
            _texts("environment", given.get("environment", [])),
            _text("image", given.get("image", "")),
            self._content(_text("call", given["call"])) if "call" in given else None,
            tuple(self._secrets(service, given.get("secrets", []))),
        )

    def _secrets(self, service: str, value: object) -> Iterator[tuple[str, Blob]]:
        for each in _texts("secrets", value):
            name, equals, file = each.partition("=")
            if not equals or not file:
                problem = "is none; write its name and its file, like TOKEN=token.txt"
                raise InvalidInput("secrets", f"{shown(each)} {problem}")
            self.secrets.append((service, name, file))
            yield name, self._put.get((service, name), _UNREAD)

    def _content(self, file: str) -> Blob:
        self.files[file] = None
        if self._contents is None:
            return _UNREAD
        if file not in self._contents:
            raise InvalidInput("files", f"{shown(file)} is not there; name a file beside the TOML")
        return self._contents[file]

    def _pinned(self, value: object) -> Pinned:
        given = _table("pinned", value)
        _refuse_unknown(given, ("volume", "home"))
        home = given.get("home", self._home)
        if home is None and self._contents is None:
            home = _ANY_HOME
        if home is None:
            problem = "is missing; name the peer whose disk has the data, as its id"
            raise InvalidInput("home", problem)
        return Pinned(_text("volume", given.get("volume", "")), PeerId(_text("home", home)))

    @contextmanager
    def _inside(self, name: str, key: str) -> Iterator[None]:
        """Says of a refusal in which service and line it is."""
        try:
            yield
        except InvalidInput as error:
            first = error.field.split(".")[0]
            line = self._line_of(name, key, first)
            raise InvalidInput(f"line {line}: {name}: {error.field}", error.problem) from None

    def _line_of(self, name: str, *keys: str) -> int:
        """Where a table stands, or one of its keys."""
        header = re.compile(rf"\s*\[\s*[\"']?{re.escape(name)}[\"']?\s*[].]")
        starts = [n for n, line in enumerate(self._lines) if header.match(line)]
        start = starts[0] if starts else 0
        for n, line in enumerate(self._lines[start + 1 :], start + 1):
            if line.lstrip().startswith("[") and not header.match(line):
                break
            if any(key and re.match(rf"\s*[\"']?{re.escape(key)}\b", line) for key in keys):
                return n + 1
        return start + 1


# Of a catalog that is only looked at.
_ANY_HOME: Final = "12D3KooWMbbPVGsZYh3ChQjue712NHHGNybRRXwnuSpezYjGbCDS"


def _check(value: object) -> Check:
    given = _table("check", value)
    kinds = [kind for kind in CheckKind if kind.value in given]
    if len(kinds) != 1:
        problem = 'is one of http = "/path", tcp = true and exec = ["program"]; write one of them'
        raise InvalidInput("check", problem)
    (kind,) = kinds
    _refuse_unknown(given, (kind.value, "every", "within", "failures", "successes"))
    what = given[kind.value]
    fields: dict[str, Any] = {}
    if kind is CheckKind.HTTP:
        fields["path"] = _text("http", what)
    elif kind is CheckKind.EXEC:
        fields["argv"] = _texts("exec", what)
    elif what is not True:
        raise InvalidInput("tcp", f"{shown(what)} is not true; a tcp check takes no more")
    for key, name in (("every", "interval_ms"), ("within", "timeout_ms")):
        if key in given:
            fields[name] = _duration_ms(key, given[key])
    for key in ("failures", "successes"):
        if key in given:
            fields[key] = given[key]
    return Check(kind, **fields)


def _replicas(value: object) -> Replicas:
    given = _table("replicas", value)
    _refuse_unknown(given, ("min", "target", "max"))
    few = [each for each in given.values() if type(each) is int]
    least = given.get("min", min((SOME.minimum, *few)))
    target = given.get("target", max(least, SOME.target) if type(least) is int else least)
    most = given.get("max", max(target, SOME.maximum) if type(target) is int else target)
    return Replicas(least, target, most)


def _needs(value: object) -> Requirements:
    if isinstance(value, str):
        return parse_requirements(value)
    return requirements_from_mapping(_table("needs", value))


def _seconds(field: str) -> Callable[[object], int]:
    return lambda value: -(-_duration_ms(field, value) // 1000)


def _duration_ms(field: str, value: object) -> int:
    """Of `30s`, `500ms`, `2m`, `1h`, or a number of seconds."""
    if type(value) is int and 0 <= value <= 10**6:
        return value * 1000
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidInput(field, f"{shown(value)} is not a time; write it like 30s, 500ms or 2m")
    return int(float(match[1]) * _UNITS_MS[match[2]])


def _table(field: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(field, f"{shown(value)} is not a table")
    return value


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(field, f"{shown(value)} is not a text; write it in quotes")
    return value


def _texts(field: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidInput(field, f"{shown(value)} is not a list of texts")
    return tuple(_text(field, each) for each in value)


def _texts_by_name(field: str, value: object) -> dict[str, str]:
    return {name: _text(field, each) for name, each in _table(field, value).items()}


def _refuse_unknown(given: Mapping[str, object], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise InvalidInput(key, f"is not a key here; there are {', '.join(known)}")


def _same(value: Any) -> Any:
    return value


_PLAIN: Final[dict[str, Callable[[Any], Any]]] = {
    "version": _same,
    "tier": _same,
    "priority": _same,
    "port": _same,
    "needs": _needs,
    "replicas": _replicas,
    "start_grace": _seconds("start_grace"),
    "drain": _seconds("drain"),
    "max_requests": _same,
    "scope": lambda value: parse_scope(_text("scope", value)),
    "uses": lambda value: _texts("uses", value),
}
_NAMES: Final = {"start_grace": "start_grace_s", "drain": "drain_s"}
KEYS: Final = (
    *_PLAIN,
    *("driver", "argv", "variables", "files", "environment", "image", "call", "secrets"),
    *("readiness", "liveness", "pinned"),
)

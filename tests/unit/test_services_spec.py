"""What a service may be asked to be, and what is refused, each with the field named."""

from dataclasses import replace
from typing import Any

import pytest

from formation_p2p.core.errors import InvalidInput, ProtocolViolation
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import GIB
from formation_p2p.features.services.core import tending
from formation_p2p.features.services.core.messages import (
    ANY,
    MAX_MESSAGE_BYTES,
    MAX_WHY_CHARS,
    OpenService,
    ServiceError,
    ServiceMessage,
    ServiceOpened,
    ServiceRefusal,
    ServiceRefused,
    pack,
    parse,
)
from formation_p2p.features.services.core.spec import (
    MAX_FILES,
    MAX_PACKAGES,
    ONE,
    TIER_OF_TYPE,
    TYPE_OF_TIER,
    Check,
    CheckKind,
    Pinned,
    Program,
    Replicas,
    ServiceSpec,
    WorkerType,
    check_uses,
)
from formation_p2p.features.services.core.toml_spec import KEYS, MAX_CATALOG_CHARS, services_of
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core import codec
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.process import MAX_SECRET_BYTES
from formation_p2p.workload.core.scope import Scope
from tests.support.documents import first_cells

ALICE = Identity.from_seed(b"a" * 32).peer_id
SCRIPT = Blob(Cid(RAW, digest_of(b"print()")), 7)
SERVER = Program(argv=("python3", "serve.py"))


def spec(name: str = "notes", **others: Any) -> ServiceSpec:
    return ServiceSpec(**{"name": name, "tier": 2, "port": 8100, "program": SERVER, **others})


def test_a_tier_is_a_type_of_worker() -> None:
    types = [spec(tier=tier).worker_type for tier in (1, 2, 3, 4)]
    assert types == [WorkerType.GPU, WorkerType.CPU, WorkerType.STORAGE, WorkerType.EDGE]
    assert {TYPE_OF_TIER[tier]: tier for tier in TYPE_OF_TIER} == TIER_OF_TYPE


def test_the_needs_are_of_the_programs_driver() -> None:
    assert spec().needs.driver == "process"
    assert spec(needs=Requirements(driver="process")).needs.driver == "process"
    with pytest.raises(InvalidInput, match=r"needs\.driver: wasm is needed"):
        spec(needs=Requirements(driver="wasm"))


def test_names_of_a_program_have_one_order() -> None:
    program = Program(argv=("x",), variables=(("B", "2"), ("A", "1")))
    assert program.variables == (("A", "1"), ("B", "2"))
    files = (("b", SCRIPT), ("a", SCRIPT))
    assert [name for name, _ in Program(argv=("x",), files=files).files] == ["a", "b"]


def test_packages_are_lines_of_a_requirements_file() -> None:
    assert Program(argv=("x",), environment=(" numpy>=2 ",)).environment == ("numpy>=2",)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "Notes"}, "service: 'Notes' is not a name"),
        ({"name": ""}, "service: '' is not a name"),
        ({"version": 0}, "version: 0 is less than 1"),
        ({"tier": 5}, "tier: 5 is more than allowed; write at most 4"),
        ({"priority": 0}, "priority: 0 is less"),
        ({"port": 70_000}, "port: 70000 is more"),
        ({"start_grace_s": -1}, "start_grace: -1 is less"),
        ({"drain_s": 4000}, "drain: 4000 is more"),
        ({"max_requests": 0}, "max_requests: 0 is less"),
        ({"scope": 3}, "scope: 3 is no scope"),
        ({"uses": ("notes",)}, "uses: notes uses itself"),
        ({"uses": ("a", "a")}, "uses: names a service twice"),
        ({"uses": ("A",)}, "uses: 'A' is not a name"),
        ({"uses": tuple("abcdefghi")}, "uses: names more than 8 services"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        spec(**fields)
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"driver": "wasm", "argv": ("x",)}, "driver: 'wasm' cannot listen"),
        ({}, "argv: is what process and container run"),
        ({"driver": "python"}, "call: is what the driver python runs"),
        ({"argv": ("x",), "call": SCRIPT}, "call: is what"),
        ({"argv": ("x",), "image": "alpine:3"}, "image: is what the driver container runs"),
        ({"driver": "container", "argv": ("x",)}, "image: is what"),
        ({"driver": "container", "argv": ("x",), "image": "-v"}, "image: is not a name"),
        ({"driver": "python", "call": SCRIPT, "argv": ("x",)}, "argv: is what"),
        ({"argv": ("\x1b[2J",)}, "argv: '\\x1b[2J' is no text that prints"),
        ({"argv": ("x",) * 65}, "argv: there are more than 64"),
        ({"argv": ("x",), "variables": (("A",),)}, "variables: a tuple is not a tuple of"),
        ({"argv": ("x",), "variables": (("A", "1"), ("A", "2"))}, "variables: one is given twice"),
        ({"argv": ("x",), "variables": (("A=", "1"),)}, "env: 'A=' is not a name"),
        ({"argv": ("x",), "files": (("../x", SCRIPT),)}, "inputs: '../x' is not a plain"),
        (
            {"argv": ("x",), "files": tuple((str(n), SCRIPT) for n in range(MAX_FILES + 1))},
            "files: there are more than 16",
        ),
        ({"argv": ("x",), "environment": ("--pre",)}, "env: '--pre' is not a requirement"),
        ({"argv": ("x",), "environment": ("a",) * (MAX_PACKAGES + 1)}, "environment: names more"),
    ],
)
def test_a_program_names_what_its_driver_runs(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Program(**fields)
    assert str(refused.value).startswith(problem)


def test_an_image_and_a_call_are_programs_too() -> None:
    assert Program(driver="container", argv=("serve",), image="alpine:3.22").image == "alpine:3.22"
    assert Program(driver="python", call=SCRIPT).call == SCRIPT


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"kind": "ping"}, "check: 'ping' is none of http, tcp, exec"),
        ({"path": "health"}, "check.path: 'health' is not a path"),
        ({"path": "/a b"}, "check.path: '/a b' is not a path"),
        ({"kind": CheckKind.EXEC}, "check.argv: is what an exec check runs"),
        ({"argv": ("true",)}, "check.argv: is what an exec check runs"),
        ({"interval_ms": 99}, "check.interval: 99 is less"),
        ({"timeout_ms": 0}, "check.timeout: 0 is less"),
        ({"failures": 0}, "check.failures: 0 is less"),
        ({"successes": 101}, "check.successes: 101 is more"),
    ],
)
def test_a_check_is_one_that_can_be_made(fields: dict[str, Any], problem: str) -> None:
    assert Check(CheckKind.EXEC, argv=("true",)).failures == 3
    with pytest.raises(InvalidInput) as refused:
        Check(**fields)
    assert str(refused.value).startswith(problem)


def test_replicas_are_in_order() -> None:
    with pytest.raises(InvalidInput, match=r"replicas\.max: 1 is less than 2"):
        Replicas(2, 2, 1)
    with pytest.raises(InvalidInput, match=r"replicas\.target: 4 is more"):
        Replicas(1, 4, 3)


def test_a_pinned_service_has_one_home_and_one_replica() -> None:
    pinned = Pinned("data", ALICE)
    assert spec(pinned=pinned, replicas=ONE).pinned == pinned
    with pytest.raises(InvalidInput, match="replicas: of a pinned service are one"):
        spec(pinned=pinned)
    with pytest.raises(InvalidInput, match=r"pinned\.home: 'alice' is not a peer id"):
        replace(pinned, home="alice")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"pinned\.volume: '\.\.' is not a name"):
        replace(pinned, volume="..")


def test_services_that_use_each_other_in_a_circle_are_refused() -> None:
    proxy, model = spec("proxy", uses=("model", "notes")), spec("model", uses=("store",))
    check_uses([proxy, model, spec("store"), spec("notes", uses=("store",))])
    with pytest.raises(InvalidInput, match="model -> store -> model is a circle; take one"):
        check_uses([proxy, model, spec("store", uses=("model",))])


# A catalog in TOML: what it may say, and what is refused, with the line and the key.

BOB = Identity.from_seed(b"b" * 32).peer_id

FULL = f"""
[llm]
version = 4
tier = 1
priority = 2
port = 8105
needs = "cpu=2,gpu.memory=8GB"
argv = ["python3", "llm.py"]
variables = {{ MODEL = "tiny" }}
files = {{ "llm.py" = "services/llm.py" }}
environment = ["numpy>=2"]
replicas = {{ min = 2, max = 5 }}
readiness = {{ http = "/health", every = "500ms", within = "0.25s", failures = 2, successes = 3 }}
liveness = {{ exec = ["test", "-e", "alive"], every = 60 }}
start_grace = "1500ms"
drain = "2m"
max_requests = 8
scope = "org"
uses = ["redis"]

[redis]
tier = 3
port = 6379
needs = {{ memory = "1GiB" }}
image = "redis:8"
argv = ["redis-server"]
readiness = {{ tcp = true }}
pinned = {{ volume = "redis", home = "{BOB}" }}

[notes]
tier = 2
port = 8100
call = "notes.py:main"
"""


def test_a_catalog_says_all_that_a_spec_does() -> None:
    catalog = services_of(FULL, {"services/llm.py": SCRIPT, "notes.py:main": SCRIPT})
    llm, redis, notes = catalog.specs
    assert catalog.files == ("services/llm.py", "notes.py:main")
    assert (llm.name, llm.version, llm.tier, llm.priority, llm.port) == ("llm", 4, 1, 2, 8105)
    assert (llm.needs.cpu_milli, llm.needs.gpu_count) == (2000, 1)
    assert llm.program.argv == ("python3", "llm.py")
    assert llm.program.variables == (("MODEL", "tiny"),)
    assert llm.program.files == (("llm.py", SCRIPT),)
    assert llm.program.environment == ("numpy>=2",)
    assert llm.replicas == Replicas(2, 2, 5)
    assert llm.readiness == Check(CheckKind.HTTP, "/health", (), 500, 250, 2, 3)
    assert llm.liveness == Check(CheckKind.EXEC, "/", ("test", "-e", "alive"), 60_000)
    assert (llm.start_grace_s, llm.drain_s, llm.max_requests) == (2, 120, 8)
    assert (llm.scope, llm.uses) == (Scope.ORG, ("redis",))
    assert redis.needs.memory_bytes == GIB
    assert redis.program.image == "redis:8"
    assert redis.pinned is not None
    assert (redis.pinned.volume, redis.pinned.home) == ("redis", BOB)
    assert (redis.replicas, redis.readiness) == (ONE, Check(CheckKind.TCP))
    assert (notes.program.driver, notes.program.call) == ("python", SCRIPT)


def test_secrets_are_named_with_their_files() -> None:
    catalog = services_of(a("secrets = ['TOKEN=t.txt', 'A=x=y']"), {}, None, {("a", "A"): SCRIPT})
    assert catalog.secrets == (("a", "TOKEN", "t.txt"), ("a", "A", "x=y"))
    secrets = dict(catalog.specs[0].program.secrets)
    assert (list(secrets), secrets["A"], catalog.files) == (["A", "TOKEN"], SCRIPT, ())


PINNED = '[a]\ntier = 3\nport = 1\nargv = ["a"]\npinned = { volume = "data" }\n'


def test_a_pinned_service_without_a_home_is_where_the_caller_says() -> None:
    (spec,) = services_of(PINNED, {}, ALICE).specs
    assert spec.pinned is not None
    assert spec.pinned.home == ALICE
    with pytest.raises(InvalidInput, match="line 5: a: home: is missing; name the peer"):
        services_of(PINNED, {})
    assert len(services_of(PINNED).specs) == 1  # only to look at
    assert services_of(FULL).files == ("services/llm.py", "notes.py:main")


def a(more: str) -> str:
    return f'[a]\ntier = 2\nport = 1\n{more}\nargv = ["a"]\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a]\ntier = ", "catalog: is not TOML: Invalid value"),
        ("[[service]]\nname = 'a'", "service: [[service]] is a list of tables; write one table"),
        ("a = " + "[" * 2000, "catalog: "),
        ("#" * (MAX_CATALOG_CHARS + 1), "catalog: is longer than 1048576"),
        ("".join(f"[s{n}]\n" for n in range(257)), "catalog: has 257 services, of 256 at most"),
        ("a = 3", "line 1: a: service: 3 is not a table"),
        ('[a]\nport = 1\nargv = ["a"]', "line 1: a: tier: is missing"),
        ("[a]\ntier = 2\n", "line 1: a: port: is missing"),
        ("[A]\ntier = 2\nport = 1\nargv = ['a']", "line 1: A: service: 'A' is not a name"),
        (a("replica = 3"), "line 4: a: replica: is not a key here; there are version, tier"),
        (a("version = '1'"), "line 4: a: version: '1' is not a whole number"),
        (a("needs = 'cpus=1'"), "line 4: a: cpus: is not a requirement"),
        (a("needs = 3"), "line 4: a: needs: 3 is not a table"),
        (a("replicas = 3"), "line 4: a: replicas: 3 is not a table"),
        (a("replicas = { most = 3 }"), "line 4: a: most: is not a key here"),
        (a("replicas = { min = 'x' }"), "line 4: a: replicas.min: 'x' is not a whole number"),
        (a("replicas = { target = 'x' }"), "line 4: a: replicas.max: 'x' is not a whole"),
        (a("readiness = '/'"), "line 4: a: check: '/' is not a table"),
        (a("readiness = { every = '1s' }"), "line 4: a: check: is one of http"),
        (a("readiness = { tcp = true, http = '/' }"), "line 4: a: check: is one of http"),
        (a("readiness = { tcp = 8 }"), "line 4: a: tcp: 8 is not true"),
        (a("readiness = { http = 8 }"), "line 4: a: http: 8 is not a text"),
        (a("readiness = { http = 'x' }"), "line 4: a: check.path: 'x' is not a path"),
        (a("readiness = { exec = 'x' }"), "line 4: a: exec: 'x' is not a list of texts"),
        (a("readiness = { http = '/', path = '/' }"), "line 4: a: path: is not a key here"),
        (a("readiness = { http = '/', every = '1 s' }"), "line 4: a: every: '1 s' is not a time"),
        (a("readiness = { http = '/', every = -1 }"), "line 4: a: every: -1 is not a time"),
        (a("liveness = { http = '/', failures = 0 }"), "line 4: a: check.failures: 0 is less"),
        (a("drain = 'soon'"), "line 4: a: drain: 'soon' is not a time"),
        (a("scope = 'world'"), "line 4: a: scope: 'world' is none of"),
        (a("secrets = ['A']"), "line 4: a: secrets: 'A' is none; write its name and its file"),
        (a("secrets = ['A=']"), "line 4: a: secrets: 'A=' is none"),
        (a("secrets = ['A B=c']"), "line 4: a: secrets: 'A B' is no name of a secret"),
        (a("secrets = ['A=b', 'A=c']"), "line 4: a: secrets: one is given twice"),
        (a("uses = ['a']"), "line 4: a: uses: a uses itself"),
        (a("variables = { A = 1 }"), "line 4: a: variables: 1 is not a text"),
        (a("driver = 'wasm'"), "line 4: a: driver: 'wasm' cannot listen"),
        (a("pinned = { volume = 'x', disk = 1 }"), "line 4: a: disk: is not a key here"),
        (a("files = { x = 'x.py' }"), "line 4: a: files: 'x.py' is not there"),
        (
            "['b']\ntier = 2\nport = 1\nargv = ['b']\n\n" + a("drain = 'x'"),
            "line 9: a: drain: 'x' is not a time",
        ),
        ("[a]\nport = 1\n[b]\ntier = 2\nport = 1\n", "line 1: a: tier: is missing"),
        (
            a("uses = ['b']") + "[b]\ntier = 2\nport = 1\nargv = ['b']\nuses = ['a']",
            "uses: a -> b -> a is a circle",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_key(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        services_of(text, {}, ALICE)
    assert str(refused.value).startswith(problem)


def test_a_key_of_a_table_of_its_own_is_found_in_there() -> None:
    text = "[a]\ntier = 2\nport = 1\nargv = ['a']\n[a.readiness]\nhttp = '/'\nevery = 'x'\n"
    with pytest.raises(InvalidInput, match="line 7: a: every: 'x' is not a time"):
        services_of(text, {})


# What a caller and the worker of a service say to each other.


@pytest.mark.parametrize(
    "message",
    [
        OpenService("llm-inference", b"grant", ANY),
        OpenService("x" * 40, bytes(MAX_GRANT_BYTES), bytes(32)),
        ServiceOpened(),
        *(ServiceRefused(each, "because") for each in ServiceRefusal),
    ],
)
def test_messages_are_read_as_they_were_written(message: ServiceMessage) -> None:
    assert parse(pack(message)) == message
    assert len(pack(message)) <= MAX_MESSAGE_BYTES


def test_a_reason_is_cut_to_what_is_read() -> None:
    long = ServiceRefused(ServiceRefusal.BUSY, "x" * 1000)
    assert parse(pack(long)) == replace(long, why="x" * MAX_WHY_CHARS)


@pytest.mark.parametrize(
    "said",
    [
        [1, "Upper", b"", b""],
        [1, "../etc", b"", b""],
        [1, "x", bytes(MAX_GRANT_BYTES + 1), b""],
        [1, "x", b"", bytes(31)],
        [1, "x", b"", "any"],
        [1, "x", b""],
        [3, "what", "why"],
        [3, 1, "why"],
        [4],
        7,
    ],
)
def test_anything_else_is_no_message(said: object) -> None:
    with pytest.raises(ProtocolViolation):
        parse(codec.encode(said))


GRANT = bytes(MAX_GRANT_BYTES)
CID = Cid(RAW, bytes(32))


@pytest.mark.parametrize(
    "message",
    [
        tending.ReadLog("x" * 40, GRANT, 50, 1_700_000_000, follows=True),
        tending.RunBeside("notes", GRANT, ("sh", "-c", "x" * tending.MAX_ARGUMENT_CHARS)),
        tending.AskSecret("notes", GRANT, CID),
        tending.AskSecret("", b"", CID),
        tending.SecretBox(bytes(MAX_SECRET_BYTES + 48)),
        tending.Tended(),
        tending.Untended("because"),
    ],
)
def test_questions_about_replicas_are_read_as_they_were_written(
    message: tending.TendingMessage,
) -> None:
    assert tending.parse(tending.pack(message)) == message
    assert len(tending.pack(message)) <= tending.MAX_MESSAGE_BYTES
    assert repr(GRANT) not in repr(message)


@pytest.mark.parametrize(
    "said",
    [
        [1, "Upper", b"", 1, 0, True],
        [1, "notes", b"", -1, 0, True],
        [2, "notes", b"", ["x" * 1025]],
        [2, "notes", b"", ["x"] * 65],
        [5, "Upper", b"", CID.to_bytes()],
        [5, "notes", b"", b"x"],
        [6, bytes(9000)],
        [7],
    ],
)
def test_anything_else_is_no_question(said: object) -> None:
    with pytest.raises(ProtocolViolation):
        tending.parse(codec.encode(said))


def test_what_was_refused_never_ran() -> None:
    assert ServiceError("busy", ServiceRefusal.BUSY).never_ran
    assert ServiceError("not dialled", never_ran=True).never_ran
    assert not ServiceError("broken amid the answer").never_ran


def test_the_document_has_all_keys_of_a_catalog() -> None:
    assert first_cells("catalogs") == set(KEYS)

"""A catalog in TOML: what it may say, and what is refused, with the line and the key."""

from __future__ import annotations

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import GIB
from formation_p2p.features.services.core.spec import ONE, Check, CheckKind, Replicas
from formation_p2p.features.services.core.toml_spec import MAX_CATALOG_CHARS, services_of
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.scope import Scope

ALICE = Identity.from_seed(b"a" * 32).peer_id
BOB = Identity.from_seed(b"b" * 32).peer_id
SCRIPT = Blob(Cid(RAW, digest_of(b"print()")), 7)

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

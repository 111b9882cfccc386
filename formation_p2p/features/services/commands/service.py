"""`formation service`: publish services, end them, and look at what they print."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from formation_p2p.command import flags
from formation_p2p.command.command import CommandGroup
from formation_p2p.command.exits import DONE, UNPLACEABLE
from formation_p2p.command.flags import argument, option
from formation_p2p.command.node_options import Asking
from formation_p2p.command.words import counted, put, say
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.identity import PeerId
from formation_p2p.features.services.commands.local import publish, read_services
from formation_p2p.features.services.commands.replicas import NAME, execute, logs
from formation_p2p.features.services.core.signed_spec import (
    MAX_SPEC_TTL_S,
    decode_spec,
    encode_spec,
)
from formation_p2p.features.services.core.spec import Replicas, ServiceSpec, check_service_name
from formation_p2p.features.services.core.toml_spec import services_of

if TYPE_CHECKING:
    from formation_p2p.command.local.client import Link
    from formation_p2p.features.services.core.events import ServicesRead, SpecPublished
    from formation_p2p.workload.core.blob import Blob

# Versions that were published from here, so that they can be published again.
PUBLISHED: Final = "published"
# Where the command's own node alone has the files of a service, it stays this long at most for a
# worker to fetch them.
FETCH_S: Final = 60.0
# A service that has not changed gets a new version where less of its life is left: half of it.
RENEWED_S: Final = MAX_SPEC_TTL_S / 2
_LOOK_S: Final = 1.0

app: Final = CommandGroup(
    "service", help="Publish services, end them, see what they print.", no_args_is_help=True
)

APPLY_EPILOG: Final = """
\b
Examples:
  formation service apply examples/catalog.toml
  formation service apply notes.toml --pin-to archive

A service whose table says no version gets the one after the newest that the network has, if it has
changed. Files that a service names are kept by the node that runs on this machine (a gate, a worker
or an agent), and by each worker that runs it. docs/reference/catalogs.md has the keys.
"""
NAMES: Final = argument("NAME...", "Services by their names.", default=...)


@app.command(epilog=APPLY_EPILOG)
def apply(
    file: Path = argument("FILE", "A catalog in TOML.", default=...),
    pin_to: str | None = option(
        "--pin-to",
        "PEER",
        "The home of pinned services whose table names none: a peer's id or name; by default the "
        "worker of this machine.",
    ),
    *,
    asking: Asking,
) -> None:
    """Publish the services of a file: workers find them, and run what is missing.

    A service that is there already is replaced, if its version is higher: one replica after the
    other, each new one ready before an old one stops.
    """
    text = _read(file)
    read = services_of(text)  # what is wrong in the file is said before anything is done
    named, hidden = read.files, read.secrets
    every = (*named, *(each for _, _, each in hidden))
    missing = [each for each in every if not (file.parent / each).is_file()]
    if missing:
        raise InvalidInput("files", f"{file.parent / missing[0]} is not there")

    async def publish(node: Link, place: Path) -> int:
        pinned = _pinned_at(place, pin_to)
        contents: dict[str, Blob] = {}
        for each in named:
            contents[each] = await node.put((file.parent / each).resolve())
        known = await read_services(node)
        sealed: dict[tuple[str, str], Blob] = {}
        for service, name, each in hidden:
            content = (file.parent / each).read_bytes()
            before = _secret_in(known, service, name)
            sealed[service, name] = await node.put_secret(content, service=service, known=before)
        specs = services_of(text, contents, pinned, sealed).specs
        versioned = [_versioned(spec, known, "version" in text) for spec in specs]
        done = await _publish(node, place, versioned, as_json=asking.as_json)
        if every and _is_own(node):
            await _fetched(node, [spec.name for spec in versioned])
        return done

    asking.ask(publish)


@app.command(name="rm")
def remove(
    names: list[str] = NAMES,
    *,
    asking: Asking,
) -> None:
    """End services: their replicas finish what they serve, and none is started any more."""

    async def withdraw(node: Link, place: Path) -> int:
        known = await read_services(node)
        specs = [_known(name, known) for name in names]
        ends = [replace(x, version=x.version + 1, withdrawn=True) for x in specs]
        return await _publish(node, place, ends, as_json=asking.as_json)

    asking.ask(withdraw)


@app.command()
def rollback(
    name: str = NAME,
    version: int | None = option(
        "--version", "N", "The version to publish; by default the one before the newest."
    ),
    *,
    asking: Asking,
) -> None:
    """Publish an earlier version of a service again, as its newest.

    The versions are those that were published from this home.
    """

    async def publish(node: Link, place: Path) -> int:
        kept = _kept(place, name)
        newest = _known(name, await read_services(node)).version
        earlier = [n for n in kept if n < newest and (version is None or n == version)]
        if not earlier:
            have = ", ".join(map(str, sorted(kept))) or "none"
            problem = f"this home published no such version of {name}; it has {have}"
            raise InvalidInput("version", problem)
        spec = replace(kept[max(earlier)], version=newest + 1)
        say(f"formation: {name} is again what it was in version {max(earlier)}")
        return await _publish(node, place, [spec], as_json=asking.as_json)

    asking.ask(publish)


@app.command()
def drain(
    name: str = NAME,
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Have the replica of this machine finish what it serves, and end; another worker takes its
    place."""
    from formation_p2p.command.node_socket import answers_of
    from formation_p2p.machine.home_path import home_path

    check_service_name("service", name)
    told = answers_of(home_path(home), "drain", service=name)
    if not any(each["draining"] for each in told):
        raise LocalError(f"no worker of this machine runs {name}; `formation services` says where")
    if as_json:
        put({"service": name, "draining": True})
    else:
        print(f"{name} drains")


@app.command()
def scale(
    name: str = NAME,
    number: int = argument("N", "The number of replicas.", default=...),
    *,
    asking: Asking,
) -> None:
    """Set the number of replicas of a service. Load adds more, up to `max` of its spec.

    Replicas that run continue: missing ones are started, and surplus ones are ended.
    """

    async def publish(node: Link, place: Path) -> int:
        spec = _known(name, await read_services(node))
        replicas = Replicas(number, number, max(number, spec.replicas.maximum))
        scaled = replace(spec, version=spec.version + 1, replicas=replicas)
        return await _publish(node, place, [scaled], as_json=asking.as_json)

    asking.ask(publish)


app.command()(logs)
app.command(name="exec")(execute)


async def _publish(node: Link, place: Path, specs: Sequence[ServiceSpec], *, as_json: bool) -> int:
    """And tell of each; whether all of them are held."""
    done = DONE
    for spec in specs:
        told = await publish(node, spec)
        if told.stored:
            _keep(place, spec)
        else:
            done = UNPLACEABLE
        if as_json:
            held = {"stored": told.stored, "why": told.why}
            put(
                {"service": spec.name, "version": spec.version, "withdrawn": spec.withdrawn, **held}
            )
        else:
            print(_in_words(spec, told), flush=True)
    return done


def _in_words(spec: ServiceSpec, told: SpecPublished) -> str:
    what = f"{spec.name} version {spec.version}"
    if not told.stored:
        return f"{what} is not published: {told.why or 'no peer holds it'}"
    why = f"; {told.why}" if told.why else ""
    ends = ", and ends" if spec.withdrawn else ""
    return f"{what} is held by {counted(told.stored, 'peer')}{ends}{why}"


def _versioned(spec: ServiceSpec, known: ServicesRead, says_version: bool) -> ServiceSpec:
    """With the next version, where the file says none and the service has changed, or would end
    before long: of one that stays the same the life is not sure to begin anew."""
    signed = next((each for each in known.catalog if each.spec.name == spec.name), None)
    if signed is None or (says_version and spec.version > signed.spec.version):
        return spec
    before = signed.spec
    if _same(spec, before) and signed.expires_unix_s - time.time() > RENEWED_S:
        return before
    return replace(spec, version=before.version + 1)


def _same(spec: ServiceSpec, other: ServiceSpec) -> bool:
    """But for the version, and for who has the files."""
    return _bare(spec) == _bare(other)


def _bare(spec: ServiceSpec) -> ServiceSpec:
    files = tuple((name, replace(blob, sources=())) for name, blob in spec.program.files)
    call = spec.program.call and replace(spec.program.call, sources=())
    secrets = tuple((name, replace(blob, sources=())) for name, blob in spec.program.secrets)
    bare = replace(spec.program, files=files, call=call, secrets=secrets)
    return replace(spec, version=1, program=bare)


def _secret_in(known: ServicesRead, service: str, name: str) -> Blob | None:
    """As it was published."""
    specs = (each.spec for each in known.catalog if each.spec.name == service)
    return next((dict(spec.program.secrets).get(name) for spec in specs), None)


def _known(name: str, known: ServicesRead) -> ServiceSpec:
    for each in known.catalog:
        if each.spec.name == name:
            return each.spec
    names = ", ".join(sorted(each.spec.name for each in known.catalog)) or "none"
    raise InvalidInput("service", f"{name} is not in the catalog; there are {names}")


def _keep(place: Path, spec: ServiceSpec) -> None:
    folder = place / PUBLISHED
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / f"{spec.name}-{spec.version}.spec").write_bytes(encode_spec(spec))


def _kept(place: Path, name: str) -> dict[int, ServiceSpec]:
    check_service_name("service", name)
    found = {}
    for path in (place / PUBLISHED).glob(f"{name}-*.spec"):
        spec = decode_spec(path.read_bytes())
        if spec.name == name and not spec.withdrawn:
            found[spec.version] = spec
    return found


def _pinned_at(place: Path, pin_to: str | None) -> PeerId:
    from formation_p2p.machine.home import Home
    from formation_p2p.machine.names import peer_meant
    from formation_p2p.state.member_file import learn_names

    if pin_to is None:
        return Home(place).identity().peer_id
    learn_names(place)
    peer = peer_meant(pin_to, field="pin-to")
    if peer is None:
        raise InvalidInput("pin-to", f"{pin_to!r} is neither a peer id nor a name known here")
    return peer


def _is_own(node: Link) -> bool:
    from formation_p2p.command.local.client import LocalNode

    return not isinstance(node, LocalNode)


async def _fetched(node: Link, names: Iterable[str]) -> None:
    """Until a worker has begun to run each, and so has its files."""
    waiting, until_s = set(names), time.monotonic() + FETCH_S
    say("formation: no node runs on this machine; waiting for workers to fetch the files")
    while waiting and time.monotonic() < until_s:
        await asyncio.sleep(_LOOK_S)
        found = await read_services(node)
        waiting -= {each.claim.service for each in found.claims if each.claim.state == "ready"}
    if waiting:
        listed = ", ".join(sorted(waiting))
        say(
            f"formation: no worker has the files of {listed}; run a gate or an agent here meanwhile"
        )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("catalog", f"{file} cannot be read: {error}") from None

"""The statements of a grant, as they are written and as Biscuit prints them.

Each has one printed form, and what has another is refused (see grants.py). All but the facts of the
root's own block are checks: every one of them has to hold, so that one more only narrows. Those
that limit what is submitted hold for an operation that is `work` in any case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from biscuit_auth import BlockBuilder

from formation_p2p.core.errors import InvalidInput
from formation_p2p.trust.core.grant_form import Life
from formation_p2p.trust.core.hours import MAX_SPANS, Hours
from formation_p2p.trust.core.quota import GRANT_DIGITS, UNLIMITED, Quota, least
from formation_p2p.workload.core.scope import NOWHERE, Place

_T = TypeVar("_T", frozenset[str], Hours)

# The circles that a place names; a task that stays in none of them is of the commons.
CIRCLES: Final = ("cell", "org", "federation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one block of a grant, or several together, demand. None is without limit."""

    peers: frozenset[str] = frozenset()
    may: frozenset[str] | None = None
    expires_unix_s: int | None = None
    max_priority: int | None = None
    weight_milli: int | None = None
    drivers: frozenset[str] | None = None
    quota: Quota = UNLIMITED
    hours: Hours | None = None
    labels: frozenset[tuple[str, str]] = frozenset()
    circles: frozenset[str] | None = None

    def __and__(self, other: Block) -> Block:
        """What both demand. Raises InvalidInput."""
        return Block(
            peers=self.peers | other.peers,
            may=_both(self.may, other.may),
            expires_unix_s=least(self.expires_unix_s, other.expires_unix_s),
            max_priority=least(self.max_priority, other.max_priority),
            weight_milli=least(self.weight_milli, other.weight_milli),
            drivers=_both(self.drivers, other.drivers),
            quota=self.quota & other.quota,
            hours=_both(self.hours, other.hours),
            labels=self.labels | other.labels,
            circles=_both(self.circles, other.circles),
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """What the root's own block says beside its limits. `lineage` names the first blocks, as those
    of the grant that this one renews."""

    may: frozenset[str] = frozenset()
    place: Place = NOWHERE
    life: Life | None = None
    lineage: tuple[str, ...] = ()
    identities: int | None = None


def _both(one: _T | None, other: _T | None) -> _T | None:
    return other if one is None else one if other is None else one & other


# -- the forms --------------------------------------------------------------------------------


def _submitting(condition: str) -> str:
    return f'check if operation("work") or {condition}'


def _span(start: str, end: str) -> str:
    return f"minute($minute), $minute >= {start}, $minute < {end}"


_PEER: Final = "check if peer({peer})"
_MAY: Final = "check if operation({may})"
_EXPIRY: Final = "check if time($time), $time < {most}"
_PRIORITY: Final = _submitting("priority($priority), $priority <= {most}")
_WEIGHT: Final = _submitting("weight($weight), $weight <= {most}")
_CPU: Final = _submitting("cpu_milli_hours($used), $used < {most}")
_GPU: Final = _submitting("gpus(0) or gpu_milli_hours($used), $used < {most}")
_LEASES: Final = _submitting("leases($open), $open < {most}")
_DRIVERS: Final = _submitting("driver($driver), {names}.contains($driver)")
_LABEL: Final = _submitting("label({key}, {value})")
_CIRCLE: Final = "check if circle($circle), {names}.contains($circle)"
_RIGHT: Final = "right({may})"
_PLACE: Final = "place({circle}, {name})"

_LIFE: Final = "life({most}, {until})"
_LINEAGE: Final = "lineage({number}, {hash})"
_IDENTITIES: Final = "identities({most})"

_COMMONS: Final = "commons"
_NAME: Final = r"[a-z0-9_-]{1,32}"
_LABEL_TEXT: Final = r'"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)"'
_VALUES: Final = {
    "peer": r'"([1-9A-HJ-NP-Za-km-z]{1,64})"',
    "may": r'"(submit|work|services)"',
    "names": rf'\{{("{_NAME}"(?:, "{_NAME}")*)\}}',
    "key": _LABEL_TEXT,
    "value": _LABEL_TEXT,
    "circle": f'"({"|".join(CIRCLES)})"',
    "name": _LABEL_TEXT,
    "number": r"([0-7])",
    "hash": rf'"([0-9a-f]{{{GRANT_DIGITS}}})"',
}


def _form(template: str, digits: int = 0) -> re.Pattern[str]:
    """What Biscuit prints for a template, with a group for each value."""
    values = {**_VALUES, **dict.fromkeys(("most", "until"), f"([0-9]{{1,{digits}}})")}
    parts = re.split(r"\{(\w+)\}", template)
    return re.compile(
        "".join(values[part] if n % 2 else re.escape(part) for n, part in enumerate(parts)),
        re.ASCII,
    )


_SPAN_FORM: Final = re.sub("X", "[0-9]{1,5}", re.escape(_span("X", "X")))
_HOURS_FORM: Final = re.compile(
    re.escape(_submitting("")) + rf"({_SPAN_FORM}(?: or {_SPAN_FORM}){{0,{MAX_SPANS - 1}}})",
    re.ASCII,
)

_FORMS: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Block]], ...]] = (
    (_form(_PEER), lambda match: Block(peers=frozenset({match[1]}))),
    (_form(_MAY), lambda match: Block(may=frozenset({match[1]}))),
    (_form(_EXPIRY, 11), lambda match: Block(expires_unix_s=int(match[1]))),
    (_form(_PRIORITY, 3), lambda match: Block(max_priority=int(match[1]))),
    (_form(_WEIGHT, 5), lambda match: Block(weight_milli=int(match[1]))),
    (_form(_CPU, 12), lambda match: Block(quota=Quota(cpu_milli_hours=int(match[1])))),
    (_form(_GPU, 12), lambda match: Block(quota=Quota(gpu_milli_hours=int(match[1])))),
    (_form(_LEASES, 4), lambda match: Block(quota=Quota(leases=int(match[1])))),
    (_form(_DRIVERS), lambda match: Block(drivers=_names(match[1]))),
    (_HOURS_FORM, lambda match: Block(hours=_hours(match[1]))),
    (_form(_LABEL), lambda match: Block(labels=frozenset({(match[1], match[2])}))),
    (_form(_CIRCLE), lambda match: Block(circles=_names(match[1]) - {_COMMONS})),
)
_RIGHT_FORM: Final = _form(_RIGHT)
_PLACE_FORM: Final = _form(_PLACE)
_LIFE_FORM: Final = _form(_LIFE, 11)
_LINEAGE_FORM: Final = _form(_LINEAGE)
_IDENTITIES_FORM: Final = _form(_IDENTITIES, 6)


# -- writing ----------------------------------------------------------------------------------


def write(block: Block) -> BlockBuilder:
    """Values go in as parameters, after they were checked; the Datalog itself is constant."""
    built = BlockBuilder("")
    for peer_id in sorted(block.peers):
        built.add_code(_PEER, {"peer": peer_id})
    for right in sorted(block.may or ()):
        built.add_code(_MAY, {"may": right})
    for most, form in (
        (block.expires_unix_s, _EXPIRY),
        (block.max_priority, _PRIORITY),
        (block.weight_milli, _WEIGHT),
        (block.quota.cpu_milli_hours, _CPU),
        (block.quota.gpu_milli_hours, _GPU),
        (block.quota.leases, _LEASES),
    ):
        if most is not None:
            built.add_code(form, {"most": most})
    if block.drivers is not None:
        built.add_code(_DRIVERS, {"names": set(block.drivers)})
    if block.hours is not None:
        spans = (_span(str(start), str(end)) for start, end in block.hours.spans)
        built.add_code(_submitting(" or ".join(spans)))
    for key, value in sorted(block.labels):
        built.add_code(_LABEL, {"key": key, "value": value})
    if block.circles is not None:
        built.add_code(_CIRCLE, {"names": {_COMMONS, *block.circles}})
    return built


def write_facts(facts: Facts) -> BlockBuilder:
    built = BlockBuilder("")
    for right in sorted(facts.may):
        built.add_code(_RIGHT, {"may": right})
    for circle in CIRCLES:
        if name := getattr(facts.place, circle):
            built.add_code(_PLACE, {"circle": circle, "name": name})
    if (life := facts.life) is not None:
        built.add_code(_LIFE, {"most": life.life_s, "until": life.renewed_until_unix_s})
    if facts.identities is not None:
        built.add_code(_IDENTITIES, {"most": facts.identities})
    for number, name in enumerate(facts.lineage):
        built.add_code(_LINEAGE, {"number": number, "hash": name})
    return built


# -- reading ----------------------------------------------------------------------------------


def read(statements: Iterable[str]) -> Block:
    """Raises InvalidInput for a statement that has none of the forms."""
    block = Block()
    for statement in statements:
        for form, block_of in _FORMS:
            if match := form.fullmatch(statement):
                block &= block_of(match)
                break
        else:
            raise InvalidInput("grant", "it holds a statement that this version does not know")
    return block


def read_facts(statements: Iterable[str]) -> tuple[Facts, list[str]]:
    """Of the root's own block, and its other statements. Raises InvalidInput."""
    may: set[str] = set()
    circles: dict[str, str] = {}
    life: Life | None = None
    identities: int | None = None
    names: dict[int, str] = {}
    others: list[str] = []
    for statement in statements:
        if match := _RIGHT_FORM.fullmatch(statement):
            may.add(match[1])
        elif match := _PLACE_FORM.fullmatch(statement):
            circles[match[1]] = match[2]
        elif match := _LIFE_FORM.fullmatch(statement):
            life = Life(int(match[1]), int(match[2]))
        elif match := _IDENTITIES_FORM.fullmatch(statement):
            identities = least(identities, int(match[1]))
        elif match := _LINEAGE_FORM.fullmatch(statement):
            names[int(match[1])] = match[2]
        else:
            others.append(statement)
    if sorted(names) != list(range(len(names))):
        raise InvalidInput("grant", "a part of its lineage is missing")
    lineage = tuple(names[number] for number in sorted(names))
    return Facts(frozenset(may), Place(**circles), life, lineage, identities), others


def _names(printed: str) -> frozenset[str]:
    return frozenset(re.findall(_NAME, printed))


def _hours(printed: str) -> Hours:
    minutes = [int(minute) for minute in re.findall(r"[0-9]+", printed)]
    return Hours(tuple(zip(minutes[::2], minutes[1::2], strict=True)))

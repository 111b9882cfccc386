"""Requirements as text, on a command line or in a job file.

    >>> needs = parse_requirements("cpu=1.5,gpu.memory=24GB,gpu.cc>=8.0,gpu.model=h100|a100")
    >>> needs.gpu_count, needs.gpu_compute_capability, needs.gpu_models
    (1, 80, ('a100', 'h100'))

Every amount is a minimum, so `=` and `>=` mean the same for it. A card sold with 24 GB reports a
little less than 24 GiB: ask for `24GB`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.bounds import MAX_LABELS, shown
from formation_p2p.core.resources.gpu import parse_compute_capability
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.units import MAX_BYTES, parse_bytes, parse_milli

# The longest that can be asked for (sixteen models, eight labels) stays below.
MAX_TEXT: Final = 4096

_ITEM: Final = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(>=|=)\s*(.*?)\s*", re.ASCII | re.DOTALL)
_COUNT: Final = re.compile(r"\d{1,9}", re.ASCII)


def _parse_count(text: str) -> int:
    if _COUNT.fullmatch(text) is None:
        raise ValueError(f"{shown(text)} is not a whole number of zero or more")
    return int(text)


def _parse_driver(text: str) -> str:
    if text == "":
        raise ValueError("is empty; name a driver, or leave the field out for any")
    return text


# Field -> attribute of Requirements, and what makes its value of the text. `gpu.count` is `gpu`
# where that is a table of its own, as in TOML.
_AMOUNTS: Final[dict[str, tuple[str, Callable[[str], int]]]] = {
    "cpu": ("cpu_milli", parse_milli),
    "memory": ("memory_bytes", parse_bytes),
    "storage": ("storage_bytes", parse_bytes),
    "network": ("network_mbps", _parse_count),
    "gpu": ("gpu_count", _parse_count),
    "gpu.count": ("gpu_count", _parse_count),
    "gpu.memory": ("gpu_memory_bytes", parse_bytes),
    "gpu.cc": ("gpu_compute_capability", parse_compute_capability),
}
_CHOICES: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "gpu.share": ("gpu_share_milli", parse_milli),
    "gpu.model": ("gpu_models", lambda text: tuple(text.split("|"))),
    "driver": ("driver", _parse_driver),
}
_FIELDS: Final = {**_AMOUNTS, **_CHOICES}
# Where a number with a fraction means something; elsewhere a float has lost what was meant.
_FRACTIONS: Final = frozenset({"cpu", "gpu.cc", "gpu.share"})
_LABEL: Final = "label."
# Each field and label once.
_MAX_ITEMS: Final = len(_FIELDS) + MAX_LABELS


def parse_requirements(text: str) -> Requirements:
    """Requirements of `field=value` items with commas between; empty text asks the least.

    `gpu.…` without `gpu` asks for one device. Raises InvalidInput, whose `field` is the one
    written, or `requirements` for anything else.
    """
    return needs_and_memory(text)[0]


def needs_and_memory(text: str) -> tuple[Requirements, bool]:
    """As `parse_requirements`, and whether the text gives the memory."""
    if len(text) > MAX_TEXT:
        raise InvalidInput("requirements", f"the text is longer than {MAX_TEXT} characters")
    items: list[tuple[str, str]] = []
    for item in text.split(",") if text.strip() else ():
        match = _ITEM.fullmatch(item)
        if match is None:
            problem = f"{shown(item)} is not a requirement; write field=value, with commas between"
            raise InvalidInput("requirements", problem)
        field, relation, value = match.groups()
        if relation == ">=" and field not in _AMOUNTS:
            raise InvalidInput(field, "is not an amount; write it with =")
        items.append((field, value))
    return _requirements(items), any(field == "memory" for field, _ in items)


def requirements_from_mapping(fields: Mapping[str, object]) -> Requirements:
    """The same from a job file or keyword arguments, with `gpu` and `label` flat or as tables.

    `{"cpu": 1.5, "memory": "8GiB", "gpu": {"count": 2, "cc": "8.0"}, "label": {"region": "eu"}}`.
    A plain int of memory or storage is bytes. Raises InvalidInput as `parse_requirements` does.
    """
    items: list[tuple[str, str]] = []
    for field, value in _flat(fields):
        if len(items) == _MAX_ITEMS:
            raise InvalidInput("requirements", f"there are more than {_MAX_ITEMS} fields")
        items.append((field, _as_text(field, value)))
    return _requirements(items)


def _requirements(items: Iterable[tuple[str, str]]) -> Requirements:
    values: dict[str, object] = {}
    labels: list[tuple[str, str]] = []
    for field, text in items:
        if field.startswith(_LABEL):
            labels.append((field.removeprefix(_LABEL), text))
            continue
        if field not in _FIELDS:
            known = ", ".join(sorted(_FIELDS))
            raise InvalidInput(field, f"is not a requirement; there are {known} and label.<key>")
        attribute, parse = _FIELDS[field]
        if attribute in values:
            raise InvalidInput(field, "is given twice; give it once")
        try:
            values[attribute] = parse(text)
        except ValueError as problem:
            raise InvalidInput(field, str(problem)) from None
    if any(attribute.startswith("gpu_") for attribute in values):
        values.setdefault("gpu_count", 1)
    return Requirements(labels=tuple(labels), **values)  # type: ignore[arg-type]  # checked there


def _flat(fields: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    for field, value in fields.items():
        if not isinstance(field, str) or len(field) > MAX_TEXT:
            raise InvalidInput("requirements", f"{shown(field)} is not a name of a field")
        if field in ("gpu", "label") and isinstance(value, Mapping):
            for key, inner in value.items():
                if not isinstance(key, str):
                    raise InvalidInput(field, f"{shown(key)} is not a name of a field")
                yield f"{field}.{key}", inner
        else:
            yield field, value


def _as_text(field: str, value: object) -> str:
    if isinstance(value, bool):
        raise InvalidInput(field, f"{value} is not a value of a requirement")
    if isinstance(value, (list, tuple)) and field == "gpu.model":
        if not all(isinstance(model, str) for model in value):
            raise InvalidInput(field, "is not a list of names")
        value = "|".join(value)
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise InvalidInput(field, f"is longer than {MAX_TEXT} characters")
        return value
    # Python refuses to write out integers of thousands of digits.
    if isinstance(value, int) and abs(value) <= MAX_BYTES:
        return str(value)
    if isinstance(value, float) and field in _FRACTIONS:
        return repr(value)
    raise InvalidInput(field, f"{shown(value)} is not a value of it; write it as text, like '8GiB'")

"""What one task needs of the machine that runs it, also as text: on a command line, in a job file.

    >>> needs = parse_requirements("cpu=1.5,gpu.memory=24GB,gpu.cc>=8.0,gpu.model=h100|a100")
    >>> needs.gpu_count, needs.gpu_compute_capability, needs.gpu_models
    (1, 80, ('a100', 'h100'))

Every amount is a minimum, so `=` and `>=` mean the same for it. A card sold with 24 GB reports a
little less than 24 GiB: ask for `24GB`. Errors and refusals name fields as people write them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import MAX_BYTES, MIB, parse_bytes, parse_milli
from formation_p2p.machine.core import bounds
from formation_p2p.machine.core.bounds import DEFAULT_MEMORY_BYTES as DEFAULT_MEMORY_BYTES
from formation_p2p.machine.core.environment import check_prepared
from formation_p2p.machine.core.gpu import (
    MAX_COMPUTE_CAPABILITY,
    WHOLE_GPU_MILLI,
    normalise_model,
    parse_compute_capability,
)
from formation_p2p.machine.core.python import MAX_CLOUDPICKLE, check_python, parse_python

# A list of more alternatives would hardly exclude any model.
MAX_MODELS_ASKED: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Requirements:
    """Models and labels are sorted, so that equal needs have one hash.

    The GPU fields hold for each of `gpu_count` distinct devices. `gpu_share_milli` is the part
    of each device that is taken; below 1000 others may share it, and where `gpu_memory_bytes` is
    0 the same part of its memory is taken. Any one of `gpu_models` will do; `gpu_vendor` is who
    made them, such as `nvidia` or `amd`, and empty for any. `network_mbps` is in megabits (10**6) a
    second. `driver` runs the task, which sets it. `python` is the version that a call is for, as in
    `cpython-3.11`, or `any`; `cloudpickle` is the major version that wrote it. Empty and 0 are for
    tasks that are not calls. `environment` names what the task is prepared with
    (machine/core/environment.py), which sets it.

    Raises InvalidInput for a field out of its range, or for GPU fields without a GPU.
    """

    cpu_milli: int = 1000
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    storage_bytes: int = 0
    network_mbps: int = 0
    gpu_count: int = 0
    gpu_memory_bytes: int = 0
    gpu_compute_capability: int = 0
    gpu_models: tuple[str, ...] = ()
    gpu_share_milli: int = WHOLE_GPU_MILLI
    labels: tuple[tuple[str, str], ...] = ()
    driver: str = ""
    python: str = ""
    cloudpickle: int = 0
    environment: str = ""
    gpu_vendor: str = ""

    __repr__ = bounds.brief

    def __post_init__(self) -> None:
        # At least a thousandth of a core and a byte: tasks that need nothing would have no bound.
        bounds.check_amount("cpu", self.cpu_milli, 1, bounds.MAX_CPU_MILLI)
        bounds.check_amount("memory", self.memory_bytes, 1, bounds.MAX_MEMORY_BYTES)
        bounds.check_amount("storage", self.storage_bytes, 0, bounds.MAX_STORAGE_BYTES)
        bounds.check_amount("network", self.network_mbps, 0, bounds.MAX_NETWORK_MBPS)
        bounds.check_amount("gpu", self.gpu_count, 0, bounds.MAX_GPUS)
        bounds.check_amount("gpu.memory", self.gpu_memory_bytes, 0, bounds.MAX_MEMORY_BYTES)
        bounds.check_amount("gpu.cc", self.gpu_compute_capability, 0, MAX_COMPUTE_CAPABILITY)
        bounds.check_amount("gpu.share", self.gpu_share_milli, 1, WHOLE_GPU_MILLI)
        models: object = self.gpu_models
        if not isinstance(models, tuple):
            raise InvalidInput("gpu.model", f"{bounds.shown(models)} is not a tuple of models")
        if len(models) > MAX_MODELS_ASKED:
            problem = f"there are more than {MAX_MODELS_ASKED}; leave some out"
            raise InvalidInput("gpu.model", problem)
        object.__setattr__(self, "gpu_models", tuple(sorted(set(map(normalise_model, models)))))
        object.__setattr__(self, "labels", bounds.sorted_labels(self.labels))
        if self.driver != "":
            bounds.check_name("driver", self.driver)
        if self.gpu_vendor != "":
            bounds.check_name("gpu.vendor", self.gpu_vendor)
        check_python(self.python)
        bounds.check_amount("cloudpickle", self.cloudpickle, 0, MAX_CLOUDPICKLE)
        check_prepared(self.environment)
        for field, asked in (
            ("gpu.memory", self.gpu_memory_bytes > 0),
            ("gpu.cc", self.gpu_compute_capability > 0),
            ("gpu.model", self.gpu_models != ()),
            ("gpu.vendor", self.gpu_vendor != ""),
            ("gpu.share", self.gpu_share_milli < WHOLE_GPU_MILLI),
        ):
            if asked and self.gpu_count == 0:
                raise InvalidInput(field, "is asked of no GPU; ask for one with gpu=1")


def driven_by(
    needs: Requirements, driver: str, python: str = "", cloudpickle: int = 0
) -> Requirements:
    """The needs of a task of this driver; of a call, with the versions that wrote it, unless they
    name a Python themselves."""
    return replace(needs, driver=driver, python=needs.python or python, cloudpickle=cloudpickle)


# The longest that can be asked for (sixteen models, eight labels) stays below.
MAX_TEXT: Final = 4096

_ITEM: Final = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(>=|=)\s*(.*?)\s*", re.ASCII | re.DOTALL)
_COUNT: Final = re.compile(r"\d{1,9}", re.ASCII)


def _parse_count(text: str) -> int:
    if _COUNT.fullmatch(text) is None:
        raise ValueError(f"{bounds.shown(text)} is not a whole number of zero or more")
    return int(text)


def _parse_memory(text: str) -> int:
    if text.isdecimal() and 0 < int(text[:19]) < MIB:
        problem = f"{text} is a number of bytes; write {text}GiB or {text}GB"
        raise ValueError(f"{problem}, or {text}B if bytes are meant")
    return parse_bytes(text)


def _parse_models(text: str) -> tuple[str, ...]:
    models = tuple(text.split("|"))
    for name, colon, count in (model.partition(":") for model in models):
        if colon:
            several = count if count.isdecimal() else "2"
            problem = "has a colon, as no model has; for several of them"
            raise ValueError(f"{bounds.shown(text)} {problem} write gpu={several},gpu.model={name}")
    return models


def _parse_vendor(text: str) -> str:
    if text.strip() == "":
        raise ValueError("is empty; name a maker, such as nvidia, amd or intel")
    return text.strip().lower()


def _parse_driver(text: str) -> str:
    if text == "":
        raise ValueError("is empty; name a driver, or leave the field out for any")
    return text


# Field -> attribute of Requirements, and what makes its value of the text. `gpu.count` is `gpu`
# where that is a table of its own, as in TOML.
_AMOUNTS: Final[dict[str, tuple[str, Callable[[str], int]]]] = {
    "cpu": ("cpu_milli", parse_milli),
    "memory": ("memory_bytes", _parse_memory),
    "storage": ("storage_bytes", parse_bytes),
    "network": ("network_mbps", _parse_count),
    "gpu": ("gpu_count", _parse_count),
    "gpu.count": ("gpu_count", _parse_count),
    "gpu.memory": ("gpu_memory_bytes", _parse_memory),
    "gpu.cc": ("gpu_compute_capability", parse_compute_capability),
}
_CHOICES: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "gpu.share": ("gpu_share_milli", parse_milli),
    "gpu.model": ("gpu_models", _parse_models),
    "gpu.vendor": ("gpu_vendor", _parse_vendor),
    "driver": ("driver", _parse_driver),
    "python": ("python", parse_python),
}
NEEDS: Final = {**_AMOUNTS, **_CHOICES}
# Where a plain int is bytes: a program that writes one means it.
_SIZES: Final = frozenset({"memory", "storage", "gpu.memory"})
# Where a number with a fraction means something; elsewhere a float has lost what was meant.
_FRACTIONS: Final = frozenset({"cpu", "gpu.cc", "gpu.share"})
_LABEL: Final = "label."
# Each field and label once.
_MAX_ITEMS: Final = len(NEEDS) + bounds.MAX_LABELS


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
            hint = "write field=value, with commas between"
            raise InvalidInput("requirements", f"{bounds.shown(item)} is not a requirement; {hint}")
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
        if field not in NEEDS:
            known = ", ".join(sorted(NEEDS))
            raise InvalidInput(field, f"is not a requirement; there are {known} and label.<key>")
        attribute, parse = NEEDS[field]
        if attribute in values:
            raise InvalidInput(field, "is given twice; give it once")
        try:
            values[attribute] = parse(text)
        except ValueError as problem:
            raise InvalidInput(field, str(problem)) from None
        if attribute in ("cpu_milli", "gpu_share_milli") and values[attribute] == 0:
            raise InvalidInput(field, "0 is too little; write 0.001 or more, such as 0.5")
    if any(attribute.startswith("gpu_") for attribute in values):
        values.setdefault("gpu_count", 1)
    return Requirements(labels=tuple(labels), **values)  # type: ignore[arg-type]  # checked there


def _flat(fields: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    for field, value in fields.items():
        if not isinstance(field, str) or len(field) > MAX_TEXT:
            raise InvalidInput("requirements", f"{bounds.shown(field)} is not a name of a field")
        if field in ("gpu", "label") and isinstance(value, Mapping):
            for key, inner in value.items():
                if not isinstance(key, str):
                    raise InvalidInput(field, f"{bounds.shown(key)} is not a name of a field")
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
        return f"{value}B" if field in _SIZES and value >= 0 else str(value)
    if isinstance(value, float) and field in _FRACTIONS:
        return repr(value)
    raise InvalidInput(
        field, f"{bounds.shown(value)} is not a value of it; write it as text, like '8GiB'"
    )

"""Parameters and their values: their combinations, and texts that are filled with them.

    >>> combinations({"lr": (0.1, 0.01), "seed": (1, 2)}, exclude=[{"lr": 0.1, "seed": 2}])
    [{'lr': 0.1, 'seed': 1}, {'lr': 0.01, 'seed': 1}, {'lr': 0.01, 'seed': 2}]
    >>> fill("run-{lr}-{other}", {"lr": 0.1})
    'run-0.1-{other}'

`include` and `exclude` mean what they mean in a workflow of GitHub Actions: docs.github.com,
"Running variations of jobs in a workflow".
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import shown
from formation_p2p.workload.core.work import MAX_TASKS

Value = str | int | float | bool

# Each stands in a label, or should: more make no name that a person tells from the next.
MAX_PARAMETERS: Final = 16
# Each may agree with all combinations: with as many as tasks may be, they take some seconds.
MAX_RULES: Final = 100
# Well inside what one argument of a process may have (workload/core/process.py).
MAX_VALUE_CHARS: Final = 4096
_MAX_INT: Final = 2**63 - 1
# A label is the name of a folder as well (`--out-dir`); file systems take 255 bytes.
MAX_LABEL_CHARS: Final = 60

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}", re.ASCII)
_PLACE: Final = re.compile(r"\{([A-Za-z][A-Za-z0-9_-]{0,31})\}", re.ASCII)
# Of a shell: `${HOME}`.
_NOT_A_SHELLS: Final = re.compile(r"(?<!\$)" + _PLACE.pattern, re.ASCII)

Parameters = Mapping[str, Value]


def combinations(
    axes: Mapping[str, Sequence[Value]],
    include: Sequence[Parameters] = (),
    exclude: Sequence[Parameters] = (),
) -> list[dict[str, Value]]:
    """One value of each axis, the last one changing fastest; an empty one where there are no axes.

    A combination that agrees with an entry of `exclude` is left out. An entry of `include` is added
    to each combination left with whose axes it agrees; where there is none, it is one of its own.
    Values agree that are written the same. Raises InvalidInput, whose `field` names the axis.
    """
    _check(axes, include, exclude)
    found: dict[int, dict[str, Value]] = {}
    if axes or not include:
        every = itertools.product(*axes.values())
        found = {place: dict(zip(axes, values, strict=True)) for place, values in enumerate(every)}
    texts = {name: list(map(written, values)) for name, values in axes.items()}
    for rule in exclude:
        for place in _agreeing(texts, rule):
            found.pop(place, None)
    own: list[dict[str, Value]] = []
    for rule in include:
        fits = [found[place] for place in _agreeing(texts, rule) if place in found]
        for each in fits:
            each.update(rule)
        if not fits:
            own.append(dict(rule))
    if not found and not own:
        raise InvalidInput("exclude", "nothing is left; exclude less")
    return [*found.values(), *own]


def written(value: Value) -> str:
    """The text of a value: true and false as in TOML and JSON."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def fill(text: str, parameters: Parameters) -> str:
    """The text with each `{name}` of a parameter replaced, once. Other braces, as of awk and
    shells, stay."""

    def value(place: re.Match[str]) -> str:
        name = place[1]
        return written(parameters[name]) if name in parameters else place[0]

    return _PLACE.sub(value, text)


def places(text: str) -> list[str]:
    """The names in braces, but for those of a shell's variables."""
    return _NOT_A_SHELLS.findall(text)


def of_input(path: str) -> dict[str, Value]:
    """The parameters of one input: `input` as it is, `name` without its folders, and `stem`
    without its suffix as well."""
    file = PurePosixPath(path)
    return {"input": path, "name": file.name or path, "stem": file.stem or path}


def telling(parameters: Parameters) -> Parameters:
    """Those that tell tasks apart: the `name` and `stem` of an input only repeat it."""
    if "input" not in parameters:
        return parameters
    repeated = of_input(written(parameters["input"]))
    return {n: v for n, v in parameters.items() if n == "input" or v != repeated.get(n)}


def label_of(name: str, parameters: Parameters) -> str:
    """The name and the values, with dashes between, and for slashes."""
    parts = [name, *map(written, parameters.values())]
    return "-".join(part.replace("/", "-") for part in parts if part)


def folder_label(field: str, label: str) -> str:
    """A label that can name a folder as well. Raises InvalidInput."""
    plain = label.isprintable() and "/" not in label and not label.startswith(".")
    if not plain or not 0 < len(label) <= MAX_LABEL_CHARS:
        problem = f"{shown(label)} cannot name a folder as well"
        wanted = f"1 to {MAX_LABEL_CHARS} characters that print, with no / and no dot in front"
        raise InvalidInput(field, f"{problem}; write {wanted}")
    return label


def given_label(field: str, label: str, parameters: Parameters) -> tuple[str, bool]:
    """A person's label, and whether it is made of values that cannot name a folder: then it is
    cleaned (`clean_label`). Raises InvalidInput for one that names none by what a person wrote."""
    whole = fill(label, parameters)
    try:
        return folder_label(field, whole), False
    except InvalidInput:
        folder_label(field, _PLACE.sub("x", label))
        return whole, True


def clean_label(label: str) -> str:
    """Of values: what can name a folder, cut."""
    plain = "".join(each if each.isprintable() and each != "/" else "-" for each in label)
    return plain.lstrip(".")[:MAX_LABEL_CHARS] or "task"


def _check(
    axes: Mapping[str, Sequence[Value]],
    include: Sequence[Parameters],
    exclude: Sequence[Parameters],
) -> None:
    if not isinstance(axes, Mapping):
        raise InvalidInput("matrix", f"{shown(axes)} is not a table of parameters and their values")
    if len(axes) > MAX_PARAMETERS:
        problem = f"it has more than {MAX_PARAMETERS} parameters; leave some out"
        raise InvalidInput("matrix", problem)
    for name, values in axes.items():
        _check_name(name)
        if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not values:
            raise InvalidInput(f"matrix.{name}", "is not a list of values; write at least one")
        _check_values(f"matrix.{name}", values)
        if len(set(map(written, values))) < len(values):
            raise InvalidInput(f"matrix.{name}", "has a value twice; write each once")
    if math.prod(map(len, axes.values())) > MAX_TASKS:
        raise InvalidInput("matrix", f"it makes more than {MAX_TASKS} tasks; split the job")
    for what, rules in (("include", include), ("exclude", exclude)):
        if len(rules) > MAX_RULES:
            raise InvalidInput(what, f"it has more than {MAX_RULES} entries; write fewer")
        for rule in rules:
            if not isinstance(rule, Mapping) or not rule or len(rule) > MAX_PARAMETERS:
                problem = f"is not a table of 1 to {MAX_PARAMETERS} parameters and their values"
                raise InvalidInput(what, f"{shown(rule)} {problem}")
            for name in rule:
                _check_name(name)
                if what == "exclude" and name not in axes:
                    known = f"there are {', '.join(axes)}"
                    raise InvalidInput(what, f"{name} is not a parameter of the matrix; {known}")
            _check_values(what, rule.values())


def _check_name(name: object) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        problem = f"{shown(name)} is not a name of a parameter"
        hint = "use up to 32 letters, digits, _ and -, a letter first"
        raise InvalidInput("matrix", f"{problem}; {hint}")


def _check_values(field: str, values: Iterable[object]) -> None:
    for value in values:
        short = isinstance(value, str) and len(value) <= MAX_VALUE_CHARS
        small = isinstance(value, int) and abs(value) <= _MAX_INT
        if not (short or small or (isinstance(value, float) and math.isfinite(value))):
            problem = "is not a text, number, true or false of a task; write it as a short text"
            raise InvalidInput(field, f"{shown(value)} {problem}")


def _agreeing(texts: Mapping[str, Sequence[str]], rule: Parameters) -> list[int]:
    """The places, in the product of all axes, of the combinations that agree with a rule. Computed:
    to compare each of many rules with each of many combinations takes 15 s."""
    places = [0]
    for name, values in texts.items():
        said = written(rule[name]) if name in rule else None
        chosen = [n for n, value in enumerate(values) if said is None or value == said]
        places = [place * len(values) + n for place in places for n in chosen]
    return places

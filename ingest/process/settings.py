"""What every process reads from the environment, and what is wrong there told in one line a variable."""

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

PREFIX = "FORGEWATCH_"
ROOMS = ("INGEST", "DETECTOR", "MEMORY", "UPDATER", "DEPLOY")
"""Whose names follow the prefix. The settings of a room that a process does not read are not its to judge."""

UNREADABLE = (ValidationError, SettingsError)
"""What building a settings class raises: a value that does not fit, or JSON that is none."""


class ProcessSettings(BaseSettings):
    """How any of the processes logs, and where it says how it does: FORGEWATCH_…"""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    log_format: Literal["console", "json"] = Field(
        "console",
        description="how a process logs to its standard error: for people, or one JSON object a line",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level that is logged; libraries below `warning` only with `debug`"
    )
    metrics_host: str = Field("127.0.0.1", description="address of /metrics, /livez and /readyz")


@dataclass(frozen=True)
class Problem:
    """A variable of the environment, and what is wrong with it and to be done."""

    setting: str
    problem: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.problem}"


def find_problems(kinds: Sequence[type[BaseSettings]]) -> list[Problem]:
    """Build each kind of settings from the environment and give all that is wrong, unknown names included."""
    problems = unknown_names(kinds)
    for kind in kinds:
        try:
            kind()
        except UNREADABLE as error:
            problems += explain(error, [kind])
    return problems


def explain(error: Exception, kinds: Sequence[type[BaseSettings]]) -> list[Problem]:
    """Give one problem for each wrong variable of an UNREADABLE that one of the kinds raised."""
    if not isinstance(error, ValidationError):
        field = str(error).split('"')[1]
        kind = next(kind for kind in kinds if field in kind.model_fields)
        return [Problem(_variable(kind, field), f"not the JSON that it must be: {error.__cause__}")]
    kind = next(kind for kind in kinds if kind.__name__ == error.title)
    problems = []
    for found in error.errors(include_url=False, include_input=False):
        # A secret may be among the values, so none is shown.
        said = found["msg"].removeprefix("Value error, ")
        field, *inside = map(str, found["loc"] or ("…",))
        about = kind.model_fields[field].description if field in kind.model_fields else None
        at = f"at {'.'.join(inside)}: " if inside else ""
        problems.append(Problem(_variable(kind, field), f"{at}{said}{f' ({about})' if about else ''}"))
    return problems


def unknown_names(kinds: Sequence[type[BaseSettings]]) -> list[Problem]:
    """Give each variable that is set and that no setting bears, with the nearest name that there is."""
    known = {_variable(kind, field) for kind in kinds for field in kind.model_fields}
    read = {str(kind.model_config["env_prefix"]) for kind in kinds}
    others = tuple(prefix for room in ROOMS if (prefix := f"{PREFIX}{room}_") not in read)
    problems = []
    for name in sorted({name.upper() for name in os.environ}):
        if not name.startswith(PREFIX) or name in known or name.startswith(others):
            continue
        near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
        advice = f"did you mean {near[0]}?" if near else "unset it"
        problems.append(Problem(name, f"there is no such setting; {advice}"))
    return problems


def _variable(kind: type[BaseSettings], field: str) -> str:
    return f"{kind.model_config['env_prefix']}{field.upper()}"

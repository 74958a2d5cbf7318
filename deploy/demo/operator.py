"""The demonstration's operator: the same command line that a person types, each command shown."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from deploy.client.http import Client
from deploy.settings import DeploySettings

ACTOR = "demo-operator"
_SHOWN = 8


class OperatorError(RuntimeError):
    """A command of the demonstration failed; its own line says why."""


@dataclass(frozen=True)
class Operator:
    """Runs `forgewatch …` against one stack, by that stack's settings."""

    console: Console
    settings: Mapping[str, str]

    def run(self, *arguments: str) -> None:
        """Run a command and let it write to the terminal. Raises OperatorError."""
        self._show(arguments)
        code = subprocess.call(self._command(arguments), env=self._environment())  # noqa: S603 - our own command line
        if code:
            raise OperatorError(f"`forgewatch {' '.join(arguments)}` ended with {code}")

    def ask(self, *arguments: str) -> Any:
        """Run a command with --json and return what it says. Raises OperatorError."""
        self._show(arguments)
        command = self._command((*arguments, "--json"))
        done = subprocess.run(command, env=self._environment(), stdout=subprocess.PIPE, text=True)  # noqa: S603 - as above
        if done.returncode:
            raise OperatorError(f"`forgewatch {' '.join(arguments)}` ended with {done.returncode}")
        return json.loads(done.stdout)

    def update(self) -> None:
        """Ask for an update and follow it to its proposal."""
        self.run("update", "--follow", "--as", ACTOR)

    def approve_newest(self) -> str:
        """Approve the newest proposal; return its digest."""
        proposed = [release for release in self.ask("releases") if release["state"] == "proposed"]
        if not proposed:
            raise OperatorError("no release is proposed")
        digest = str(proposed[0]["digest"])
        self.run("approve", digest[:12], "--as", ACTOR)
        return digest

    def members(self, cluster: str) -> list[str]:
        """The exemplars of a cluster, by id."""
        with Client(DeploySettings(url=self.settings["FORGEWATCH_DEPLOY_URL"]), ACTOR) as api:
            return [member.id for member in api.cluster(cluster).members]

    def await_clustered(self, count: int) -> None:
        """Wait until at least `count` unknowns are remembered and all are clustered.

        Raises OperatorError after two minutes.
        """
        deadline = time.monotonic() + 120
        with Client(DeploySettings(url=self.settings["FORGEWATCH_DEPLOY_URL"]), ACTOR) as api:
            while (held := api.status().unknowns_waiting) < count or (left := api.clustering().newer):
                if time.monotonic() > deadline:
                    if held < count:
                        raise OperatorError(f"{count} verdicts said unknown, the memory holds {held}")
                    raise OperatorError(f"the memory has not clustered the last {left} unknowns")
                time.sleep(0.2)

    def _show(self, arguments: tuple[str, ...]) -> None:
        shown = list(arguments)
        if len(shown) > _SHOWN:
            shown[2:-3] = [f"… {len(shown) - 5} more …"]
        self.console.print(Text(f"  $ forgewatch {' '.join(shown)}", style="cyan"))

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [str(Path(sys.executable).with_name("forgewatch")), *arguments]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.settings}

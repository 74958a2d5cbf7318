"""The demonstration's operator: the same command line that a person types, each command shown."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.text import Text

from deploy.client.connection import ClientError
from deploy.client.http import Client
from deploy.release_records import PROPOSED
from deploy.settings import DeploySettings


class StoryError(Exception):
    """The demonstration cannot be told as it was asked for; fatal."""


@dataclass
class Story:
    """The steps' shared state: the terminal, the seed, the unseen family, the seconds of each step."""

    seed: int
    unseen: str
    console: Console = field(default_factory=Console)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, title: str) -> Iterator[None]:
        """Head a step and take its time, as seconds[name]."""
        self.console.print(f"\n[bold]{len(self.seconds) + 1}. {title}[/bold]")
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)
        self.say(f"[dim]{self.seconds[name]:.0f} s[/dim]")

    @contextmanager
    def bar(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """A progress bar; call the yielded function with (done, of how many)."""
        columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress("   {task.description}", *columns, console=self.console) as progress:
            task = progress.add_task(title, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    def say(self, line: str) -> None:
        """One line below the step's head."""
        self.console.print(f"   {line}")


ACTOR = "demo-operator"
BECAUSE = "a demonstration holds back too few items to show it"
"""Why a gate that is not shown to hold is accepted."""
_SHOWN = 8


class OperatorError(ClientError):
    """A command of the demonstration failed; its own line says why."""


@dataclass(frozen=True)
class Operator:
    """Runs `forgewatch …` against one stack, by that stack's settings."""

    console: Console
    settings: Mapping[str, str]

    def run(self, *arguments: str) -> None:
        """Run a command and let it write to the terminal. Raises OperatorError."""
        self._show(arguments)
        # In a group of its own: Ctrl-C is said once, by the demonstration, which ends it.
        code = subprocess.call(self._command(arguments), env=self._environment(), process_group=0)  # noqa: S603 - our own command line
        if code:
            raise OperatorError(f"`forgewatch {' '.join(arguments)}` ended with {code}")

    def ask(self, *arguments: str) -> Any:
        """Run a command with --json and return its answer. Raises OperatorError."""
        self._show(arguments)
        command = self._command((*arguments, "--json"))
        done = subprocess.run(  # noqa: S603 - as above
            command, env=self._environment(), stdout=subprocess.PIPE, text=True, process_group=0
        )
        if done.returncode:
            raise OperatorError(f"`forgewatch {' '.join(arguments)}` ended with {done.returncode}")
        return json.loads(done.stdout)

    def update(self) -> None:
        """Ask for an update and follow it to its proposal."""
        self.run("update", "--follow", *self.actor())

    def approve_newest(self, because_broken: str | None = None) -> str:
        """Approve the newest proposal; return its digest.

        because_broken: why broken gates are accepted; None: a release that has one is left to a person.

        Raises OperatorError.
        """
        proposed = [release for release in self.ask("releases") if release["state"] in PROPOSED]
        if not proposed:
            raise OperatorError("no release is proposed")
        digest = str(proposed[0]["digest"])
        broken = [gate for gate in proposed[0]["candidate"]["gates"] if gate["state"] == "broken"]
        if broken and because_broken is None:
            raise OperatorError(
                f"release {digest[:12]} has broken gates, which a person decides on: `forgewatch"
                f" release {digest[:12]}` shows them, `forgewatch approve {digest[:12]}` takes it"
            )
        accepted = [word for gate in broken for word in ("--accept", f"{gate['name']}={because_broken}")]
        self.run("approve", digest[:12], "--plan", "now", *accepted, "--because", BECAUSE, *self.actor())
        return digest

    def actor(self) -> tuple[str, ...]:
        """The option that says who acts, where no token does."""
        return () if "FORGEWATCH_DEPLOY_TOKEN" in self._environment() else ("--as", ACTOR)

    def members(self, cluster: str) -> list[str]:
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
        words = list(arguments)
        if len(words) > _SHOWN:
            words[2:-3] = [f"… {len(words) - 5} more …"]
        self.console.print(Text(f"  $ forgewatch {' '.join(words)}", style="cyan"))

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [str(Path(sys.executable).with_name("forgewatch")), *arguments]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.settings}


MAJORITY = 0.5


def name_clusters(story: Story, operator: Operator, truth: Mapping[str, str], folder: Path) -> int:
    """Look at every cluster's contact sheet; name those that hold mostly the unseen family.

    Returns how many items were named. truth is the answer key, by exemplar id. An item of a named
    cluster which the key calls something else is left out, as a person would who sees the sheet.
    """
    named = 0
    for cluster in operator.ask("clusters"):
        operator.run("sheet", cluster["id"], "-o", str(folder / f"{cluster['id']}.png"))
        members = operator.members(cluster["id"])
        seen = Counter(truth.get(member, "?") for member in members)
        story.say(
            f"cluster {cluster['id']}: " + ", ".join(f"{count} {what}" for what, count in seen.most_common())
        )
        if seen[story.unseen] <= MAJORITY * len(members):
            continue
        if len(seen) == 1:
            operator.run("label", f"{cluster['id']}@{cluster['version']}", story.unseen, *operator.actor())
        else:
            right = [member for member in members if truth.get(member) == story.unseen]
            operator.run("label", *right, story.unseen, *operator.actor())
        named += seen[story.unseen]
    if not named:
        raise OperatorError(
            f"no cluster of unknowns holds mostly {story.unseen}, so there is nothing to name"
        )
    return named

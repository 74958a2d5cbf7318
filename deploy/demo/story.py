"""How the demonstration speaks: numbered steps with their time, and progress bars."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class StoryError(Exception):
    """The demonstration cannot be told as it was asked for; fatal."""


@dataclass
class Story:
    """What the steps share: the terminal, the seed, the family that is unseen, the seconds of each step."""

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
        """A progress bar; call what it gives with (done, of how many)."""
        columns = (
            TextColumn("   {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(title, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    def say(self, line: str) -> None:
        """One line below the step's head."""
        self.console.print(f"   {line}")

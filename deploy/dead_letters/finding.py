"""Finds dead letters by what is said of them, over all pages of their topic."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from deploy.dead_letters.reading import DeadLetter, read_page
from ingest.settings import IngestSettings

_PAGE = 500


@dataclass(frozen=True)
class LetterFilter:
    """What a letter must be to be found; None: whatever it is."""

    reason: str | None = None
    stage: str | None = None
    source: str | None = None
    since: datetime | None = None

    def takes(self, letter: DeadLetter) -> bool:
        """Whether this letter is one of those."""
        return (
            self.reason in (None, letter.facts.get("reason"))
            and self.stage in (None, letter.facts.get("stage"))
            and self.source in (None, letter.source)
            and (self.since is None or letter.at_ms >= self.since.timestamp() * 1000)
        )


def find(ingest: IngestSettings, wanted: LetterFilter, timeout_s: float) -> Iterator[DeadLetter]:
    """Yield what is wanted, the newest of each page first. Raises TopicError."""
    before: dict[int, int] | None = {}
    while before is not None:
        page = read_page(ingest, before, _PAGE, timeout_s)
        yield from filter(wanted.takes, page.letters)
        before = None if page.older is None else dict(page.older)

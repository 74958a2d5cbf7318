"""Ends retractions: counts the outcomes, and writes `retracted` once every verdict has one.

The ledger alone says what is taken back, the topics what was done. So a server that was killed, or a second
one, comes to the same counts, and the end is written once.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

import structlog
from pydantic import ValidationError

from deploy.background import BackgroundWork
from deploy.records import PartitionLag
from deploy.releases.ledger import Event, Ledger, LedgerError, Move
from deploy.releases.publish import Publisher, make_moves
from deploy.releases.standing import replay
from deploy.rollout_records import OUTCOMES, RetractionState, RetractionView, Turn
from deploy.rollouts import metrics
from deploy.rollouts.moves import ROLLOUT
from deploy.rollouts.reader import InvalidComparisonError, TopicReader, require_signed
from detector.reading import CLOCKS_APART_MS
from detector.records import RETRACTIONS, Outcome, Retraction
from ingest.kafka.topics import TopicError
from ingest.settings import IngestSettings

INTERVAL_S = 5.0
SETTLED_S = 600.0
"""So long no verdict of the release came before its retraction may end: a worker that has not followed is put
out of its group after five minutes, and what it left open is ended after one more."""
_SHOWN = 20

Lag = Callable[[Retraction], Sequence[PartitionLag]]
"""How far the workers' group is behind in the verdicts topic, by partition. Raises TopicError."""

log = structlog.get_logger()


@dataclass
class _Followed:
    """The state of one retraction."""

    outcomes: TopicReader
    by_id: dict[str, str] = field(default_factory=dict)
    left: int | None = None
    quiet_since: float = field(default_factory=time.monotonic)
    """since when no outcome has come and nothing kept us from seeing one; by the monotonic clock"""
    to_reach: dict[int, int] | None = None
    """the ends of the topic, by partition, once it was quiet: what lies beyond is not the release's"""

    def counts(self) -> dict[str, int]:
        counted = Counter(self.by_id.values())
        return {name: counted[name] for name in OUTCOMES}


class Retractions(BackgroundWork):
    """Follows every retraction in a thread of its own, while it is entered. `view` says how each stands."""

    def __init__(
        self,
        ledger: Ledger,
        publisher: Publisher,
        lag: Lag,
        ingest: IngestSettings,
        keys: Sequence[bytes],
        interval_s: float = INTERVAL_S,
        settled_s: float = SETTLED_S,
    ) -> None:
        """keys: of the outcomes' signatures; none: nothing is asked for."""
        super().__init__("retractions")
        self._ledger, self._publisher, self._lag, self._ingest = ledger, publisher, lag, ingest
        self._keys = keys
        self._interval_s, self._settled_s = interval_s, settled_s
        self._followed: dict[Retraction, _Followed] = {}

    def view(self) -> list[RetractionView]:
        """Running retractions, oldest first, then the last ended, newest first. Raises LedgerError."""
        events = self._ledger.events()
        under_way = [self._view(item, events) for item in replay(events).retractions]
        return under_way + list(islice(_ended_retractions(events), _SHOWN))

    def tick(self) -> None:
        """Read new outcomes, and end retractions that have their last.

        Raises LedgerError and TopicError: then nothing was ended.
        """
        events = self._ledger.events()
        standing = replay(events)
        for over in self._followed.keys() - set(standing.retractions):
            self._followed.pop(over).outcomes.close()
        for retraction in standing.retractions:
            followed = self._followed.get(retraction)
            if followed is None:
                since_ms = int(_begun_at(events, retraction).timestamp() * 1000) - CLOCKS_APART_MS
                reader = TopicReader(self._ingest, RETRACTIONS, since_ms)
                followed = self._followed[retraction] = _Followed(reader)
            state = standing.releases[retraction.release].state
            if self._is_settled(retraction, followed) and state != "shadow":
                self._end(retraction, followed.counts())
        metrics.show_retractions(
            [_begun_at(events, item).timestamp() for item in standing.retractions],
            [followed.left for followed in self._followed.values()],
        )

    def _is_settled(self, retraction: Retraction, followed: _Followed) -> bool:
        """Whether the group has read all that can be of the release, and each outcome of it is counted."""
        # The group's place first: an outcome was committed with it, so that what is read next has them all.
        lag = self._lag(retraction)
        complete = self._count(retraction, followed)
        followed.left = sum(part.lag for part in lag)
        if self._publisher.problem is not None:  # workers may still be told to serve the release
            followed.quiet_since = time.monotonic()
        if not complete or time.monotonic() < followed.quiet_since + self._settled_s:
            followed.to_reach = None
            return False
        if followed.to_reach is None:
            followed.to_reach = {part.partition: part.end for part in lag}
        reached = followed.to_reach
        return reached.keys() == {part.partition for part in lag} and all(
            not part.lag or (part.committed or 0) >= reached[part.partition] for part in lag
        )

    def _count(self, retraction: Retraction, followed: _Followed) -> bool:
        while True:
            for value, headers, _ in followed.outcomes.poll():
                try:
                    require_signed(value, headers, self._keys)
                    outcome = Outcome.model_validate_json(value)
                except (InvalidComparisonError, ValidationError) as error:
                    log.warning("no outcome of a retraction", error=str(error).splitlines()[0])
                    continue
                if (outcome.retraction, outcome.release) != (retraction.number, retraction.release):
                    continue
                if outcome.id not in followed.by_id and followed.outcomes.has_item(outcome.id):
                    followed.by_id[outcome.id] = outcome.outcome
                    followed.quiet_since = time.monotonic()
            _, complete = followed.outcomes.read_until(time.time())
            if complete or self._stop.is_set():
                return complete

    def _end(self, retraction: Retraction, counts: Mapping[str, int]) -> None:
        def decide(history: tuple[Event, ...]) -> list[Move]:
            standing = replay(history)
            if retraction not in standing.retractions:
                return []
            digest, candidate = retraction.release, standing.releases[retraction.release].candidate
            turn = Turn(outcomes=dict(counts))
            return [Move(ROLLOUT, "retracted", digest, candidate.evaluation_digest, rollout=turn)]

        make_moves(self._ledger, self._publisher, decide)

    def _view(self, retraction: Retraction, events: Sequence[Event]) -> RetractionView:
        standing, followed = replay(events), self._followed.get(retraction)
        state, says = self._says(followed, standing.releases[retraction.release].state)
        return RetractionView(
            number=retraction.number,
            release=retraction.release,
            since=datetime.fromtimestamp(retraction.since_ms / 1000, UTC),
            began=_begun_at(events, retraction),
            state=state,
            says=says,
            outcomes={} if followed is None else followed.counts(),
            left=None if followed is None else followed.left,
            problem=self.problem,
        )

    def _says(self, followed: _Followed | None, release: str) -> tuple[RetractionState, str]:
        if release == "shadow":
            return ("waiting", "It waits: the release is on trial again, and is not taken back meanwhile.")
        if followed is None or followed.left is None:
            return "waiting", "It waits until its outcomes are read."
        if followed.left:
            return "reading", f"At most {followed.left} records of the verdicts topic are still to be read."
        minutes = self._settled_s / 60
        return (
            "settling",
            f"All is read; it ends once no verdict of the release came for {minutes:g} minutes.",
        )

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.tick()
                problem = None
            except (LedgerError, TopicError) as error:
                problem = str(error)
            except Exception as error:  # nobody watches a thread: the next round tries again
                problem = f"{type(error).__name__}: {error}"
                log.exception("retractions are not followed")
            if problem is not None:
                if problem != self.problem:
                    log.warning("retractions are not followed", problem=problem)
                self.close()  # what was missed may be an outcome: it is quiet from the next look on
            self.problem = problem
            metrics.RETRACTION_PROBLEM.set(problem is not None)
            self._stop.wait(self._interval_s)
        self.close()

    def close(self) -> None:
        """Leave the topics; a later tick reads them anew."""
        followed, self._followed = self._followed, {}
        for reader in followed.values():
            with suppress(TopicError):
                reader.outcomes.close()


def _begun_at(events: Sequence[Event], retraction: Retraction) -> datetime:
    return next(event.at for event in events if event.sequence == retraction.number)


def _ended_retractions(events: Sequence[Event]) -> Iterator[RetractionView]:
    """Yield the retractions that ended, the newest first."""
    ends: dict[str, Event] = {}
    for event in reversed(events):
        digest = event.move.digest
        if event.move.action == "retracted":
            ends[digest] = event
        elif event.move.action == "rollback" and (end := ends.pop(digest, None)) is not None:
            outcomes = (end.move.rollout and end.move.rollout.outcomes) or {}
            yield RetractionView(
                number=event.sequence,
                release=digest,
                began=event.at,
                state="done",
                says=f"Each of {sum(outcomes.values())} verdicts has its outcome.",
                outcomes=outcomes,
                ended=end.at,
            )

"""Takes rollouts on: reads the comparisons, looks at the checks, and makes the move that follows.

The ledger alone says where a rollout stands, and the topic what was seen. So a server that was killed, or a
second one, comes to the same move, and it is made once.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import structlog

from deploy.background import BackgroundWork
from deploy.release_records import TakeOut
from deploy.releases import approval
from deploy.releases.artifacts import StoreError
from deploy.releases.evidence import Evidence as Stored
from deploy.releases.evidence import EvidenceError
from deploy.releases.four_eyes import ApprovalError, by_one_hand
from deploy.releases.ledger import Ledger, LedgerError
from deploy.releases.publish import Publisher, make_moves
from deploy.releases.standing import LedgerState, replay
from deploy.rollout_records import Disagreement, RolloutView, Trial
from deploy.rollouts import metrics, moves
from deploy.rollouts.checks import NOT_ALONE
from deploy.rollouts.evidence import RolloutEvidence
from deploy.rollouts.moves import Decision, RolloutFacts, decide
from deploy.rollouts.reader import InvalidComparisonError, TopicReader, parse_comparison
from detector.records import COMPARISONS
from ingest.kafka.topics import TopicError
from ingest.settings import IngestSettings
from memory.store import StoreUnavailableError

INTERVAL_S = 1.0
_ON_REASON = 1000

log = structlog.get_logger()


@dataclass
class _Reading:
    """The evidence of one rollout, and the reader that goes on with it."""

    trial: Trial
    comparisons: TopicReader
    evidence: RolloutEvidence
    families: frozenset[str]
    """that either release knows"""
    before: RolloutEvidence | None = None
    """what was read by fewer labels, which is shown until all is read anew"""
    not_believed: int = 0
    newest_s: float | None = None
    complete: bool = False

    @property
    def visible(self) -> RolloutEvidence:
        return self.evidence if self.complete or self.before is None else self.before


class RolloutController(BackgroundWork):
    """Conducts in a thread of its own, while it is entered. `view` says how it stands, at any time."""

    def __init__(
        self,
        ledger: Ledger,
        publisher: Publisher,
        stored: Callable[[str], Stored],
        ingest: IngestSettings,
        keys: Sequence[bytes],
        known: Callable[[datetime], Sequence[str]],
        given: Callable[[], tuple[tuple[str, str], ...] | None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        """stored: the evidence in the store of artifacts, by digest. keys: of the comparisons' signatures.

        known: sources with a history before a time, the largest first. given: who gave whom a token,
        as `Access.tokens_given`.
        """
        super().__init__("rollout-controller")
        self._ledger, self._publisher, self._stored = ledger, publisher, stored
        self._ingest, self._keys, self._interval_s = ingest, keys, interval_s
        self._known, self._given = known, given
        self._reading: _Reading | None = None
        self._lock = threading.Lock()
        self._decision = Decision("wait", "It waits until its comparisons are read.")

    def view(self) -> RolloutView:
        """How the rollout stands by the ledger and the comparisons. Raises LedgerError."""
        trial = replay(self._ledger.events()).trial
        if trial is None:
            return RolloutView(trial=None, says="No release is on trial.")
        with self._lock:
            reading = self._reading
            if reading is None or not _is_on(trial, reading.trial):
                return RolloutView(trial=trial, says="Its comparisons are being read.", problem=self.problem)
            evidence = reading.visible
            return RolloutView(
                trial=trial,
                says=self._decision.says,
                problem=self.problem,
                checks=evidence.checks(trial.waived, self._by_one(trial)),
                contradictions=evidence.contradictions(),
                shared=evidence.shared,
                answered=evidence.answered_since(trial.since.timestamp()),
                left_out=evidence.left_out + Counter({"it is not to be believed": reading.not_believed}),
                table={word: dict(others) for word, others in evidence.table.items()},
                model_s=evidence.model_s(),
                declared=evidence.declared_recalls(),
            )

    def _by_one(self, trial: Trial) -> frozenset[str]:
        """Items that one hand alone has labelled; none where people cannot be distinguished."""
        given = self._given() if trial.judges else None
        return frozenset() if given is None else by_one_hand(trial.judges, given)

    def items(self, champion: str, challenger: str) -> list[Disagreement]:
        """The newest shared items with these two words of champion and challenger."""
        with self._lock:
            return [] if self._reading is None else self._reading.visible.items(champion, challenger)

    def disagreements(self) -> frozenset[str]:
        """Ids of those on which the releases differ."""
        with self._lock:
            return frozenset() if self._reading is None else self._reading.visible.kept_ids(differing=True)

    def kept_ids(self) -> frozenset[str]:
        """Ids of all items that can be opened."""
        with self._lock:
            return frozenset() if self._reading is None else self._reading.visible.kept_ids()

    def tick(self) -> None:
        """Read new records and make the move that follows.

        Raises LedgerError, TopicError, StoreError, EvidenceError, ApprovalError, StoreUnavailableError: then
        nothing was moved.
        """
        standing = replay(self._ledger.events())
        trial = standing.trial
        metrics.show(trial)
        if trial is None:
            return self._forget()
        if self._reading is None or not _same(self._reading.trial, trial):
            before = self._reading.visible if self._reading and _is_on(trial, self._reading.trial) else None
            self._forget()
            self._begin(standing, trial, before)
        assert self._reading is not None
        self._reading.evidence.steps_began([at.timestamp() for at in trial.steps])
        self._read(self._reading, trial)
        facts = _facts(self._reading, trial, self._by_one(trial))
        metrics.show_checks(facts.checks)
        self._decision = decide(trial, facts, datetime.now(UTC))
        self._act(trial, facts)

    def _begin(self, standing: LedgerState, trial: Trial, before: RolloutEvidence | None) -> None:
        champion, challenger = (
            standing.releases[digest].candidate.classes[1:] for digest in (trial.champion, trial.release)
        )
        comparisons = TopicReader(self._ingest, COMPARISONS, int(trial.began.timestamp() * 1000))
        known, alone = self._known(trial.began), NOT_ALONE in trial.waived
        evidence = RolloutEvidence(champion, challenger, trial.labels, known, trial.without, alone)
        families = frozenset((*champion, *challenger))
        reading = _Reading(trial, comparisons, evidence, families, before)
        with self._lock:
            self._reading = reading

    def _forget(self) -> None:
        reading = self._reading
        with self._lock:
            self._reading = None
        if reading is not None:
            reading.comparisons.close()

    def _read(self, reading: _Reading, trial: Trial) -> None:
        records = list(reading.comparisons.poll())
        now_s, topic = time.time(), self._ingest.media_topic
        until_s, reading.complete = reading.comparisons.read_until(now_s)
        with self._lock:
            for value, headers, at_s in records:
                try:
                    parsed = parse_comparison(
                        value, headers, at_s, trial, reading.families, topic, self._keys, now_s
                    )
                    if parsed is not None and not reading.comparisons.has_item(parsed.id):
                        raise InvalidComparisonError(f"{parsed.id!r} is no item of the stream")
                except InvalidComparisonError as error:
                    reading.not_believed += 1
                    metrics.UNBELIEVABLE.inc()
                    log.warning("a comparison is not believed", error=str(error))
                    continue
                if parsed is not None:
                    reading.evidence.add(parsed, at_s)
                    reading.newest_s = max(at_s, reading.newest_s or 0.0)
            reading.evidence.close(until_s)

    def _act(self, trial: Trial, facts: RolloutFacts) -> None:
        turn, sentence, checks = self._decision.turn, self._decision.says, tuple(facts.checks)
        if turn == "wait":
            return
        move = partial(make_moves, self._ledger, self._publisher)
        if turn == "rollback":
            wanted = TakeOut(reason=f"failed: {sentence}"[:_ON_REASON], digest=trial.release)
            back = self._stored(trial.champion)
            move(
                lambda history: (
                    approval.rollback(history, wanted, back, moves.ROLLOUT, checks)
                    if _is_on(replay(history).trial, trial)
                    else []
                )
            )
        elif turn == "inconclusive":
            move(lambda history: moves.inconclusive(history, trial, checks, sentence))
        else:
            stored = self._stored(trial.release)
            move(lambda history: moves.step_on(history, trial, checks, stored))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.tick()
                problem = None
            except (
                LedgerError,
                TopicError,
                StoreError,
                EvidenceError,
                ApprovalError,
                StoreUnavailableError,
            ) as error:
                problem = str(error)
                if problem != self.problem:
                    log.warning("the rollout does not go on", problem=problem)
                if isinstance(error, TopicError):
                    self._forget()
            except Exception as error:  # nobody watches a thread: the next round tries again
                problem = f"{type(error).__name__}: {error}"
                log.exception("the rollout does not go on")
                self._forget()
            self.problem = problem
            metrics.PROBLEM.set(problem is not None)
            self._stop.wait(self._interval_s)
        with suppress(TopicError):
            self._forget()


def _same(read: Trial, now: Trial) -> bool:
    """Whether what was read is of this rollout, and by the labels and sources that count now."""
    first, other = ((t.release, t.began, t.labels, t.without, NOT_ALONE in t.waived) for t in (read, now))
    return first == other


def _is_on(trial: Trial | None, read: Trial) -> bool:
    return trial is not None and (trial.release, trial.began) == (read.release, read.began)


def _facts(reading: _Reading, trial: Trial, by_one: frozenset[str]) -> RolloutFacts:
    evidence, since_s = reading.evidence, trial.since.timestamp()
    return RolloutFacts(
        checks=evidence.checks(trial.waived, by_one),
        shared=evidence.shared_since(since_s),
        answered=evidence.answered_since(since_s),
        newest=None if reading.newest_s is None else datetime.fromtimestamp(reading.newest_s, UTC),
        complete=reading.complete,
    )

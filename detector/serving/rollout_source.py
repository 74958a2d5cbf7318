"""What is to be served: deploy's word for it, asked for whenever the releases topic names something new.

Whoever may write to the topic can write anything, and a compacted topic keeps it for ever; so a record is a
notification, and deploy's answer is the authority. Where deploy cannot be asked, its last answer that was
served holds, also over a restart: it lies in a file beside the model store.
"""

from concurrent.futures import Future
from pathlib import Path
from typing import Literal, get_args

import structlog
from pydantic import ValidationError

from detector import metrics
from detector.records import Rollout
from detector.serving.fetch import FetchError, ask_rollout
from detector.serving.pause import LONGEST_PAUSE_S, Pause
from detector.settings import DetectorSettings
from ingest.durable import write_durably

log = structlog.get_logger()

State = Literal["not_asked", "confirmed", "unconfirmed", "nothing_approved", "unreachable"]
STATES: tuple[State, ...] = get_args(State)

_ASK_AGAIN_S = 60.0
"""Deploy is asked this often even where the topic has nothing new: a record may be lost with its topic."""


class Wanted:
    """The rollout that this worker follows, None before there is one, and whether deploy stands by it."""

    def __init__(self, settings: DetectorSettings) -> None:
        """Read what was served last; nothing is asked yet."""
        self.rollout: Rollout | None = None
        self._settings = settings
        self._path = settings.model_store_dir / "rollout.json"
        self.kept = _read(self._path)
        self._pause = Pause()
        self._asked_for: Rollout | None = None
        self._doubted: Rollout | None = None
        self._show("not_asked")

    def due(self, newest: Rollout | None) -> bool:
        """Whether deploy is to be asked now; newest is the topic's last record."""
        return newest != self._asked_for or self._pause.due

    def ask(self) -> Rollout | None:
        """Deploy's answer; blocking, and it changes nothing. Raises FetchError."""
        return ask_rollout(self._settings)

    def answered(self, newest: Rollout | None, answer: "Future[Rollout | None]") -> None:
        """Follow deploy's answer, which was asked for when newest was the topic's last record."""
        self._asked_for = newest
        try:
            rollout = answer.result()
        except FetchError as error:
            log.warning("deploy cannot be asked what to serve", error=str(error))
            self._show("unreachable")
        else:
            self.rollout = rollout or self.rollout
            if rollout is None:
                self._show("nothing_approved")
            elif newest is None or newest == rollout or _later(rollout, newest):
                self._show("confirmed")
                return self._pause.rest(_ASK_AGAIN_S)
            else:
                self._show("unconfirmed")
            if newest is not None and newest != self._doubted:
                self._doubted = newest
                metrics.UNCONFIRMED_ROLLOUTS.inc()
                log.error(
                    "the releases topic names what deploy does not confirm",
                    topic=newest.model_dump(exclude_none=True),
                    deploy=rollout and rollout.model_dump(exclude_none=True),
                )
        self._pause.failed(LONGEST_PAUSE_S)
        self.rollout = self.rollout or self.kept

    def keep(self, rollout: Rollout) -> None:
        """Have this rollout served after a restart, should deploy not answer then. Raises OSError."""
        if rollout != self.kept:
            write_durably(self._path, rollout.model_dump_json().encode())
            self.kept = rollout

    def _show(self, state: State) -> None:
        for each in STATES:
            metrics.ROLLOUT_STATE.labels(each).set(each == state)


def _later(one: Rollout, other: Rollout) -> bool:
    """Whether one is a later word of the same ledger: the topic is only behind."""
    return one.ledger == other.ledger and (one.epoch, one.sequence) > (other.epoch, other.sequence)


def _read(path: Path) -> Rollout | None:
    try:
        return Rollout.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("what was served last cannot be read", path=str(path), error=str(error))
        return None

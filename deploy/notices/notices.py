"""Tells the webhooks while the server runs, in a thread of its own, and puts pending decisions on record."""

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx
import structlog

from deploy.notice_records import WebhookState
from deploy.notices.sender import TRY_S, Sender
from deploy.notices.telling import TEST
from deploy.record.chain import Act
from deploy.record.record import Record

_WAITING_INTERVAL_S = 60.0

log = structlog.get_logger()


def trust(more: Path | None) -> ssl.SSLContext:
    """The public authorities and those of a PEM file. Raises OSError, which names the file."""
    context = httpx.create_ssl_context(trust_env=False)
    if more is not None:
        try:
            context.load_verify_locations(more)
        except OSError as error:
            raise OSError(f"FORGEWATCH_DEPLOY_WEBHOOK_CA is {more}: {error.strerror or error}") from error
    return context


class Notices:
    """Sends while it is entered; without webhooks it does nothing.

    One task a webhook: one that hangs holds up no other, nor the server's end.
    """

    def __init__(
        self,
        record: Record,
        senders: Sequence[Sender],
        waiting: Callable[[], Iterable[Act]],
        authorities: Path | None = None,
    ) -> None:
        """waiting gives the acts on pending decisions. Raises OSError, as `trust` does."""
        self._record, self._senders, self._waiting = record, senders, waiting
        self._trust = trust(authorities)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def __enter__(self) -> Self:
        """Begin. Raises RecordError."""
        for sender in self._senders:
            sender.open()
        if self._senders:
            # It logs the URL of each request, which is a secret here.
            logging.getLogger("httpx").setLevel(logging.WARNING)
            self._loop = asyncio.new_event_loop()
            self._task = self._loop.create_task(self._tell())
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join()
            self._loop.close()

    def states(self) -> list[WebhookState]:
        """How each webhook stands. Raises RecordError."""
        return [sender.state() for sender in self._senders]

    def test(self, actor: str) -> None:
        """Have a notice sent to every webhook, after those that wait, and at once. Raises RecordError."""
        self._record.append(Act(actor, TEST, "webhooks"))
        for sender in self._senders:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(sender.wake)

    def _run(self) -> None:
        assert self._loop is not None
        assert self._task is not None
        # Not asyncio.run: at its end it would wait for a resolver that hangs.
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)

    async def _tell(self) -> None:
        async with (
            # Neither a proxy nor a password comes out of the environment.
            httpx.AsyncClient(
                verify=self._trust, trust_env=False, follow_redirects=False, timeout=TRY_S
            ) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for sender in self._senders:
                tasks.create_task(sender.run(client))
            tasks.create_task(self._put_on_record())

    async def _put_on_record(self) -> None:
        while True:
            try:
                self._record.append_once(*self._waiting())
            except Exception as error:  # nobody watches a task: the next round tries again
                log.warning("pending releases are not on record", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(_WAITING_INTERVAL_S)

"""Sends one webhook its notices: in their order, each at least once, with the same id at each try.

No redirect is followed, and no proxy of the environment asked: what is sent goes to the host that was
listed. Which address its name has is the resolver's word, which is not checked.

CloudEvents 1.0, JSON event format, in the structured mode of its HTTP binding. Signed by Standard Webhooks
1.0.0 (https://www.standardwebhooks.com): HMAC-SHA256 over `ID.TIME.BODY`. Slack's incoming webhooks take a
`text`, in which `&`, `<` and `>` alone are control characters.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import httpx
import structlog
from prometheus_client import Counter, Gauge

from deploy.notice_records import Notice, Webhook, WebhookState
from deploy.notices.outbox import LEASE, Outbox
from deploy.notices.telling import notice_of
from deploy.record.record import Record, RecordError

SOURCE = "/forgewatch/deploy"


def cloud_event(notice: Notice) -> bytes:
    """A notice as a CloudEvent, with its data inside."""
    event = {
        "specversion": "1.0",
        "id": notice.id,
        "source": SOURCE,
        "type": notice.type,
        "subject": notice.subject,
        "time": notice.time.isoformat(),
        "datacontenttype": "application/json",
        "data": notice.data.model_dump(mode="json", exclude_none=True),
    }
    return json.dumps(event).encode()


def sign_headers(notice: Notice, body: bytes, key: bytes, now_s: int) -> Mapping[str, str]:
    """The headers of a CloudEvent that is sent at this Unix time."""
    content = f"{notice.id}.{now_s}.".encode() + body
    signature = base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    return {
        "content-type": "application/cloudevents+json",
        "webhook-id": notice.id,
        "webhook-timestamp": str(now_s),
        "webhook-signature": f"v1,{signature}",
    }


def slack(notice: Notice) -> bytes:
    """A notice for Slack: its sentence, in which nothing is a link, mention or bold, and its view's link."""
    text = "".join(c if c.isprintable() else " " for c in f"Forgewatch: {notice.data.says}")
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, entity)
    text += f" <{notice.data.link}>" if notice.data.link else ""
    return json.dumps({"text": text, "mrkdwn": False, "unfurl_links": False}).encode()


INTERVAL_S = 1.0
"""Between two looks whether there is a new notice."""
LONGEST_PAUSE_S = 300.0
"""Between two tries of one notice: they double from INTERVAL_S up to it."""
TRY_S = 10.0
"""A try ends after so long, however slowly its answer drips."""
KEPT = timedelta(days=7)
"""A notice that was not taken by then is left out: a webhook that is gone holds up nothing for ever."""

log = structlog.get_logger()


class NotTakenError(Exception):
    """A webhook did not take a notice; retryable. The text says why, without its URL."""


class Sender:
    """Sends to one webhook, while `run` runs. number: its place among all, from 1."""

    def __init__(
        self,
        record: Record,
        number: int,
        webhook: Webhook,
        key: bytes | None,
        *,
        interval_s: float = INTERVAL_S,
        try_s: float = TRY_S,
        lease: timedelta = LEASE,
        page_url: str | None = None,
    ) -> None:
        """key: it signs CloudEvents. page_url: where notices link to."""
        self._page_url = page_url
        self._record, self._number, self._webhook, self._key = record, number, webhook, key
        self._interval_s, self._try_s = interval_s, try_s
        self._outbox = Outbox(record, webhook, lease)
        self._seen = 0  # up to this act there is nothing that is still to be sent
        self._woken = asyncio.Event()
        show_webhook(str(number))

    def open(self) -> None:
        """Begin the cursor of a webhook that is new. Raises RecordError."""
        self._outbox.open()

    def state(self) -> WebhookState:
        """How the webhook stands, by any server's word. Raises RecordError."""
        return self._outbox.state(self._number, self._webhook)

    def wake(self) -> None:
        """Try now and not after the pause (of the loop's thread alone)."""
        self._woken.set()

    async def run(self, client: httpx.AsyncClient) -> None:
        """Send waiting and new notices, until cancelled."""
        pause_s, problem, label = self._interval_s, None, str(self._number)
        try:
            while True:
                try:
                    while await self._pass_one(client):
                        pause_s, problem = self._interval_s, None
                except (NotTakenError, RecordError) as error:
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                    FAILED.labels(label).inc()
                    if str(error) != problem:
                        log.warning("a notice is not taken", webhook=self._number, problem=str(error))
                    problem = str(error)
                except Exception:  # nobody watches a task: the next round tries again
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                    log.exception("a notice is not sent", webhook=self._number)
                with suppress(TimeoutError):
                    # wait_for would lose a cancellation that comes as it is woken (Python 3.11).
                    async with asyncio.timeout(pause_s):
                        await self._woken.wait()
                self._woken.clear()
        finally:
            with suppress(RecordError):
                self._outbox.release()

    async def _pass_one(self, client: httpx.AsyncClient) -> bool:
        """Send the next notice, or leave it out where it is too old; False where there is none for us.

        Raises NotTakenError, RecordError.
        """
        label, head = str(self._number), self._record.head().size
        act = self._outbox.next(max(self._outbox.until(), self._seen))
        WAITING_SINCE.labels(label).set(act.at.timestamp() if act else 0)
        if act is None:
            self._seen = head
            return False
        now = datetime.now(UTC)
        until = self._outbox.claim(now)
        if until is None:
            return False  # another server sends it
        if until >= act.sequence:
            return True  # another server sent it meanwhile
        if now - act.at > KEPT:
            LEFT_OUT.labels(label).inc()
            log.error("a notice is left out", webhook=self._number, act=act.sequence, action=act.action)
            self._outbox.pass_on(act.sequence, taken=None)
            return True
        try:
            await self._post(client, notice_of(act, self._page_url))
        except NotTakenError as error:
            self._outbox.fail(str(error))
            raise
        self._outbox.pass_on(act.sequence, taken=datetime.now(UTC))
        TAKEN.labels(label).inc()
        return True

    async def _post(self, client: httpx.AsyncClient, notice: Notice) -> None:
        if self._webhook.form == "slack":
            body, headers = slack(notice), {"content-type": "application/json"}
        else:
            assert self._key is not None, "the settings ask for one"
            body = cloud_event(notice)
            headers = dict(sign_headers(notice, body, self._key, int(time.time())))
        url = self._webhook.url.get_secret_value()
        try:
            # Of an answer its status alone is read: whatever follows it may be endless.
            async with (
                asyncio.timeout(self._try_s),
                client.stream("POST", url, content=body, headers=headers) as answer,
            ):
                status = answer.status_code
        except (TimeoutError, httpx.TimeoutException) as error:
            raise NotTakenError(f"no answer within {self._try_s:g} s") from error
        except httpx.ConnectError as error:
            raise NotTakenError(f"cannot be reached: {error}") from error
        except httpx.HTTPError as error:
            raise NotTakenError(f"no answer: {type(error).__name__}") from error
        if 300 <= status < 400:
            raise NotTakenError(f"it answers {status}: redirects are not followed")
        if not 200 <= status < 300:
            raise NotTakenError(f"it answers {status}")


TAKEN = Counter("forgewatch_deploy_notices_taken", "Notices that a webhook took", ["webhook"])
FAILED = Counter("forgewatch_deploy_notices_failed", "Tries to send a notice that failed", ["webhook"])
LEFT_OUT = Counter("forgewatch_deploy_notices_left_out", "Notices not taken in seven days", ["webhook"])
WAITING_SINCE = Gauge(
    "forgewatch_deploy_notices_waiting_since_timestamp_seconds",
    "When the oldest notice that a webhook has not taken was written, Unix time; 0: none waits",
    ["webhook"],
)


def show_webhook(webhook: str) -> None:
    """Have a webhook's metrics there before its first notice: what was not there has no increase."""
    for metric in (TAKEN, FAILED, LEFT_OUT, WAITING_SINCE):
        metric.labels(webhook)

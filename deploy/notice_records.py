"""What webhooks are told, and how each webhook stands. Light: the settings and every client import it."""

import base64
from collections.abc import Mapping
from typing import Any, Literal

import httpx
from pydantic import AwareDatetime, BaseModel, Field, SecretStr, field_validator

from deploy.rollout_records import Check

Form = Literal["cloudevents", "slack"]


class Webhook(BaseModel, frozen=True, extra="forbid"):
    """Where notices go. Whoever knows a URL of Slack can write there, so that no URL is ever shown."""

    url: SecretStr = Field(description="where each notice is POSTed")
    form: Form = Field("cloudevents", description="the format: a signed CloudEvent, or text for Slack")

    @field_validator("url")
    @classmethod
    def _is_one(cls, url: SecretStr) -> SecretStr:
        try:
            parsed = httpx.URL(url.get_secret_value())
        except httpx.InvalidURL:
            raise ValueError("it is no URL") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError("a webhook's URL begins with https:// or http:// and names a host")
        if "@" in f"{parsed.path}{parsed.query!r}{parsed.fragment}":  # a password that ended the host
            raise ValueError("write the @ / ? # of its user and password as %40 %2F %3F %23")
        return url

    @property
    def host(self) -> str:
        """The host that the URL names, in lower case."""
        return httpx.URL(self.url.get_secret_value()).host.lower()


_PREFIX, _LEAST, _MOST = "whsec_", 24, 64


def key_of(secret: str) -> bytes:
    """The key that a secret of Standard Webhooks holds. Raises ValueError, in one line."""
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except ValueError:  # what is no base64, or no ASCII
        key = b""
    if not secret.startswith(_PREFIX) or not _LEAST <= len(key) <= _MOST:
        raise ValueError(
            f"it is {_PREFIX} and the base64 of {_LEAST} to {_MOST} random bytes: make one with"
            f' echo "{_PREFIX}$(openssl rand -base64 32)"'
        )
    return key


class NoticeData(BaseModel):
    """What a notice says. Which of its fields are there depends on the type."""

    says: str = Field(description="it all in one sentence")
    by: str = Field(description="who did it: a person, or the part of Forgewatch that did")
    act: int = Field(description="the act's place in the record (`forgewatch record list`)")
    link: str | None = Field(None, description="the page's view of it, at FORGEWATCH_DEPLOY_URL")
    reason: str | None = None
    step: str | None = Field(None, description="of a step: shadow, the canary's share in percent, or live")
    checks: tuple[Check, ...] | None = Field(None, description="what the move rests on")
    accepted: Mapping[str, str] | None = Field(None, description="the findings that were taken, and why")
    details: Mapping[str, Any] | None = Field(
        None, description="of a drift or a purge: its findings, or the items taken"
    )


class Notice(BaseModel, frozen=True):
    """An act that webhooks are told of."""

    id: str = Field(description="the same at each try")
    type: str = Field(description="of the CloudEvent: io.forgewatch.release.proposed and its like")
    time: AwareDatetime
    subject: str = Field(description="a release's digest, or a source")
    data: NoticeData


class WebhookState(BaseModel):
    """How one webhook stands."""

    number: int = Field(description="its place in FORGEWATCH_DEPLOY_WEBHOOKS, from 1")
    host: str
    form: Form
    until: int = Field(description="it has taken all notices up to this act of the record")
    taken_at: AwareDatetime | None = Field(description="when it took the last one")
    waiting: int = Field(description="notices that it has not taken")
    waiting_since: AwareDatetime | None = Field(description="when the oldest of them was written")
    error: str | None = Field(description="why the last try failed; null: it did not")

"""A notice as it goes out: a signed CloudEvent, or a text for Slack. Pure.

CloudEvents 1.0, JSON event format, in the structured mode of its HTTP binding. Signed by Standard Webhooks
1.0.0 (https://www.standardwebhooks.com): HMAC-SHA256 over `ID.TIME.BODY`. Slack's incoming webhooks take a
`text`, in which `&`, `<` and `>` alone are control characters.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping

from deploy.notice_records import Notice

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

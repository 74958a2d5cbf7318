"""What is said of a request whose body is declared longer than its endpoint takes."""

from collections.abc import Awaitable, Callable

from fastapi import Request
from starlette.middleware.body_limit import MAX_BODY_SIZE_SCOPE_KEY
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Say = Callable[[Request, str], Awaitable[ASGIApp]]


class TooLargeSaid:
    """Puts a line that says how much fits in place of the bare one of Starlette's limiter.

    The limiter answers outside of all other middleware, so this stands around it.
    """

    def __init__(self, app: ASGIApp, say: Say) -> None:
        """say makes the answer out of its reason."""
        self._app, self._say = app, say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        instead = False

        async def send_or_replace(message: Message) -> None:
            nonlocal instead
            if message["type"] == "http.response.start" and message["status"] == 413:
                instead = (b"content-type", b"text/plain; charset=utf-8") in message["headers"]
            if not instead:
                await send(message)
            elif message["type"] == "http.response.start":
                request = Request(scope)
                length, limit = request.headers.get("content-length"), scope[MAX_BODY_SIZE_SCOPE_KEY]
                reason = f"the body has {length} bytes, and at most {limit} are taken here: send less at once"
                await (await self._say(request, reason))(scope, receive, send)

        await self._app(scope, receive, send_or_replace if scope["type"] == "http" else send)

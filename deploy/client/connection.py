"""The connection to one deploy server: what it answers, and every way in which it does not."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter

from deploy.settings import DeploySettings

_TIMEOUT_S = 60.0


T = TypeVar("T")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


class ClientError(Exception):
    """The deploy server did not do what it was asked."""


class ServerUnavailableError(ClientError):
    """Nobody answers, or the server is in trouble itself; retryable."""


class ServerRefusedError(ClientError):
    """The server says no and why; fatal for the request. status is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Connection:
    """Asks one deploy server on behalf of one person."""

    def __init__(self, settings: DeploySettings, actor: str) -> None:
        """actor is who does what is asked, where no token says so."""
        if settings.token is None:
            headers = {"X-Forgewatch-Actor": quote(actor, safe=" ")}
        else:
            headers = {"Authorization": f"Bearer {settings.token.get_secret_value()}"}
        self._url = settings.url
        try:
            # trust_env would send loopback traffic through a proxy that the environment names.
            self._http = httpx.Client(base_url=settings.url, headers=headers, trust_env=False)
        except httpx.InvalidURL as error:
            raise ServerRefusedError(f"FORGEWATCH_DEPLOY_URL is no address: {error}", 0) from error

    def close(self) -> None:
        self._http.close()

    def answer(self, kind: type[T], method: str, path: str, *body: Any, **more: Any) -> T:
        """The answer of `ask` as a model, or a list or dict of such."""
        model: T = _adapter(kind).validate_json(self.ask(method, path, *body, **more).content)
        return model

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        content: bytes | None = None,
        params: dict[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> httpx.Response:
        """The answer, where it is a success. Raises ServerUnavailableError, ServerRefusedError."""
        request: dict[str, Any] = {"json": body, "content": content, "params": params}
        try:
            answer = self._http.request(method, path, **request, timeout=timeout_s or _TIMEOUT_S)
        except httpx.TransportError as error:
            raise ServerUnavailableError(
                f"the deploy server at {self._url} does not answer ({error}); "
                "start the stack with `forgewatch up` or set FORGEWATCH_DEPLOY_URL"
            ) from error
        if answer.is_success:
            return answer
        text = f"the deploy server says: {_detail(answer)}"
        if answer.is_server_error:
            raise ServerUnavailableError(text)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            text += "; set FORGEWATCH_DEPLOY_TOKEN to yours (an admin gives one: `forgewatch token add`)"
        raise ServerRefusedError(text, answer.status_code)


def _detail(answer: httpx.Response) -> str:
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code} {answer.text[:200]}"
    if isinstance(detail, str):
        return detail
    # FastAPI's list of what is wrong with the request.
    return "; ".join(f"{'.'.join(map(str, problem['loc'][1:]))}: {problem['msg']}" for problem in detail)

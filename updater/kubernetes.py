"""The four calls of the Kubernetes API that make a Job and look at it, with the pod's own service account.

Documented in the API reference: batch/v1 CronJob and Job, core/v1 Pod; and under "Accessing the Kubernetes
API from a Pod" for the folder, the two variables and the token, which is renewed while the pod lives.
"""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 10.0

Object = dict[str, Any]
"""one object of the API as JSON has it"""

_RIGHTS = (
    "a Role in its namespace must let its service account get cronjobs, create and list jobs, and list pods"
)


class NoClusterError(Exception):
    """This process is in no pod, or its pod has no service account's token. Fatal."""


class KubernetesError(Exception):
    """The API did not carry out a request; the text gives a remedy in one line. Retryable."""


class Kubernetes:
    """The API server as the pod's service account sees it, in the pod's namespace. Use it as a context."""

    def __init__(self, folder: Path | None = None) -> None:
        """Raise NoClusterError where the folder, else SERVICE_ACCOUNT, or the API's address is missing."""
        folder = folder or SERVICE_ACCOUNT
        self._token = folder / "token"
        try:
            host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
            self.namespace = (folder / "namespace").read_text().strip()
            authority = ssl.create_default_context(cafile=folder / "ca.crt")
        except KeyError as error:
            raise NoClusterError(f"{error.args[0]} is not set: this process is in no pod") from error
        except OSError as error:
            raise NoClusterError(
                f"{folder} is not readable ({error.strerror}): mount the service account's token "
                "(automountServiceAccountToken)"
            ) from error
        # Clusters' own authorities often lack extensions that Python 3.13 demands; the chain is checked.
        authority.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self._http = httpx.Client(
            base_url=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            verify=authority,
            timeout=TIMEOUT_S,
            trust_env=False,  # the token would go to a proxy that the environment names
            auth=self._authorise,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def cron_job(self, name: str) -> Object:
        """Return a CronJob. Raises KubernetesError."""
        answer = self._ask("GET", self._path("batch/v1", "cronjobs", name))
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise KubernetesError(
                f"there is no CronJob {name} in the namespace {self.namespace}: create it, "
                "suspended, or give FORGEWATCH_UPDATER_JOB_TEMPLATE the name of one"
            )
        return self._object(answer)

    def create_job(self, job: Object, *, rehearse: bool = False) -> bool:
        """Create a Job; False where one of this name is there. Raises KubernetesError.

        rehearse: everything is checked, admission included, and nothing is created.
        """
        dry_run = {"dryRun": "All"} if rehearse else {}
        answer = self._ask("POST", self._path("batch/v1", "jobs"), params=dry_run, json=job)
        if answer.status_code == httpx.codes.CONFLICT:
            return False
        self._object(answer)
        return True

    def jobs(self, labels: Mapping[str, str]) -> list[Object]:
        """Return the Jobs that bear these labels. Raises KubernetesError."""
        return self._list(self._path("batch/v1", "jobs"), labels)

    def pods(self, labels: Mapping[str, str]) -> list[Object]:
        """Return the pods that bear these labels. Raises KubernetesError."""
        return self._list(self._path("v1", "pods"), labels)

    def _list(self, path: str, labels: Mapping[str, str]) -> list[Object]:
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        listed = self._object(self._ask("GET", path, params={"labelSelector": selector}))
        return list(listed["items"])

    def _path(self, version: str, kind: str, name: str = "") -> str:
        group = "apis" if "/" in version else "api"
        return f"/{group}/{version}/namespaces/{self.namespace}/{kind}{f'/{name}' if name else ''}"

    def _ask(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, json: Object | None = None
    ) -> httpx.Response:
        try:
            return self._http.request(method, path, params=params, json=json)
        except (httpx.TransportError, OSError) as error:
            text = str(error) or type(error).__name__
            raise KubernetesError(f"the Kubernetes API does not answer: {text}") from error

    def _authorise(self, request: httpx.Request) -> httpx.Request:
        request.headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
        return request

    def _object(self, answer: httpx.Response) -> Object:
        try:
            body = answer.json()
        except ValueError:
            body = None
        if answer.is_success and isinstance(body, dict):
            return body
        text = body.get("message") if isinstance(body, dict) else None
        raise KubernetesError(_complaint(answer, text or answer.text[:300]))


def _complaint(answer: httpx.Response, text: str) -> str:
    text = " ".join(text.split())
    request = f"{answer.request.method} {answer.request.url.path}"
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        return f"the Kubernetes API does not take the service account's token for {request}: {text}"
    if answer.status_code == httpx.codes.FORBIDDEN and " cannot " in text:
        return f"the Kubernetes API forbids it: {text}; {_RIGHTS}"
    return f"the Kubernetes API answered {answer.status_code} to {request}: {text}"

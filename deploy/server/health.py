"""Whether the processes of a stack live, and what keeps them from their work: asked beside their metrics."""

from concurrent.futures import ThreadPoolExecutor

import httpx

from deploy.client.records import ProcessHealth
from deploy.server.complaints import complaints

_HEALTH_TIMEOUT_S = 5.0


def processes_health(addresses: dict[str, str]) -> list[ProcessHealth]:
    """Ask every address at once. Alive is what answers with 200 there and does not call its loop stuck."""
    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        return list(pool.map(_health, addresses, addresses.values()))


def _health(name: str, address: str) -> ProcessHealth:
    try:
        # trust_env would send a cluster's own traffic through a proxy that the environment names.
        with httpx.Client(trust_env=False, timeout=_HEALTH_TIMEOUT_S) as client:
            answer = client.get(address)
            stuck = client.get(answer.url.join("/livez"))
            unready = client.get(answer.url.join("/readyz"))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        down = str(error) or type(error).__name__
        return ProcessHealth(name=name, address=address, alive=False, problem=down)
    if not answer.is_success:
        return ProcessHealth(name=name, address=address, alive=False, problem=f"HTTP {answer.status_code}")
    said = [" ".join(unready.text.split())] if unready.status_code == httpx.codes.SERVICE_UNAVAILABLE else []
    problem = "; ".join([*said, *complaints(answer.text)]) or None
    alive = stuck.status_code != httpx.codes.SERVICE_UNAVAILABLE
    return ProcessHealth(name=name, address=address, alive=alive, problem=problem)

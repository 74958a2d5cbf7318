"""Whether the process of this container is live, for HEALTHCHECK; in a cluster the kubelet asks by itself.

It looks for a `python -m ROOM` and asks its /livez, or TorchServe's /ping. Exit code 0: live. Only the
standard library: this runs twice a minute.
"""

import os
import sys
from http.client import HTTPConnection, HTTPException
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

METRICS_PORTS = {"detector": 9101, "memory": 9102, "updater": 9103, "deploy": 9104}
"""The defaults of FORGEWATCH_…_METRICS_PORT."""
TORCHSERVE_URL = "http://127.0.0.1:8080"
"""The default of FORGEWATCH_DETECTOR_TORCHSERVE_URL."""


def module_run(processes: Path = Path("/proc")) -> str | None:
    """The module of the oldest `python -m MODULE` of this container that has an address to ask."""
    for folder in sorted(processes.glob("[0-9]*"), key=lambda process: int(process.name)):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended
        for flag, module in pairwise(words):
            if flag == b"-m" and module.decode() in (*METRICS_PORTS, "detector.serving.torchserve_launch"):
                return module.decode()
    return None


def address(module: str) -> tuple[str, int, str]:
    """Host, port and path to ask."""
    if module not in METRICS_PORTS:
        url = urlsplit(os.environ.get("FORGEWATCH_DETECTOR_TORCHSERVE_URL", TORCHSERVE_URL))
        return url.hostname or "", url.port or 80, "/ping"
    host = os.environ.get("FORGEWATCH_METRICS_HOST", "127.0.0.1")
    port = int(os.environ.get(f"FORGEWATCH_{module.upper()}_METRICS_PORT", METRICS_PORTS[module]))
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port, "/livez"  # noqa: S104 - compared


def main() -> int:
    """Ask, and say what was answered."""
    module = module_run()
    if module is None:
        return _say(f"no process of {', '.join(METRICS_PORTS)} and no TorchServe runs here")
    host, port, path = address(module)
    connection = HTTPConnection(host, port, timeout=4)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read(1000).decode(errors="replace").strip()
    except (OSError, HTTPException) as error:
        return _say(f"{module}: {host}:{port}{path}: {error}")
    sys.stdout.write(f"{module}: {text}\n")
    return int(answer.status != 200)


def _say(problem: str) -> int:
    sys.stdout.write(f"{problem}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())

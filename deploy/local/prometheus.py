"""Debian's Prometheus beside a stack, with the rules of helm/forgewatch; only where it is installed.

It keeps its data below the stack's folder, for two days at most. It listens on loopback, without the
endpoints that reload or end it, since any page in a browser on this host could call those; it reads its
rules again on SIGHUP.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from deploy.local.processes import Launch, answers, claim_port, start, wait_until

HELM = Path(__file__).parents[2] / "helm"
"""The chart's room in the repository, from which a stack runs."""

_START_TIMEOUT_S = 30.0
_SCRAPE_INTERVAL = "5s"
# It shares the cores with what it watches, and needs nothing else of the environment.
_ENVIRONMENT = {"GOMAXPROCS": "1"}


def program_path() -> str | None:
    """Where the program is; None where it is not installed."""
    return shutil.which("prometheus")


def start_prometheus(folder: Path, port: int, rooms: Mapping[str, int], *, launch: Launch = start) -> str:
    """Start Prometheus with its state in `folder` and wait until it is ready; returns its address.

    rooms are the metrics ports of this host's processes, by their names, which become the label `instance`.
    Raises processes.StackError.
    """
    program = program_path()
    assert program is not None
    port = claim_port(port)
    folder = folder.absolute()
    _write_rules(folder / "rules")
    settings = folder / "prometheus.json"
    settings.write_text(json.dumps(_settings(rooms), indent=1))
    command = (
        program,
        f"--config.file={settings}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=2d",
        "--storage.tsdb.retention.size=512MB",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    )
    log, url = folder / "prometheus.log", f"http://127.0.0.1:{port}"
    process = launch("prometheus", command, log=log, environment=_ENVIRONMENT, folder=folder)
    wait_until(process, lambda: answers(f"{url}/-/ready"), _START_TIMEOUT_S)
    return url


def _write_rules(folder: Path) -> None:
    """Copy the rules, which a person may then change, with runbooks that lead into this repository."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in sorted((HELM / "forgewatch" / "rules").glob("*.yaml")):
        text = path.read_text().replace("runbook_url: helm/", f"runbook_url: {HELM.as_uri()}/")
        (folder / path.name).write_text(text)


def _settings(rooms: Mapping[str, int]) -> dict[str, object]:
    # JSON is YAML, too. The paths count from the file's own folder.
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": room}} for room, port in rooms.items()
    ]
    return {
        "global": {"scrape_interval": _SCRAPE_INTERVAL, "evaluation_interval": _SCRAPE_INTERVAL},
        "rule_files": ["rules/*.yaml"],
        "scrape_configs": [{"job_name": "forgewatch", "static_configs": targets}],
    }

"""What Prometheus says of Forgewatch, and which releases a worker's metrics say it scores by."""

import re
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ValidationError

_TIMEOUT_S = 5.0
_OURS = "Forgewatch"
_SERVING = "forgewatch_detector_serving"


class PrometheusError(Exception):
    """Prometheus cannot be asked, or answers what it should not; the text says why in one line."""


class Alert(BaseModel, frozen=True):
    """An alert that fires: its name, how bad it is, what it says in figures, and where its runbook is."""

    name: str
    severity: str
    description: str
    runbook_url: str


def hide_login(url: str) -> str:
    """Return an address without its user and password."""
    return re.sub("//[^/]*@", "//", url)


def scored_by(address: str) -> set[str]:
    """Give the short names of the releases that a worker's metrics say it scores by.

    Raises httpx.HTTPError and httpx.InvalidURL, and ValueError where the address shows no metrics.
    """
    text = httpx.get(address, timeout=_TIMEOUT_S, trust_env=False).raise_for_status().text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {sample.labels["release"] for sample in samples if sample.name == _SERVING and sample.value}


def firing_alerts(url: str) -> list[Alert]:
    """Give the alerts of helm/forgewatch/rules that fire now, by their names. Raises PrometheusError.

    url is the address of a Prometheus server. One that has none of the rules is an error: its silence says
    nothing.
    """
    answer = _get(url, "rules", type="alert")
    try:
        rules = [rule for group in answer["groups"] for rule in group["rules"]]
        ours = [rule for rule in rules if rule["name"].startswith(_OURS)]
        if not ours:
            raise PrometheusError(f"{hide_login(url)} has none of the rules of helm/forgewatch/rules")
        if broken := [f"{rule['name']}: {rule['lastError']}" for rule in ours if rule.get("lastError")]:
            raise PrometheusError(f"{hide_login(url)} cannot evaluate {'; '.join(broken)}")
        alerts = [
            Alert(name=rule["name"], severity=alert["labels"]["severity"], **alert["annotations"])
            for rule in ours
            for alert in rule["alerts"]
            if alert["state"] == "firing"
        ]
    except (AttributeError, KeyError, TypeError, ValidationError) as error:
        raise PrometheusError(f"{hide_login(url)} has rules of another form: {error!r}") from error
    return sorted(alerts, key=lambda alert: alert.name)


def history(url: str, query: str, since_s: float, until_s: float, step_s: float) -> list[tuple[float, float]]:
    """Give a figure over time, as (seconds since 1970, value). Raises PrometheusError."""
    bounds = {"start": f"{since_s:.0f}", "end": f"{until_s:.0f}", "step": f"{step_s:.0f}"}
    answer = _get(url, "query_range", query=query, **bounds)
    try:
        return [
            (float(at), float(value)) for series in answer["result"][:1] for at, value in series["values"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise PrometheusError(f"{hide_login(url)} has a history of another form: {error!r}") from error


def _get(url: str, path: str, **parameters: str) -> Any:
    try:
        # An error of httpx tells the address with its login.
        named = httpx.URL(url)
        given: Any = {
            "auth": (named.username, named.password) if named.userinfo else None,
            "trust_env": False,
        }
        answer = httpx.get(f"{hide_login(url)}/api/v1/{path}", params=parameters, timeout=_TIMEOUT_S, **given)
        return answer.raise_for_status().json()["data"]
    except (httpx.HTTPError, httpx.InvalidURL, KeyError, TypeError, ValueError) as error:
        raise PrometheusError(f"{hide_login(url)} does not answer as Prometheus does: {error}") from error

"""The check of the alerts, where there is a Prometheus to be asked."""

from deploy.client.prometheus import PrometheusError, firing_alerts
from deploy.doctor.host import CheckError
from deploy.settings import DeploySettings


def alerts() -> str:
    """No alert of Forgewatch fires."""
    url = DeploySettings().prometheus_url
    if url is None:
        return "no Prometheus to ask; `forgewatch up` starts one that is installed"
    try:
        firing = firing_alerts(url)
    except PrometheusError as error:
        raise CheckError(str(error), "start it, or see FORGEWATCH_DEPLOY_PROMETHEUS_URL") from error
    if firing:
        raise CheckError(
            "; ".join(f"{alert.name}: {alert.description}" for alert in firing),
            f"read {' and '.join(dict.fromkeys(alert.runbook_url for alert in firing))}",
        )
    return f"none fires at {url}"

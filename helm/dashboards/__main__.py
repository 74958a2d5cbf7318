"""`python -m helm.dashboards`: writes each dashboard's JSON into the chart."""

from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from helm.dashboards import detection, operations, stream

FOLDER = Path(__file__).parents[1] / "forgewatch" / "dashboards"
DASHBOARDS = {"stream": stream.build, "detection": detection.build, "operations": operations.build}


def encode(dashboard: Dashboard) -> str:
    """The JSON that Grafana imports, the same for the same source; panels are numbered in their order."""
    for number, panel in enumerate(dashboard.panels or [], start=1):
        panel.id_val = number
    return JSONEncoder(sort_keys=True, indent=1, ensure_ascii=False).encode(dashboard) + "\n"


def main() -> None:
    for name, build in DASHBOARDS.items():
        (FOLDER / f"{name}.json").write_text(encode(build()))


if __name__ == "__main__":
    main()

"""What the rules and dashboards of the chart hold."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[3] / "helm" / "forgewatch"


@pytest.fixture(scope="session")
def dashboards() -> dict[str, dict[str, Any]]:
    """Each dashboard as it lies in the chart, by its name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((CHART / "dashboards").glob("*.json"))}


@pytest.fixture(scope="session")
def rules() -> list[dict[str, Any]]:
    """Every rule of the chart: those that record, and the alerts."""
    texts = [path.read_text() for path in sorted((CHART / "rules").glob("*.yaml"))]
    return [rule for text in texts for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]

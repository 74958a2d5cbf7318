"""The dashboards: made from their source, for any data source, and each panel says what is normal."""

from pathlib import Path
from typing import Any

import pytest

from helm.dashboards.__main__ import DASHBOARDS, FOLDER, encode

Dashboards = dict[str, dict[str, Any]]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_json_is_what_the_source_makes(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text() == encode(DASHBOARDS[name]()), "run: make dashboards"


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def test_there_are_three_with_names_of_their_own(dashboards: Dashboards) -> None:
    assert set(dashboards) == {"stream", "detection", "operations"}
    assert len({dashboard["uid"] for dashboard in dashboards.values()}) == 3


def test_every_panel_has_a_unit_and_says_what_is_normal(dashboards: Dashboards) -> None:
    shown = [panel for dashboard in dashboards.values() for panel in panels(dashboard)]
    assert len(shown) > 40
    for panel in shown:
        described = panel["description"]
        assert "Normal" in described or "Only where" in described or "0: none" in described, panel["title"]
        assert len(described) > 60, panel["title"]
        # A heat map's axis is its buckets, which are scores and have no unit.
        assert panel["type"] == "heatmap" or panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_no_data_source_and_no_instance_is_written_in(dashboards: Dashboards) -> None:
    for dashboard in dashboards.values():
        asked = [*panels(dashboard), *dashboard["annotations"]["list"]]
        asked += [target for panel in panels(dashboard) for target in panel["targets"]]
        assert {one["datasource"]["uid"] for one in asked} == {"${datasource}"}
        names = [variable["name"] for variable in dashboard["templating"]["list"]]
        assert names[:3] == ["datasource", "namespace", "instance"]
        used = str(dashboard["panels"])
        assert all(f"${name}" in used for name in names[1:])


def test_swaps_and_approvals_are_marked_at_whatever_range_of_time(dashboards: Dashboards) -> None:
    for dashboard in dashboards.values():
        marked = {one["name"]: one["expr"] for one in dashboard["annotations"]["list"]}
        assert "swaps" in marked["Swaps"]
        assert "approve" in marked["Approvals"]
        assert all("[$__rate_interval]" in expr for expr in marked.values())


def test_panels_do_not_lie_on_one_another(dashboards: Dashboards) -> None:
    for name, dashboard in dashboards.items():
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken, f"{name}: {panel['title']}"
            assert at["x"] + at["w"] <= 24
            taken |= cells


def test_energy_and_unknown_score_are_heat_maps_by_release(dashboards: Dashboards) -> None:
    heat = [panel for panel in panels(dashboards["detection"]) if panel["type"] == "heatmap"]
    assert {panel["repeat"] for panel in heat} == {"release"}
    assert {panel["targets"][0]["format"] for panel in heat} == {"heatmap"}
    assert len(heat) == 2


def test_the_source_lies_beside_the_chart_and_not_in_it() -> None:
    assert list(Path(FOLDER).parent.rglob("*.py")) == []

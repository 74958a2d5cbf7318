"""What the three dashboards are made of: variables, annotations, and a panel of each kind."""

from collections.abc import Mapping

from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models.dashboard import Dashboard as DashboardModel
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HERE = 'namespace=~"$namespace",instance=~"$instance"'
"""The matchers of every selector. Where there are no namespaces, `$namespace` matches the label's absence."""

WIDE, HALF, THIRD, QUARTER = 24, 12, 8, 6
_HIGH, _LOW = 8, 4
_ALL = VariableOption(selected=True, text="All", value="$__all")


Panel = timeseries.Panel | stat.Panel | heatmap.Panel


def dashboard(
    uid: str, title: str, description: str, *panels: Row | Panel, by_release: bool = False
) -> DashboardModel:
    """A dashboard of these rows and panels, with its variables, annotations and links to the two others.

    by_release adds the variable `release`: which releases to show.
    """
    board = (
        Dashboard(title)
        .uid(f"forgewatch-{uid}")
        .description(description)
        .tags(["forgewatch"])
        .time("now-3h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_choice("namespace", "Namespace", "label_values(forgewatch_process_info, namespace)"))
        .with_variable(
            _choice(
                "instance",
                "Instance",
                'label_values(forgewatch_process_info{namespace=~"$namespace"}, instance)',
            )
        )
        .annotation(_annotation("Swaps", "blue", 'forgewatch_detector_swaps_total{outcome="served",%s}'))
        .annotation(_annotation("Approvals", "green", 'forgewatch_deploy_moves_total{action="approve",%s}'))
        .link(
            DashboardLink("Forgewatch")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["forgewatch"])
            .keep_time(True)
            .include_vars(True)
        )
    )
    if by_release:
        query = "label_values(forgewatch_detector_verdicts_total{%s}, release)"
        board.with_variable(_choice("release", "Release", query % HERE))
    for panel in panels:
        if isinstance(panel, Row):
            board.with_row(panel)
        else:
            board.with_panel(panel)
    return board.build()


def _choice(name: str, label: str, query: str) -> QueryVariable:
    return (
        QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(_ALL)
    )


def _annotation(name: str, color: str, counter: str) -> AnnotationQuery:
    # Of a week, a screen's width of points is minutes apart: a shorter window would miss what lies between two.
    expr = f"sum(increase({counter % HERE}[$__rate_interval])) > 0"
    return AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color).expr(expr)


def curves(
    title: str,
    unit: str,
    queries: Mapping[str, str],
    says: str,
    *,
    span: int = HALF,
    stacked: bool = False,
    least: float | None = 0,
    most: float | None = None,
) -> timeseries.Panel:
    """Values over time. queries are by their legends, such as {{instance}}; says is what is normal."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(says)
        .datasource(SOURCE)
        .unit(unit)
        .span(span)
        .height(_HIGH)
        .line_width(1)
        .fill_opacity(30 if stacked else 5)
        .show_points(common.VisibilityMode.AUTO)
        .legend(
            options.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(options.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )
    if stacked:
        panel.stacking(options.StackingConfig().mode(common.StackingMode.NORMAL))
    if least is not None:
        panel.min(least)
    if most is not None:
        panel.max(most)
    for ref, (legend, expr) in zip("ABCDEFGH", queries.items(), strict=False):
        panel.with_target(_query(ref, legend, expr))
    return panel


def figure(
    title: str, unit: str, expr: str, says: str, *, bad_above: float | None = None, span: int = QUARTER
) -> stat.Panel:
    """One value as it is now, red from bad_above on."""
    steps = [Threshold(color="green", value=None)]
    if bad_above is not None:
        steps.append(Threshold(color="red", value=bad_above))
    return (
        stat.Panel()
        .title(title)
        .description(says)
        .datasource(SOURCE)
        .unit(unit)
        .span(span)
        .height(_LOW)
        .thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .color_mode(common.BigValueColorMode.VALUE)
        .reduce_options(options.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_query("A", "", expr))
    )


def heat(title: str, bucket: str, says: str, *, span: int = HALF) -> heatmap.Panel:
    """A distribution over time, from a histogram's buckets; a panel for each release that is chosen."""
    expr = f'sum by (le) (increase({bucket}{{release=~"$release",{HERE}}}[$__rate_interval]))'
    return (
        heatmap.Panel()
        .title(title)
        .description(says)
        .datasource(SOURCE)
        .span(span)
        .height(_HIGH)
        .repeat("release")
        .repeat_direction("h")
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .with_target(_query("A", "{{le}}", expr).format(PromQueryFormat.HEATMAP))
    )


def _query(ref: str, legend: str, expr: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(ref).datasource(SOURCE).expr(expr).legend_format(legend).range()

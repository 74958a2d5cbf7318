"""Detection: how familiar the media is, what the memory holds, and what updates made of it."""

from grafana_foundation_sdk.builders.dashboard import Row
from grafana_foundation_sdk.models.dashboard import Dashboard

from helm.dashboards.panels import HERE, QUARTER, THIRD, curves, dashboard, figure, heat

_SHOWN = f'release=~"$release",{HERE}'
_WEEK = 'namespace=~"$namespace",release=~"$release"'


def _share(verdicts: str) -> str:
    """The share of unknown among verdicts, by release."""
    rate = f"rate(forgewatch_detector_verdicts_total{{%s{_SHOWN}}}[{verdicts}])"
    unknown = rate % 'label="unknown",'
    return f"sum by (release) ({unknown}) / sum by (release) ({rate % ''})"


def _rate(counter: str, by: str) -> str:
    """The rate of one of the detector's counters, by a label."""
    return f"sum by ({by}) (rate(forgewatch_detector_{counter}_total{{{HERE}}}[$__rate_interval]))"


def _evaluation(measures: str) -> str:
    return f'max by (role, measure) (forgewatch_deploy_evaluation{{measure=~"{measures}",namespace=~"$namespace"}})'


def build() -> Dashboard:
    """The dashboard."""
    return dashboard(
        "detection",
        "Forgewatch / Detection",
        "How familiar the media is, what the memory holds, and what updates made of it.",
        figure(
            "Unknown, last 30 minutes",
            "percentunit",
            'max(namespace:forgewatch_detector_unknown:ratio_rate30m{namespace=~"$namespace"})',
            "Normal: near the week's share beside it. Twice that and more: look at the newest clusters.",
        ),
        figure(
            "Unknown, last week",
            "percentunit",
            'max(namespace:forgewatch_detector_unknown:ratio_rate1w{namespace=~"$namespace"})',
            "What this stream is used to; the alert ForgewatchUnknownRateHigh compares with it. Normal "
            "on known sources: 3 to 6 %.",
        ),
        figure(
            "Unknowns waiting for a person",
            "short",
            f'max(forgewatch_memory_exemplars{{shelf="unknown",{HERE}}}) or vector(0)',
            "Normal: what a person can look at in a day. Label or ignore the largest clusters.",
        ),
        figure(
            "Clusters waiting for a person",
            "short",
            f"max(forgewatch_memory_clusters_waiting{{{HERE}}})",
            "Normal: a few. Many: label them (forgewatch clusters, forgewatch label).",
        ),
        Row("How familiar the media is"),
        curves(
            "Unknown rate by release",
            "percentunit",
            {
                "{{release}}": _share("$__rate_interval"),
                "the week's share": 'max(namespace:forgewatch_detector_unknown:ratio_rate1w{namespace=~"$namespace"})',
            },
            "Normal: around the week's share. A step at a swap (blue marks): the release, which a "
            "rollback takes back. A rise without one: new media.",
        ),
        curves(
            "Families seen",
            "cps",
            {
                "{{family}}": "sum by (family) "
                f"(rate(forgewatch_detector_fakes_total{{{_SHOWN}}}[$__rate_interval]))"
            },
            "Verdicts of each known family a second. Normal: what your producers see. A family that "
            "rises alone is news for whoever acts on verdicts; nothing is to be done here.",
            stacked=True,
        ),
        curves(
            "Energy: the hour's median in its week",
            "none",
            {
                "{{release}} median": f"namespace_release:forgewatch_detector_energy:median1h{{{_WEEK}}}",
                "{{release}} lower quartile of the week": f"namespace_release:forgewatch_detector_energy:quartile1_1w{{{_WEEK}}}",
                "{{release}} upper quartile of the week": f"namespace_release:forgewatch_detector_energy:quartile3_1w{{{_WEEK}}}",
            },
            "Normal: the median lies between the quartiles. Above: the media is less familiar than it "
            "was; label some of what is new and update. Below: the stream became narrower.",
            least=None,
        ),
        curves(
            "Verdicts by label",
            "cps",
            {
                "{{label}}": "sum by (label) "
                f"(rate(forgewatch_detector_verdicts_total{{{_SHOWN}}}[$__rate_interval]))"
            },
            "Normal: proportions that change slowly. The dashboard Stream has them as shares of each "
            "release.",
            stacked=True,
        ),
        heat(
            "Energy: $release",
            "forgewatch_detector_energy_bucket",
            "How many items fell into each band of energy; higher means less familiar. Normal: one "
            "steady band. A second band: another kind of media. A shifted one: something before the "
            "detector changed.",
        ),
        heat(
            "Unknown score: $release",
            "forgewatch_detector_unknown_score_bucket",
            "The gate's fused score; items above the release's threshold are called unknown. Normal: "
            "most mass far below the threshold. Mass that gathers just below it will be unknown soon, "
            "or should be.",
        ),
        curves(
            "Maps of what is not called real",
            "cps",
            {"{{outcome}}": _rate("maps", "outcome")},
            "Second looks a second, where the release has a localizer. Normal: made follows the fakes and "
            "unknowns, failed stays near 0. Failed rises: verdicts go out without a map; the detector's log says why.",
            stacked=True,
        ),
        curves(
            "Scans of videos",
            "cps",
            {"{{outcome}}": _rate("scans", "outcome")},
            "Scans a second, where the release has a scanner. Normal: made follows the videos, failed stays "
            "near 0. Failed rises: verdicts go out without segments; the detector's log says why.",
            stacked=True,
        ),
        curves(
            "Videos in which a forged stretch is told",
            "cps",
            {"called {{label}}": _rate("told_videos", "label")},
            "A video that its frames' mean would call real is judged by its surest stretch and not called real. "
            "Normal: up to 5 % of real videos. Called real: judging failed; the detector's log says why.",
            stacked=True,
        ),
        Row("Statements of origin"),
        curves(
            "Credentials by state, and what files declare",
            "cps",
            {
                "{{state}}": f'sum by (state) (rate(forgewatch_detector_provenance_total{{state!="none",{HERE}}}[$__rate_interval]))',
                "declares {{declares}}": f'sum by (declares) (rate(forgewatch_detector_provenance_total{{declares!="nothing",{HERE}}}[$__rate_interval]))',
            },
            "Items a second that state their origin. Normal: few, since platforms strip it. Too_costly or "
            "unreadable rises: somebody tries the reader.",
        ),
        curves(
            "Rise of a source's invalid credentials",
            "percentunit",
            {"{{instance}}": f"forgewatch_detector_invalid_credentials_rise{{{HERE}}}"},
            "Its last 40 against its up to 200 before, the lower end. Normal: 0. Else somebody changes signed files "
            "on their way: the detector's log names the source.",
        ),
        Row("Memory"),
        curves(
            "Exemplars by shelf and family",
            "short",
            {
                "{{shelf}} {{family}}": "max by (namespace, shelf, family) "
                f"(forgewatch_memory_exemplars{{{HERE}}})"
            },
            "Normal: the unknown shelf falls when somebody labels, the rehearsal shelf stays within its"
            " budget.",
            span=THIRD,
        ),
        curves(
            "How full",
            "percentunit",
            {
                "unknown, of what is clustered": "max by (namespace) "
                f'(forgewatch_memory_exemplars{{shelf="unknown",{HERE}}})'
                f" / max by (namespace) (forgewatch_memory_max_clustered_exemplars{{{HERE}}})",
                "rehearsal, of its budget": "sum by (namespace) (max by (namespace, family) "
                f'(forgewatch_memory_exemplars{{shelf="rehearsal",{HERE}}}))'
                f" / max by (namespace) (forgewatch_memory_rehearsal_budget_exemplars{{{HERE}}})",
            },
            "Normal: rehearsal up to 100 %, unknown well below. Unknown above 100 %: clusters are found"
            " among samples; label, or raise FORGEWATCH_MEMORY_MAX_CLUSTERED.",
            span=THIRD,
        ),
        curves(
            "Behind the unknowns topic",
            "s",
            {"{{instance}}": f"forgewatch_memory_lag_seconds{{{HERE}}}"},
            "Age of the oldest unknown that is not remembered. Normal: below 10 s. A steady rise: see "
            "the memory's log; verdicts are not held up by it.",
            span=THIRD,
        ),
        curves(
            "Sources that shifted",
            "short",
            {
                "alarms with suspects that wait": "max by (namespace) "
                f"(forgewatch_memory_shift_alarms_waiting{{{HERE}}})",
                "alarms in the last day": "sum by (namespace) "
                f"(increase(forgewatch_memory_shift_alarms_total{{{HERE}}}[1d]))",
                "drift of {{statistic}} in the last day": f"sum by (statistic) (increase(forgewatch_memory_drift_alarms_total{{{HERE}}}[1d]))",
            },
            "Sources whose items called real have risen against their own earlier ones. Normal: 0. Else: look"
            " at the suspects (forgewatch clusters shows them first), and label them.",
        ),
        Row("Updates and releases"),
        curves(
            "Update runs by state",
            "short",
            {"{{state}}": f"max by (state) (forgewatch_updater_runs{{{HERE}}})"},
            "Normal: proposed (with findings) and refused rise, at most one runs. failed rises: see "
            "forgewatch status for why.",
            span=QUARTER,
        ),
        curves(
            "Labelled since the last update",
            "short",
            {"exemplars": f"max(forgewatch_updater_exemplars_waiting{{{HERE}}})"},
            "Normal: falls to zero with each update. High: ask for an update (forgewatch update).",
            span=QUARTER,
        ),
        curves(
            "Progress of the stage that runs",
            "percentunit",
            {"{{instance}}": f"forgewatch_updater_progress_ratio{{{HERE}}}"},
            "Normal: saw teeth while an update runs, else 0. A flat line above 0 for long: see the "
            "updater's log.",
            span=QUARTER,
            most=1,
        ),
        curves(
            "Stages of the last update",
            "s",
            {"{{stage}}": f"max by (stage) (forgewatch_updater_stage_duration_seconds{{{HERE}}})"},
            "How long each stage took. Normal: grows with the exemplars. A jump: a busy machine, or no GPU.",
            span=QUARTER,
        ),
        curves(
            "Evaluation: accuracy and forgetting, live and previous",
            "percentunit",
            {"{{role}} {{measure}}": _evaluation("aa|af")},
            "aa: average accuracy over the classes. af: what the families of before gained since then; "
            "negative is forgotten. Normal: aa of the live release not below the previous one's, af "
            "above -5 %. Worse: think of a rollback. A first release has no af.",
            least=None,
        ),
        curves(
            "Evaluation: rejection and reals, live and previous",
            "percentunit",
            {"{{role}} {{measure}}": _evaluation("power|robustness|unseen_auc|reals_unknown|reals_fake")},
            "power: share of a family never seen that would not be called real, as each known family "
            "left out once has it. robustness: accuracy under distortions, 50 % is chance. unseen_auc: of telling pseudo-forgeries from known media. Then the reals called unknown or fake. Normal: "
            "power and robustness as of the release before, AUC above 80 %, reals below 6 %. Worse: think of a rollback, and of more reals and families to label.",
            most=1,
        ),
        by_release=True,
    )

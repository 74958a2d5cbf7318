"""Operations: whether every process lives, what is served and approved, and what runs short."""

from grafana_foundation_sdk.builders.dashboard import Row
from grafana_foundation_sdk.models.dashboard import Dashboard

from helm.dashboards.panels import HALF, HERE, QUARTER, THIRD, curves, dashboard, figure

_OURS = f"and on (namespace, job, instance) max_over_time(forgewatch_process_info{{{HERE}}}[1h])"
_PROPOSED = f"max(forgewatch_deploy_proposed_since_timestamp_seconds{{{HERE}}})"


def build() -> Dashboard:
    """The dashboard."""
    return dashboard(
        "operations",
        "Forgewatch / Operations",
        "Whether every process lives, what is served and approved, and what runs short.",
        figure(
            "Processes that do not answer",
            "short",
            f"count((up{{{HERE}}} == 0) {_OURS}) or vector(0)",
            "Of those that answered within the last hour. Normal: 0. Else see forgewatch status for "
            "which and why.",
            bad_above=1,
        ),
        figure(
            "Alerts that fire",
            "short",
            'count(ALERTS{alertname=~"Forgewatch.*",alertstate="firing",namespace=~"$namespace"}) or vector(0)',
            "Normal: 0. Each alert has a runbook, to which its runbook_url leads.",
            bad_above=1,
        ),
        figure(
            "Releases that wait for an approval",
            "short",
            f'sum(max by (state) (forgewatch_deploy_releases{{state=~"proposed|proposed with findings",{HERE}}}))',
            "Normal: 0 or 1. Read the evidence (forgewatch release) and approve or reject.",
        ),
        figure(
            "The oldest has waited for",
            "s",
            f"(time() - {_PROPOSED}) * ({_PROPOSED} > bool 0)",
            "0: none waits. More than a day: ForgewatchApprovalWaiting speaks.",
            bad_above=86400,
        ),
        Row("Processes"),
        curves(
            "Answering",
            "short",
            {
                "{{room}} {{instance}}": f"up{{{HERE}}} * on (namespace, job, instance) group_left (room)"
                f" max_over_time(forgewatch_process_info{{{HERE}}}[1h])"
            },
            "1 for each process that gives its metrics. Normal: 1 throughout. A gap is a restart; 0 for"
            " long: see its log.",
            span=THIRD,
            most=1,
        ),
        curves(
            "Starts within an hour",
            "short",
            {"{{instance}}": f"changes(process_start_time_seconds{{{HERE}}}[1h]) {_OURS}"},
            "Normal: 0, and 1 after a deployment. Three within half an hour: ForgewatchProcessRestarts "
            "speaks.",
            span=THIRD,
        ),
        curves(
            "TorchServe ready",
            "short",
            {"{{instance}}": f"forgewatch_detector_torchserve_ready{{{HERE}}}"},
            "1 where TorchServe has a ready worker for each release that is to score. Normal: 1. 0: "
            "items wait; see TorchServe's model.log.",
            span=THIRD,
            most=1,
        ),
        curves(
            "Processor",
            "none",
            {"{{instance}}": f"rate(process_cpu_seconds_total{{{HERE}}}[$__rate_interval]) {_OURS}"},
            "Cores that each process uses, without TorchServe and decoding children. Normal: below the "
            "cores it has.",
            span=THIRD,
        ),
        curves(
            "Memory",
            "bytes",
            {"{{instance}}": f"process_resident_memory_bytes{{{HERE}}} {_OURS}"},
            "Resident bytes of each process. Normal: level after the first hour. A steady rise towards "
            "the limit: keep its log, restart it, and report it.",
            span=THIRD,
        ),
        curves(
            "Sandbox restarts by reason",
            "cps",
            {
                "{{reason}}": "sum by (reason) "
                f"(rate(forgewatch_ingest_sandbox_restarts_total{{{HERE}}}[$__rate_interval]))"
            },
            "Decoding children that were replaced. Normal: aged now and then. timeout, crashed, "
            "out_of_memory: hostile or broken media, which becomes dead letters. killed, busy: the host"
            " is short of memory or cores.",
            span=THIRD,
        ),
        Row("Releases"),
        curves(
            "Rollout",
            "percentunit",
            {"{{of}}": f"max by (of) (forgewatch_deploy_rollout_share{{{HERE}}})"},
            "Share of the items that both releases score (shared), and that the challenger answers (canary). "
            "0: none is on trial. Where it stands still: forgewatch rollout show.",
            span=THIRD,
        ),
        curves(
            "Shared items by outcome",
            "cps",
            {
                "{{outcome}}": "sum by (outcome) "
                f"(rate(forgewatch_detector_shared_items_total{{{HERE}}}[$__rate_interval]))"
            },
            "failed: the challenger gave no verdict. left_out: the stream waited, or TorchServe was away. "
            "Normal: compared alone.",
            span=THIRD,
        ),
        curves(
            "Taking back",
            "short",
            {
                "records left": f"max(forgewatch_deploy_retraction_left{{{HERE}}})",
                "rounds that failed": f"sum(increase(forgewatch_detector_retraction_failures_total{{{HERE}}}[5m]))",
                "lost": f"sum(increase(forgewatch_detector_retraction_lost_total{{{HERE}}}[5m]))",
            },
            "Verdicts of a rolled back release that are to be scored anew. Normal: 0. After a rollback it "
            "falls; where it does not: ForgewatchRetractionStalled.",
            span=THIRD,
        ),
        curves(
            "Releases by state",
            "short",
            {"{{state}}": f"max by (state) (forgewatch_deploy_releases{{{HERE}}})"},
            "Normal: one live; retired and rejected grow with time. proposed (with findings): read its "
            "evidence, and approve or reject it.",
            span=THIRD,
        ),
        curves(
            "Served, and wanted",
            "short",
            {
                "{{instance}} serves {{release}}": f"forgewatch_detector_serving{{{HERE}}}",
                "wanted as {{slot}}: {{release}}": f"max by (slot, release) (forgewatch_deploy_serve{{{HERE}}})",
            },
            "Normal: every detector serves what the ledger wants, and nothing else. Ten minutes apart: "
            "ForgewatchReleaseMismatch speaks.",
            span=THIRD,
        ),
        curves(
            "Swaps by outcome, within an hour",
            "short",
            {"{{outcome}}": f"sum by (outcome) (increase(forgewatch_detector_swaps_total{{{HERE}}}[1h]))"},
            "served: a release began to score. retried: it could not be loaded yet. refused: wrong "
            "bytes or scores; an operator must look. Normal: one served for each detector and approval.",
            span=THIRD,
        ),
        curves(
            "Moves in the ledger, within an hour",
            "short",
            {"{{action}}": f"sum by (action) (increase(forgewatch_deploy_moves_total{{{HERE}}}[1h]))"},
            "What operators and the updater did. Normal: propose, approve and promote follow one "
            "another. raise epoch: somebody else wrote to the releases topic.",
            span=THIRD,
        ),
        curves(
            "Ledger and topic",
            "short",
            {
                "topic agrees": f"min(forgewatch_deploy_releases_topic_agrees{{{HERE}}})",
                "failed tries within an hour": "sum(increase("
                f"forgewatch_deploy_publish_failures_total{{{HERE}}}[1h]))",
                "epoch": f"max(forgewatch_deploy_epoch{{{HERE}}})",
                "record published": f"min(forgewatch_deploy_record_published{{{HERE}}})",
            },
            "Normal: agrees and published are 1, no failed tries, and an epoch that does not rise.",
            span=THIRD,
        ),
        curves(
            "Transactions failed, within an hour",
            "short",
            {
                "{{instance}}": "sum by (instance) "
                f"(increase(forgewatch_ingest_transactions_failed_total{{{HERE}}}[1h]))"
            },
            "Normal: 0, and a few at a broker's restart. Their items are answered again, once.",
            span=THIRD,
        ),
        Row("Disk and GPU"),
        curves(
            "Disk free",
            "percentunit",
            {
                "{{instance}} {{volume}}": f"forgewatch_ingest_disk_free_bytes{{{HERE}}}"
                f" / forgewatch_ingest_disk_size_bytes{{{HERE}}}"
            },
            "Free part of the disk under each folder that a process writes. Normal: above 10 %. Below: "
            "see ForgewatchDiskFillingUp for what may go.",
            span=HALF,
            most=1,
        ),
        curves(
            "GPU memory used",
            "percentunit",
            {
                "{{instance}} {{gpu}}": f"forgewatch_updater_gpu_memory_used_bytes{{{HERE}}}"
                f" / forgewatch_updater_gpu_memory_total_bytes{{{HERE}}}"
            },
            "Only where the updater has a GPU. Normal: high while an update trains, else near 0. At 100"
            " % a run fails for want of memory: use a smaller backbone.",
            span=QUARTER,
            most=1,
        ),
        curves(
            "GPU busy",
            "percentunit",
            {"{{instance}} {{gpu}}": f"forgewatch_updater_gpu_utilization_ratio{{{HERE}}}"},
            "Only where the updater has a GPU. Normal: above half while an update trains. Low then: "
            "loading crops is what takes the time.",
            span=QUARTER,
            most=1,
        ),
    )

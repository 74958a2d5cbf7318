"""Stream: what comes in, what is answered and how fast, and what becomes a dead letter."""

from grafana_foundation_sdk.builders.dashboard import Row
from grafana_foundation_sdk.models.dashboard import Dashboard

from helm.dashboards.panels import HERE, THIRD, curves, dashboard, figure

_DETECTORS = "and on (namespace, job, instance) forgewatch_detector_consumed_total"
_LATE = (
    f'1 - sum(rate(forgewatch_detector_end_to_end_seconds_bucket{{le="30.0",{HERE}}}[%s]))'
    f" / sum(rate(forgewatch_detector_end_to_end_seconds_count{{{HERE}}}[%s]))"
)


def _rate(counter: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({counter}{{{HERE}}}[$__rate_interval]))"


def _quantile(q: float, histogram: str) -> str:
    return f"histogram_quantile({q}, {_rate(f'{histogram}_bucket', 'le')})"


def _quantiles(histogram: str, legend: str = "") -> dict[str, str]:
    return {f"{legend}p{q * 100:g}": _quantile(q, histogram) for q in (0.5, 0.95, 0.99)}


def build() -> Dashboard:
    """The dashboard."""
    return dashboard(
        "stream",
        "Forgewatch / Stream",
        "What comes in, what is answered and how fast, and what becomes a dead letter.",
        figure(
            "Answers a second",
            "cps",
            f"sum(rate(forgewatch_detector_consumed_total{{{HERE}}}[5m]))",
            "Verdicts and dead letters that were committed. Normal: what the producers send. Zero while"
            " the lag rises means that the detectors stand still: see the lag and "
            "ForgewatchConsumerStuck.",
        ),
        figure(
            "Oldest item without an answer",
            "s",
            f"max(forgewatch_ingest_lag_seconds{{{HERE}}})",
            "Normal: below 5 s, and 0 where nothing waits. Above 30 s the objective is missed: add "
            "workers, or see what holds them up.",
            bad_above=30,
        ),
        figure(
            "Answered later than 30 s, last hour",
            "percentunit",
            _LATE % ("1h", "1h"),
            "Normal: below 0.1 %, which is the objective. More: ForgewatchAnswersLate says how fast the"
            " month's budget goes.",
            bad_above=0.001,
        ),
        figure(
            "Dead letters, last hour",
            "short",
            f"sum(increase(forgewatch_detector_dead_letters_total{{{HERE}}}[1h]))",
            "Normal: as many as the producers send broken files. The panel below has their reasons.",
        ),
        Row("Input and answers"),
        curves(
            "Records read and answered",
            "cps",
            {
                "read": _rate("forgewatch_ingest_media_total"),
                "answered": _rate("forgewatch_detector_consumed_total"),
            },
            "Normal: both curves lie on each other. Read above answered for long: transactions fail and"
            " items are read again. Both at zero with a lag: see ForgewatchConsumerStuck; without one: "
            "nobody sends.",
        ),
        curves(
            "Verdict shares by release",
            "percentunit",
            {
                "{{release}} {{label}}": f"{_rate('forgewatch_detector_verdicts_total', 'release, label')}"
                f" / on (release) group_left {_rate('forgewatch_detector_verdicts_total', 'release')}"
            },
            "Shares of real, fake and unknown within each release. Normal: steady, with a step at a "
            "swap (blue marks). A slow rise of unknown means new media: see the dashboard Detection.",
            most=1,
        ),
        curves(
            "Media volume",
            "Bps",
            {"bytes read": _rate("forgewatch_ingest_media_bytes_total")},
            "Bytes of the records' values; claim-checked files are not among them. Normal: proportional"
            " to the records. A rise without more records: larger files, which take longer to decode.",
        ),
        curves(
            "Dead letters by stage and reason",
            "cps",
            {
                "{{stage}} {{reason}}": "topk(10, "
                f"{_rate('forgewatch_detector_dead_letters_total', 'stage, reason')})"
            },
            "Normal: near zero. envelope and decode: talk to the producer. request_too_large: raise "
            "TorchServe's max_request_size. unexpected: a fault of Forgewatch, whose log has it.",
        ),
        Row("How fast"),
        curves(
            "Time to the answer",
            "s",
            _quantiles("forgewatch_detector_end_to_end_seconds"),
            "From a record's timestamp to its committed answer. Normal: p99 below 30 s, p50 below 2 s "
            "with free workers. Rising with the lag: too few workers. Rising alone: see where the time "
            "goes.",
        ),
        curves(
            "Answered later than 30 s",
            "percentunit",
            {"late": _LATE % ("$__rate_interval", "$__rate_interval")},
            "Normal: 0, with peaks after restarts. The objective allows 0.1 % over a month.",
        ),
        curves(
            "Lag in records",
            "short",
            {"{{instance}}": f"forgewatch_ingest_lag_records{{{HERE}}} {_DETECTORS}"},
            "Records of each worker's partitions that are not read yet. Normal: near zero, with bursts "
            "that are worked off. One instance alone: its partitions get more than the others'.",
        ),
        curves(
            "Lag in seconds",
            "s",
            {"{{instance}}": f"forgewatch_ingest_lag_seconds{{{HERE}}} {_DETECTORS}"},
            "Age of the oldest record that has no answer. Normal: below 5 s. A straight rise by a "
            "second each second: that worker stands still; its /readyz says why.",
        ),
        Row("Where the time goes"),
        curves(
            "Seconds of each step, p95",
            "s",
            {
                "decode an item": _quantile(0.95, "forgewatch_ingest_decode_seconds"),
                "decode an item again": _quantile(0.95, "forgewatch_ingest_decode_again_seconds"),
                "a request to TorchServe": _quantile(0.95, "forgewatch_detector_model_seconds"),
                "a batch's second look": _quantile(0.95, "forgewatch_detector_second_look_seconds"),
                "a transaction": _quantile(0.95, "forgewatch_ingest_transaction_seconds"),
            },
            "Normal: decoding tens of milliseconds a photograph, a request below a second. What is not "
            "called real, and every video, is decoded again, for a second look. The largest curve is what "
            "is short: more cores for decoding, more or faster TorchServe, or a faster broker.",
            span=THIRD,
        ),
        curves(
            "Batch sizes",
            "short",
            {
                "items p50": _quantile(0.5, "forgewatch_detector_batch_items"),
                "items p95": _quantile(0.95, "forgewatch_detector_batch_items"),
                "crops p95": _quantile(0.95, "forgewatch_detector_batch_crops"),
            },
            "Items of a transaction and crops of a request. Normal: 1 on a quiet stream, 64 items under"
            " load. Small batches with a lag: slow media, so that a batch is cut at its time.",
            span=THIRD,
        ),
        curves(
            "Transactions, and requests tried again",
            "cps",
            {
                "committed": _rate("forgewatch_ingest_transactions_total"),
                "failed": _rate("forgewatch_ingest_transactions_failed_total"),
                "TorchServe retries": _rate("forgewatch_detector_model_retries_total"),
            },
            "Normal: failed and retries at zero. Retries: TorchServe is away or slow. Failed "
            "transactions: the broker; their items are answered again, once.",
            span=THIRD,
        ),
    )

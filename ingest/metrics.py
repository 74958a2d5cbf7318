"""What ingest counts. Labels are closed sets: stages and the reasons of the MediaError classes."""

from prometheus_client import Counter, Gauge, Histogram

from ingest.lag import Lag

_DECODE_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

MEDIA = Counter("forgewatch_ingest_media", "Records read from the media topic.")
MEDIA_BYTES = Counter("forgewatch_ingest_media_bytes", "Bytes of the values read from the media topic.")
LAG = Gauge("forgewatch_ingest_lag_records", "Records of the assigned partitions that are not read yet.")
LAG_SECONDS = Lag(
    "forgewatch_ingest_lag_seconds",
    "Age of the oldest record of the assigned partitions that has no answer; 0: none.",
)
DECODE_SECONDS = Histogram(
    "forgewatch_ingest_decode_seconds",
    "Seconds that one item spent in a decoding process for its verdict.",
    buckets=_DECODE_BUCKETS,
)
DECODE_AGAIN_SECONDS = Histogram(
    "forgewatch_ingest_decode_again_seconds",
    "Seconds that one item spent in a decoding process to be looked at again.",
    buckets=_DECODE_BUCKETS,
)
SANDBOX_RESTARTS = Counter(
    "forgewatch_ingest_sandbox_restarts", "Decoding processes replaced, by what ended them.", ["reason"]
)
TRANSACTION_SECONDS = Histogram(
    "forgewatch_ingest_transaction_seconds",
    "Seconds from the first record of a transaction to its commit.",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
TRANSACTIONS = Counter("forgewatch_ingest_transactions", "Transactions that were committed.")
TRANSACTIONS_FAILED = Counter(
    "forgewatch_ingest_transactions_failed", "Transactions that failed; each throws its producer away."
)
LOST = Counter(
    "forgewatch_ingest_lost", "Records that the media topic deleted before they were read; 0 is normal."
)
TRUNCATIONS = Counter(
    "forgewatch_ingest_truncations",
    "Logs of any topic that ended before what was read of them: cut, or restored to an earlier time.",
)
CORRUPT_BATCHES = Counter(
    "forgewatch_ingest_corrupt_batches",
    "Corrupt batches of any topic: left out, or a partition's end where not.",
)

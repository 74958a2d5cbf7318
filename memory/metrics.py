"""The memory worker's metrics, for Prometheus.

The only label without a fixed set is `family`: names that an operator gave.
"""

from collections.abc import Iterator
from typing import get_args

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ingest.metrics import Lag
from memory.records import Statistic
from memory.rows import count_alarms, count_clusters, counts
from memory.store import Store, StoreUnavailableError

CONSUMED = Counter("forgewatch_memory_consumed", "Messages taken from the unknowns topic and committed.")
REMEMBERED = Counter("forgewatch_memory_remembered", "Exemplars written.")
REPEATED = Counter("forgewatch_memory_repeated", "Messages whose exemplar was there already.")
BLOCKED = Counter("forgewatch_memory_blocked", "Messages of blocked sources: nothing of them is kept.")
ALIKE = Counter("forgewatch_memory_alike", "Messages left out, since so many are alike already.")
BEYOND = Counter("forgewatch_memory_beyond", "Unlabelled exemplars that gave way to newer ones of a source.")
DUPLICATES = Counter(
    "forgewatch_memory_duplicates", "Exemplars that joined the group of an earlier one: the same or nearly."
)
DEAD_LETTERS = Counter("forgewatch_memory_dead_letters", "Messages that could not be remembered.", ["reason"])
FAILURES = Counter("forgewatch_memory_failures", "Rounds that failed and are done again.")
REEXTRACTED = Counter(
    "forgewatch_memory_reextracted", "Exemplars whose features were computed anew for a new feature version."
)
LEFT_BEHIND = Gauge(
    "forgewatch_memory_left_behind_exemplars",
    "Exemplars that keep features of an older version, since their crops are gone; in no index.",
)
PURGED = Counter("forgewatch_memory_purged", "Exemplars whose crops were purged past their time.")
TRANSACTION_SECONDS = Histogram(
    "forgewatch_memory_transaction_seconds",
    "One batch's SQL transaction.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
BATCH_MESSAGES = Histogram(
    "forgewatch_memory_batch_messages", "Messages of one transaction.", buckets=(1, 2, 4, 8, 16, 32, 64)
)
LAG = Gauge("forgewatch_memory_lag_records", "Records of the assigned partitions that are not read yet.")
LAG_SECONDS = Lag(
    "forgewatch_memory_lag_seconds",
    "Age of the oldest message of the assigned partitions that is not remembered; 0: none.",
)
MAX_CLUSTERED = Gauge(
    "forgewatch_memory_max_clustered_exemplars",
    "The most unknowns that are compared at once for clusters: the setting.",
)
REHEARSAL_BUDGET = Gauge(
    "forgewatch_memory_rehearsal_budget_exemplars", "The most exemplars that are rehearsed: the setting."
)
LOST = Counter("forgewatch_memory_lost", "Unknowns deleted before they were read; 0 is normal.")
WATCHED = Counter("forgewatch_memory_watched", "Items called real that a source's test took in.")
UNREADABLE = Counter("forgewatch_memory_unreadable_verdicts", "Records of the verdicts topic that are none.")
WATCH_LAG = Gauge("forgewatch_memory_watch_lag_records", "Verdicts that are not looked at yet.")
WATCH_LAG_SECONDS = Lag("forgewatch_memory_watch_lag_seconds", "Age of the oldest verdict not looked at.")
UNWATCHED = Counter(
    "forgewatch_memory_unwatched", "Verdicts that the topic deleted before they were looked at; 0 is normal."
)
SOURCES_DROPPED = Counter(
    "forgewatch_memory_sources_dropped",
    "Sources that a batch found not watched, or pushed out of the watch, since too many are new.",
)
SHIFT_ALARMS = Counter("forgewatch_memory_shift_alarms", "Alarms about sources whose reals have shifted.")
DRIFT_ALARMS = Counter(
    "forgewatch_memory_drift_alarms", "Alarms about a statistic of verdicts that has drifted.", ["statistic"]
)
for _statistic in get_args(Statistic):
    DRIFT_ALARMS.labels(_statistic)  # else the first alarm would be no increase
SUSPECTS_MISSING = Counter(
    "forgewatch_memory_suspects_missing", "Suspects of an alarm whose media could not be read again."
)
WATCH_FAILURES = Counter(
    "forgewatch_memory_watch_failures", "Rounds of the watch, or of shelving suspects, that are done again."
)
INDEXED = Gauge("forgewatch_memory_index_exemplars", "Exemplars in the search index.")
SNAPSHOT_TIME = Gauge("forgewatch_memory_index_snapshot_timestamp_seconds", "Last save of the index; 0: no.")
CLUSTERING_SECONDS = Histogram(
    "forgewatch_memory_clustering_seconds",
    "One computation of the clusters.",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50),
)
CLUSTERING_FAILURES = Counter(
    "forgewatch_memory_clustering_failures", "Computations of the clusters that failed and are done again."
)


class Fill(Collector):
    """Counts the shelves and the clusters when it is scraped, so that every process's writes show.

    The shelf of what waits for a person is shown where it is empty, too.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the counts; nothing where the database does not answer."""
        fill = GaugeMetricFamily(
            "forgewatch_memory_exemplars",
            "Exemplars by shelf and family; the family of unlabelled ones is empty.",
            labels=["shelf", "family"],
        )
        try:
            with self._store.read() as connection:
                shelves, waiting = counts(connection), count_clusters(connection)
                alarms = count_alarms(connection)
        except StoreUnavailableError:
            return
        for (shelf, family), n in {("unknown", None): 0, **shelves}.items():
            fill.add_metric([shelf, family or ""], n)
        yield fill
        yield GaugeMetricFamily(
            "forgewatch_memory_clusters_waiting",
            "Clusters that wait for a person's label, as last computed.",
            value=waiting,
        )
        yield GaugeMetricFamily(
            "forgewatch_memory_shift_alarms_waiting",
            "Alarms about shifted sources of which a suspect waits for a person's label.",
            value=alarms,
        )

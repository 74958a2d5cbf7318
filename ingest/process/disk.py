"""The room on the disks that a process writes to, for Prometheus."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class Disks(Collector):
    """Free bytes and size of the file system under each folder, when scraped.

    folders are by what lies there, such as `database`; None is nothing on a disk of this host. A folder that
    is not made yet counts with the one above it.
    """

    def __init__(self, folders: Mapping[str, Path | None]) -> None:
        self._folders = {volume: folder for volume, folder in folders.items() if folder is not None}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield both gauges, without the volumes whose file system does not answer."""
        free = GaugeMetricFamily(
            "forgewatch_ingest_disk_free_bytes",
            "Bytes that this process may still write to the file system of a folder that it writes.",
            labels=["volume"],
        )
        size = GaugeMetricFamily(
            "forgewatch_ingest_disk_size_bytes",
            "Bytes of the file system of a folder that this process writes.",
            labels=["volume"],
        )
        for volume, folder in self._folders.items():
            try:
                usage = shutil.disk_usage(existing(folder))
            except OSError:
                continue
            free.add_metric([volume], usage.free)
            size.add_metric([volume], usage.total)
        yield free
        yield size


def existing(folder: Path) -> Path:
    """Return the folder itself, absolute, or the nearest above it that is there already."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())

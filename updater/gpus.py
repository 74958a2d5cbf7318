"""This host's GPUs by NVIDIA's driver, for Prometheus."""

from collections.abc import Callable, Iterator
from typing import Any

import pynvml
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_GAUGES: dict[str, tuple[str, Callable[[Any], float]]] = {
    "memory_used_bytes": (
        "GPU memory that is in use, by any process",
        lambda device: pynvml.nvmlDeviceGetMemoryInfo(device).used,
    ),
    "memory_total_bytes": ("GPU memory in all", lambda device: pynvml.nvmlDeviceGetMemoryInfo(device).total),
    "utilization_ratio": (
        "Part of the driver's last sample in which the GPU computed",
        lambda device: pynvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
    ),
}


def devices() -> list[Collector]:
    """Return the collector of the GPUs; none on a host without NVIDIA's driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    return [Gpus()]


class Gpus(Collector):
    """Memory and use of each GPU when scraped; `gpu` is the driver's number of it. For after nvmlInit."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges, each without the devices that do not tell it, such as parts of a divided one."""
        yield from (_gauge(name, *about) for name, about in _GAUGES.items())


def _gauge(name: str, documentation: str, read: Callable[[Any], float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(f"forgewatch_updater_gpu_{name}", documentation, labels=["gpu"])
    for number in range(_count()):
        try:
            gauge.add_metric([str(number)], read(pynvml.nvmlDeviceGetHandleByIndex(number)))
        except pynvml.NVMLError:
            continue
    return gauge


def _count() -> int:
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0

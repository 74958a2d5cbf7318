"""What the driver says of a real GPU is shown; without one nothing is."""

import pynvml
import pytest
from prometheus_client import CollectorRegistry

from updater.gpus import devices


def has_driver():
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    return True


@pytest.mark.skipif(has_driver(), reason="this host has NVIDIA's driver")
def test_a_host_without_the_driver_has_no_gpu_metrics():
    assert devices() == []


@pytest.mark.skipif(not has_driver(), reason="this host has no NVIDIA GPU")
def test_each_gpu_shows_its_memory_and_its_use():
    registry = CollectorRegistry()
    (gpus,) = devices()
    registry.register(gpus)
    total = registry.get_sample_value("forgewatch_updater_gpu_memory_total_bytes", {"gpu": "0"})
    used = registry.get_sample_value("forgewatch_updater_gpu_memory_used_bytes", {"gpu": "0"})
    assert 2**30 < total < 2**40
    assert 0 <= used <= total
    assert 0 <= registry.get_sample_value("forgewatch_updater_gpu_utilization_ratio", {"gpu": "0"}) <= 1
    absent = {"gpu": str(pynvml.nvmlDeviceGetCount())}
    assert registry.get_sample_value("forgewatch_updater_gpu_memory_total_bytes", absent) is None

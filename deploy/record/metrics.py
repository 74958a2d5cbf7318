"""Prometheus metrics of the record."""

from prometheus_client import Gauge

PUBLISHED = Gauge(
    "forgewatch_deploy_record_published",
    "1 while the record agrees with its published heads, and its newest is published",
)

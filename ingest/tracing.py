"""A span for each item, exported by OpenTelemetry where its usual variables name a collector.

OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT turns it on; OTEL_SDK_DISABLED=true, or an
OTEL_TRACES_EXPORTER other than otlp, turns it off. All else (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
OTEL_TRACES_SAMPLER, OTEL_BSP_…, OTEL_EXPORTER_OTLP_HEADERS, …) is read by the SDK. Off, none of it is loaded.
An empty variable counts as one that is not set, as OpenTelemetry's specification has it.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import unquote

import structlog

from ingest.process.frame import WrongSettingError
from ingest.records import InRecord
from ingest.trace_context import TraceContext, trace_context

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OpenSpan
    from opentelemetry.trace import Tracer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
# What the SDK takes; what it does not take it logs, and a token may be in it.
_HEADER = re.compile(r"\s*([!#-'*+.0-9A-Z^-z|~-]+\s*=[ !#-+\--:<-\[\]-~]*)?")
# The spans that are left when the process ends have so long to reach the collector, seconds.
_FAREWELL_S = 5.0

log = structlog.get_logger()


@dataclass(frozen=True)
class Span:
    """The span of one record, from its take on. It is exported once it has ended, and only then."""

    _span: "OpenSpan"

    @property
    def context(self) -> TraceContext | None:
        """The span's place in its trace, for the headers of what follows from it."""
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, set_span_in_context(self._span))
        return trace_context(carrier.get("traceparent"), carrier.get("tracestate"))

    def end(self, attributes: Mapping[str, str | float | bool], error: str | None = None) -> None:
        """End it now; error is one of a small set of reasons, None where there was none."""
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attributes(attributes)
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


@dataclass(frozen=True)
class Spans:
    """Begins the spans of the records that a process takes from a topic."""

    _tracer: "Tracer"
    _group: str

    def begin(self, record: InRecord, parent: TraceContext | None, began_ns: int) -> Span:
        """Begin the span of a record that was taken at began_ns, Unix time; parent None makes a new trace."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {} if parent is None else {name: raw.decode() for name, raw in parent.headers()}
        # OpenTelemetry's semantic conventions for messaging, Kafka.
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.consumer.group.name": self._group,
            "messaging.kafka.offset": record.offset,
        }
        name, context = f"process {record.topic}", TraceContextTextMapPropagator().extract(carrier, Context())
        span = self._tracer.start_span(name, context, SpanKind.CONSUMER, attributes, start_time=began_ns)
        return Span(span)


@contextmanager
def exporting(room: str, group: str) -> Iterator[Spans | None]:
    """Export spans until left; yields None where the environment names no collector.

    group is the consumer group that takes the records. What the collector does not take within some
    seconds after the end is lost, and nothing waits for it meanwhile. Raises WrongSettingError.
    """
    if (endpoint := _endpoint(os.environ)) is None:
        yield None
        return
    provider = _provider(room, endpoint)
    log.info("spans are exported", setting=endpoint)
    try:
        yield Spans(provider.get_tracer("forgewatch"), group)
    finally:
        # The SDK's own end may take 30 s where the collector is away.
        farewell = Thread(target=provider.shutdown, name="spans-end", daemon=True)
        farewell.start()
        farewell.join(_FAREWELL_S)


def _endpoint(environment: Mapping[str, str]) -> str | None:
    """Return the name of the variable that turns the export on; None: it is off."""
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if disabled or (environment.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp").lower() != "otlp":
        return None
    return next((name for name in _ENDPOINTS if environment.get(name, "").strip()), None)


def _provider(room: str, endpoint: str) -> "TracerProvider":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        problem = "OpenTelemetry is not installed: install forgewatch[otel], or unset it"
        raise WrongSettingError(endpoint, problem) from error
    for name in _PROTOCOLS:
        if (os.environ.get(name, "").strip() or _PROTOCOL) != _PROTOCOL:
            raise WrongSettingError(name, f"only {_PROTOCOL} is spoken here, which collectors take at 4318")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"):
        pairs = os.environ.get(name, "").strip().split(",")
        if not all(_HEADER.fullmatch(pair) and unquote(pair).isprintable() for pair in pairs):
            raise WrongSettingError(name, "it is NAME=VALUE, separated by commas, each percent-encoded")
    if "@" in os.environ[endpoint]:
        raise WrongSettingError(endpoint, "no user and password belong here")
    resource = Resource.create({"service.name": f"forgewatch-{room}"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider

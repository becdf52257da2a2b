"""What Prometheus reads: durable totals from the engine, and how long things take."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from onlinecde.serving.shares import Shares
from onlinecde.streaming import Engine
from onlinecde.streaming.shadow import ShadowStatus

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_OUTCOMES = ("applied", "duplicate", "corrected", "late_applied", "refused")


class Metrics:
    """A registry of one server's own; names of streams and values never go into it."""

    def __init__(self, engine: Engine, queue: Shares) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "onlinecde_requests_total", "Requests answered.", ("route", "status"), registry=self.registry
        )  # fmt: skip
        self.waited = Histogram(
            "onlinecde_durable_seconds",
            "From a request with events to its durable answer.",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.applied = Histogram(
            "onlinecde_apply_seconds",
            "One micro-batch: integrate and commit.",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.batch = Histogram(
            "onlinecde_batch_events",
            "Events in a micro-batch.",
            registry=self.registry,
            buckets=(1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000),
        )
        self.looks = Counter(
            "onlinecde_looks_total", "Looks at streams between rows.", registry=self.registry
        )
        self.sockets = Gauge("onlinecde_sockets", "Open sockets.", registry=self.registry)
        self.dropped = Counter(
            "onlinecde_sockets_dropped_total", "Sockets let go as too slow.", registry=self.registry
        )
        self.shadow = ShadowStatus("none")
        """Another model beside the one that serves, as it was known last"""
        self.registry.register(_Shadow(self))
        self.registry.register(_Totals(engine, queue))

    def text(self) -> bytes:
        """Everything, as Prometheus wants it."""
        return generate_latest(self.registry)


class _Totals:
    def __init__(self, engine: Engine, queue: Shares) -> None:
        self._engine, self._queue = engine, queue

    def collect(self) -> Iterator[Metric]:
        totals = self._engine.counters
        events = CounterMetricFamily(
            "onlinecde_events", "Events by how they ended; durable.", labels=("outcome",)
        )
        for outcome in _OUTCOMES:
            events.add_metric((outcome,), totals.get(outcome, 0))
        yield events
        refused = CounterMetricFamily(
            "onlinecde_refusals", "Refused events by reason; durable.", labels=("code",)
        )
        for code, count in self._engine.refusals.items():
            refused.add_metric((code,), count)
        yield refused
        for name in ("rows", "commits", "alarms"):
            yield CounterMetricFamily(
                f"onlinecde_{name}", f"{name.title()}; durable.", value=totals.get(name, 0)
            )
        yield GaugeMetricFamily("onlinecde_streams", "Streams known.", value=len(self._engine))
        yield GaugeMetricFamily(
            "onlinecde_queued_events", "Events that wait for their commit.", value=self._queue.total
        )  # fmt: skip


class _Shadow:
    """Another model beside the one that serves; nothing where there is none."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        status = self._metrics.shadow
        if status.model is None:
            return
        for name, value, words in (
            ("streams_built", status.built, "Streams it has seen all rows of."),
            ("streams_from_cut", status.from_cut, "Streams it begins after their first rows."),
            ("mean_difference", status.mean_difference, "Mean absolute difference of answers."),
            ("largest_difference", status.largest_difference, "Largest difference of answers."),
            ("alarms_disagree", status.alarms_disagree, "Streams at one threshold alone."),
            ("row_seconds", status.row_seconds, "What a row costs."),
            ("live_row_seconds", status.live_row_seconds, "What it costs the model that serves."),
        ):
            if value is not None:
                yield GaugeMetricFamily(
                    f"onlinecde_shadow_{name}", f"Another model: {words}", value=value
                )

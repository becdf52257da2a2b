"""What Prometheus reads: durable totals from the engine, and how long things take."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from onlinecde.serving.sessions import Sessions
from onlinecde.serving.shares import Shares
from onlinecde.streaming import Engine, SQLiteStore, Store
from onlinecde.streaming.shadow import ShadowStatus
from onlinecde.version import __version__

if TYPE_CHECKING:
    from onlinecde.serving.webhooks import Webhooks

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_OUTCOMES = ("applied", "duplicate", "corrected", "late_applied", "refused")


class Metrics:
    """A registry of one server's own; names of streams and values never go into it."""

    def __init__(self, engine: Engine, queue: Shares, sessions: Sessions) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        Info("onlinecde_build", "Version and model.", registry=self.registry).info(
            {
                "version": __version__,
                "model": engine.model_hash[:12],
                "kind": engine.kind,
                "python": platform.python_version(),
            }
        )
        self.errors = Counter(
            "onlinecde_errors_total", "Answers of 400 and above, by what they say.", ("code", "status"),
            registry=self.registry,
        )  # fmt: skip
        Gauge("onlinecde_sessions", "Browsers signed in.", registry=self.registry).set_function(
            lambda: len(sessions)
        )
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
        self.implausible = Counter(
            "onlinecde_implausible_events_total", "Values taken that lie outside of what is plausible.", ("channel",),
            registry=self.registry,
        )  # fmt: skip
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
        self._totals = _Totals(engine, queue)
        self.registry.register(self._totals)

    def add_webhooks(self, webhooks: Webhooks) -> None:
        """Count deliveries, too."""
        self.registry.register(_Deliveries(webhooks))

    def look(self) -> None:
        """Ask the engine for what `text` says of it."""
        self._totals.look()

    def committed(self, events: int, seconds: float) -> None:
        """Note a micro-batch."""
        self._totals.last_commit = time.time()
        self.applied.observe(seconds)
        self.batch.observe(events)

    def marked(self, implausible: Mapping[str, int]) -> None:
        """Count implausible values."""
        for channel, count in implausible.items():
            self.implausible.labels(channel).inc(count)

    def text(self) -> bytes:
        """Everything, as Prometheus wants it; of the engine, what it said when it was asked last."""
        return generate_latest(self.registry)


class _Totals:
    """What is known without asking the engine, and what it said when it was asked last."""

    def __init__(self, engine: Engine, queue: Shares) -> None:
        self._engine, self._queue = engine, queue
        self._counters: Mapping[str, int] = {}
        self._refusals: Mapping[str, int] = {}
        self._resident = 0
        self.last_commit = time.time()

    def look(self) -> None:
        """Ask the engine."""
        self._counters, self._refusals = self._engine.counters, self._engine.refusals
        self._resident = self._engine.resident

    def collect(self) -> Iterator[Metric]:
        totals = self._counters
        outcomes = {outcome: totals.get(outcome, 0) for outcome in _OUTCOMES}
        yield _counts("onlinecde_events", "Events by how they ended; durable.", "outcome", outcomes)
        yield _counts(
            "onlinecde_refusals", "Refused events by reason; durable.", "code", self._refusals
        )
        for name in ("rows", "commits", "alarms"):
            yield CounterMetricFamily(
                f"onlinecde_{name}", f"{name.title()}; durable.", value=totals.get(name, 0)
            )
        gauges = {
            "streams": ("Streams known.", totals.get("streams", 0)),
            "resident_streams": ("Streams in memory.", self._resident),
            "queued_events": ("Events that wait for their commit.", self._queue.total),
            "last_commit_age_seconds": (
                "Since the newest commit of this process, or since its start.",
                time.time() - self.last_commit,
            ),
        }
        for name, (what, number) in {**gauges, **_store_sizes(self._engine.store)}.items():
            yield GaugeMetricFamily(f"onlinecde_{name}", what, value=number)
        queued = GaugeMetricFamily(
            "onlinecde_queued_events_by_token", "Events that wait, by who sent them.", labels=("token",)
        )  # fmt: skip
        for client, events in list(self._queue.by_client.items())[:1000]:
            queued.add_metric((client.removeprefix("token "),), events)
        yield queued


class _Deliveries:
    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    def collect(self) -> Iterator[Metric]:
        sent = CounterMetricFamily(
            "onlinecde_webhook_deliveries", "Attempts to deliver alarms.", labels=("result", "target")
        )  # fmt: skip
        for (target, result), count in self._webhooks.counts.items():
            sent.add_metric((result, target), count)
        yield sent
        state = self._webhooks.deliveries
        for name, what, numbers in (
            ("waiting", "Alarms a target has not taken yet.", map(self._webhooks.waiting, state)),
            ("dead", "Alarms that were given up.", (len(one.dead) for one in state.values())),
        ):
            family = GaugeMetricFamily(f"onlinecde_webhook_{name}", what, labels=("target",))
            for target, number in zip(state, numbers, strict=True):
                family.add_metric((target,), number)
            yield family


def _counts(name: str, what: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, what, labels=(label,))
    for value, count in counts.items():
        family.add_metric((value,), count)
    return family


def _store_sizes(store: Store) -> dict[str, tuple[str, float]]:
    """Bytes of a store in a file, of its WAL, and left on its disk; nothing of others."""
    if not isinstance(store, SQLiteStore):
        return {}
    file = store.file.resolve()
    wal = file.with_name(f"{file.name}-wal")
    try:
        sizes = file.stat().st_size, wal.stat().st_size if wal.exists() else 0
        free = shutil.disk_usage(file).free
    except OSError:
        return {}
    return {
        "store_bytes": ("The store's file.", sizes[0]),
        "store_wal_bytes": ("The WAL beside it.", sizes[1]),
        "store_free_bytes": ("Left on its disk.", free),
    }


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

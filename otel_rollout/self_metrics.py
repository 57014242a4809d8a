"""What the package says of itself: OpenTelemetry metrics, and the counts of one process.

The instruments are observable ones of the metrics API: without a MeterProvider they cost nothing,
with one a few additions each time it collects. Names are those that the semantic conventions have
for SDK components; what they do not know is ``otel_rollout.*``.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from otel_rollout._version import __version__
from otel_rollout.forking import in_child

PROCESSOR: Final = "rollout_span_processor"
EXPORTER: Final = "weave_span_exporter"
DROPPED: Final = ("dropped", "failed_conversion", "failed_in_worker")
"""Beginnings of the names of counters that mean loss."""

_Gauges = dict[str, float]


class Component(Protocol):
    """A span processor or exporter that counts."""

    counters: Counter[str]


_components: list[tuple[str, weakref.ref[Any], Callable[[Any], _Gauges]]] = []
_instruments_made = False


def observe(kind: str, component: Component, gauges: Callable[[Any], _Gauges]) -> None:
    """Include a component's counters, and what ``gauges`` returns for it, in the metrics."""
    _components[:] = [entry for entry in _components if entry[1]() is not None]
    _components.append((kind, weakref.ref(component), gauges))
    _make_instruments()


def _begin_in_child() -> None:
    """Count afresh: what the parent has counted is the parent's."""
    for _, component, _ in _alive():
        component.counters.clear()


in_child(_begin_in_child)


def counts(kind: str | None = None) -> Counter[str]:
    """Return the counters of all components of this process, or of one kind, added up."""
    total: Counter[str] = Counter()
    for its_kind, component, _ in _alive():
        if kind in (None, its_kind):
            total.update(component.counters)
    return total


def is_loss(name: str) -> bool:
    """Return whether a counter counts what is lost."""
    return name.startswith(DROPPED)


def in_words(found: Counter[str]) -> str:
    """Return counters as one line: ``seen 12, spooled 12, …``."""
    return ", ".join(
        f"{name.replace('_', ' ')} {count}" for name, count in sorted(found.items()) if count
    )


def _alive() -> Iterable[tuple[str, Any, Callable[[Any], _Gauges]]]:
    for kind, reference, gauges in list(_components):
        component = reference()
        if component is not None:
            yield kind, component, gauges


def _labels(kind: str, number: int) -> dict[str, str]:
    return {"otel.component.type": kind, "otel.component.name": f"{kind}/{number}"}


def _observe_counters(
    kind: str, ok: str | None, with_losses: bool
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """Observe the counter ``ok``, and each kind of loss with its reason as ``error.type``."""

    def callback(options: CallbackOptions) -> Iterable[Observation]:
        number = 0
        for its_kind, component, _ in _alive():
            if its_kind != kind:
                continue
            labels = _labels(kind, number)
            number += 1
            if ok is not None:
                yield Observation(component.counters[ok], labels)
            if with_losses:
                for name, count in list(component.counters.items()):
                    if is_loss(name):
                        reason = name.removeprefix("dropped_")
                        yield Observation(count, {**labels, "error.type": reason})

    return callback


def _observe_gauge(kind: str, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def callback(options: CallbackOptions) -> Iterable[Observation]:
        number = 0
        for its_kind, component, gauges in _alive():
            if its_kind == kind:
                yield Observation(gauges(component).get(name, 0), _labels(kind, number))
                number += 1

    return callback


_COUNTERS: Final = (
    ("otel.sdk.processor.span.processed", PROCESSOR, "handed_on", True, "{span}"),
    ("otel.sdk.exporter.span.exported", EXPORTER, "shipped", True, "{span}"),
    ("otel_rollout.processor.span.seen", PROCESSOR, "seen", False, "{span}"),
    ("otel_rollout.processor.span.sampled_out", PROCESSOR, "sampled_out", False, "{span}"),
    ("otel_rollout.processor.span.kept", PROCESSOR, "kept", False, "{span}"),
    ("otel_rollout.exporter.span.spooled", EXPORTER, "spooled", False, "{span}"),
    ("otel_rollout.exporter.spool.written", EXPORTER, "spooled_bytes", False, "By"),
    ("otel_rollout.exporter.shipped", EXPORTER, "shipped_bytes", False, "By"),
    ("otel_rollout.exporter.decode_errors", EXPORTER, "decode_errors", False, "{span}"),
    ("otel_rollout.exporter.failed_requests", EXPORTER, "failed_requests", False, "{request}"),
    ("otel_rollout.exporter.dead_letters", EXPORTER, "dead_letters", False, "{call}"),
)
_UP_DOWN: Final = (
    ("otel.sdk.processor.span.queue.size", PROCESSOR, "queue_size", "{span}"),
    ("otel_rollout.processor.queue.bytes", PROCESSOR, "queue_bytes", "By"),
    ("otel_rollout.processor.queue.capacity", PROCESSOR, "queue_capacity", "By"),
    ("otel_rollout.processor.held.trajectories", PROCESSOR, "held", "{trajectory}"),
    ("otel_rollout.processor.held.bytes", PROCESSOR, "held_bytes", "By"),
    ("otel.sdk.exporter.span.inflight", EXPORTER, "inflight", "{span}"),
    ("otel_rollout.exporter.lag", EXPORTER, "lag_bytes", "By"),
)


def _make_instruments() -> None:
    global _instruments_made
    if _instruments_made:
        return
    _instruments_made = True
    meter = metrics.get_meter("otel_rollout", __version__)
    for name, kind, counter, with_losses, unit in _COUNTERS:
        meter.create_observable_counter(
            name, [_observe_counters(kind, counter, with_losses)], unit=unit
        )
    for name, kind, gauge, unit in _UP_DOWN:
        meter.create_observable_up_down_counter(name, [_observe_gauge(kind, gauge)], unit=unit)

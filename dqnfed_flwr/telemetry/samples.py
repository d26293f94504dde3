"""Values of metrics, and their text exposition through prometheus-client."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dqnfed_flwr.telemetry.metrics import SECONDS, Metric

Labels = tuple[str, ...]


class SeriesValues:
    """The current value of every series of some metrics; a name that is not among theirs is a KeyError."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in self._metrics}
        self._observed: dict[str, dict[Labels, list[float]]] = {name: {} for name in self._metrics}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Give a gauge or an info its value; labels in their declared order."""
        self._values[name][labels] = float(value)

    def add(self, name: str, amount: float, *labels: str) -> None:
        """Raise a counter, which begins at 0."""
        series = self._values[name]
        series[labels] = series.get(labels, 0.0) + amount

    def observe(self, name: str, value: float | None, *labels: str) -> None:
        """Count a value in a histogram; None only makes the series appear."""
        counts = self._observed[name].setdefault(labels, [0.0] * (len(SECONDS) + 1) + [0.0])
        if value is not None:
            counts[bisect_left(SECONDS, value)] += 1
            counts[-1] += value

    def forget(self, name: str) -> None:
        """Drop all series of a metric."""
        self._values[name].clear()

    def not_below(self, earlier: str) -> None:
        """Raise counters and histograms to what an exposition of an earlier process says: Prometheus sees none fall.

        ValueError or KeyError if it is no exposition, or that of other metrics.
        """
        for family in text_string_to_metric_families(earlier):
            for sample in family.samples:
                metric = self._metrics.get(sample.name)
                if metric is not None and metric.kind == "counter":
                    labels, series = _labels(metric, sample), self._values[metric.name]
                    series[labels] = max(series.get(labels, 0.0), sample.value)
            metric = self._metrics.get(family.name)
            if metric is not None and metric.kind == "histogram":
                for labels, counts in _counted(metric, family.samples).items():
                    mine = self._observed[metric.name].get(labels, [0.0])
                    if sum(counts[:-1]) > sum(mine[:-1]):
                        self._observed[metric.name][labels] = counts

    def collect(self) -> Iterator[Family]:
        """The families, as prometheus-client asks for them; metrics without a series are left out."""
        for metric in self._metrics.values():
            if observed := self._observed[metric.name]:
                yield _histogram(metric, observed)
            elif values := self._values[metric.name]:
                yield _plain(metric, values)

    def exposition(self) -> bytes:
        """Prometheus' text format, version 0.0.4."""
        return generate_latest(self._registry)


def _plain(metric: Metric, series: dict[Labels, float]) -> Family:
    if metric.kind == "info":
        info = InfoMetricFamily(metric.family, metric.help)
        for labels in series:
            info.add_metric([], dict(zip(metric.labels, labels, strict=True)))
        return info
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family: Family = make(metric.family if metric.kind == "counter" else metric.name, metric.help)
    for labels, value in series.items():
        family.add_sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)
    return family


def _histogram(metric: Metric, series: dict[Labels, list[float]]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, counts in series.items():
        bounds = (*map(str, SECONDS), "+Inf")
        family.add_metric(labels, list(zip(bounds, accumulate(counts[:-1]), strict=True)), counts[-1])
    return family


def _labels(metric: Metric, sample: Sample) -> Labels:
    return tuple(sample.labels[label] for label in metric.labels)


def _counted(metric: Metric, samples: Sequence[Sample]) -> dict[Labels, list[float]]:
    """What `Samples.observe` keeps, by labels, from the samples of a histogram."""
    buckets: dict[Labels, list[float]] = {}
    sums = {_labels(metric, sample): sample.value for sample in samples if sample.name == f"{metric.name}_sum"}
    for sample in samples:
        if sample.name == f"{metric.name}_bucket":
            buckets.setdefault(_labels(metric, sample), []).append(sample.value)
    if any(len(found) != len(SECONDS) + 1 for found in buckets.values()):
        raise ValueError(f"{metric.name} has other buckets")
    return {
        labels: [now - before for before, now in pairwise([0.0, *found])] + [sums[labels]]
        for labels, found in buckets.items()
    }

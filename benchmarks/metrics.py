"""What metrics cost: series, seconds to write the file of a round, seconds of a scrape.

A file is written after every round, but not more often than every `PAUSE` seconds, so `write_over_pause` bounds the
share of a run's time that metrics take, however short its rounds. A scrape goes over HTTP to an exporter in the same
process; before each one the file of one run has changed, as it does when several federations share a server.
"""

from __future__ import annotations

import http.client
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks._common import Bar, Json, arguments, median, report, timed
from dqnfed_flwr.exporter.exporter import Exporter, ExporterOptions, Server
from dqnfed_flwr.telemetry.events import Cost, DroppedClient, Evaluated, RoundEvent
from dqnfed_flwr.telemetry.metric_files import PAUSE, RunMetrics
from dqnfed_flwr.telemetry.run_samples import RunCard

BARS = (
    Bar("series_1000_over_10", "<=", 1),
    Bar("scrape_seconds", "<=", 0.01),
    Bar("write_over_pause", "<=", 0.01),
)


def event(clients: int, number: int = 1) -> RoundEvent:
    """A round in which every third client was dropped."""
    rng = np.random.default_rng(number)
    losses, accuracies = rng.random(clients).tolist(), rng.random(clients).tolist()
    return RoundEvent(
        round=number,
        participants=list(range(clients)),
        losses_before=losses,
        losses_after=[loss / 2 for loss in losses],
        rates=losses,
        weights=losses,
        step_norm_squared=1.0,
        factor=1.0,
        rank=clients,
        condition=10.0,
        residual=0.0,
        status="converged",
        dropped=[DroppedClient(client, "absent", "") for client in range(0, clients, 3)],
        cost=Cost(exchanges=1, seconds={"exchange": 0.5, "solve": 0.01, "step": 0.001, "total": 0.6}),
        evaluated=Evaluated(dict(enumerate(accuracies))),
    )


def begun(directory: Path, name: str) -> RunMetrics:
    """The metrics of a run that has begun."""
    metrics = RunMetrics(directory, RunCard(name, "dqn-fed", "probed", "0"), pause=0)
    metrics.on_start(100, [])
    return metrics


def writing(directory: Path, clients: int, repeats: int) -> tuple[float, float, int]:
    """Median seconds of a round's file, by the clock and in processor time, and the number of its series."""
    metrics, round_event = begun(directory, f"clients-{clients}"), event(clients)
    times = [timed(lambda: metrics.on_round(round_event)) for _ in range(repeats)]
    lines = (directory / f"clients-{clients}.prom").read_text().splitlines()
    return *medians(times), sum(not line.startswith("#") for line in lines)


def medians(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Medians by the clock and in processor time."""
    return median([clock for clock, _ in times]), median([cpu for _, cpu in times])


def scraping(directory: Path, runs: int, repeats: int) -> tuple[float, float]:
    """Median seconds of a scrape over so many runs, after a round of one of them; both sides' processor time."""
    listeners = [begun(directory, f"run-{number}") for number in range(runs)]
    with Server(Exporter(ExporterOptions(directory)), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        connection = http.client.HTTPConnection("127.0.0.1", int(server.server_address[1]), timeout=30)

        def scrape() -> None:
            connection.request("GET", "/metrics")
            connection.getresponse().read()

        scrape()
        times = []
        for number in range(repeats):
            listeners[number % runs].on_round(event(10, number))
            times.append(timed(scrape))
        connection.close()
        server.shutdown()
        thread.join()
    return medians(times)


def measure(repeats: int) -> dict[str, Json]:
    """All figures."""
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / name for name in ("writing", "few", "many")]
        for folder in folders:
            folder.mkdir()
        few, few_cpu, series = writing(folders[0], 10, repeats)
        many, many_cpu, series_of_many = writing(folders[0], 1000, repeats)
        scrape, scrape_cpu = scraping(folders[1], 10, repeats)
        large, large_cpu = scraping(folders[2], 50, repeats)
    return {
        "series": series,
        "series_1000_over_10": series_of_many / series,
        "write_seconds": few,
        "write_cpu_seconds": few_cpu,
        "write_seconds_1000_clients": many,
        "write_cpu_seconds_1000_clients": many_cpu,
        "write_over_pause": max(few, many) / PAUSE,
        "scrape_seconds": scrape,
        "scrape_cpu_seconds": scrape_cpu,
        "scrape_seconds_50_runs": large,
        "scrape_cpu_seconds_50_runs": large_cpu,
    }


def main(given: Sequence[str] | None = None) -> None:
    """Measure and report."""
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=50, help="repetitions of which the median counts")
    options = parser.parse_args(given)
    report("metrics", measure(options.repeats), BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])

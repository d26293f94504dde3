"""Pictures of a comparison. A few rows stand out in colour, the others are thin and grey, and all are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dqnfed_flwr.compare.client_plots import draw_clients, draw_fairness, panels_of
from dqnfed_flwr.compare.curve_plots import draw_accuracy, draw_rho
from dqnfed_flwr.compare.palette import colours_of
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.report.plots import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_comparison(comparison: Comparison, directory: Path) -> list[Path]:
    """Draw `accuracy.png`, `clients.png`, `rho.png` and `fairness.png`.

    Raises
    ------
    RunError
        If matplotlib is missing or a file cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError("the plots need matplotlib: pip install 'dqnfed-flwr[plots]'") from None
    colours = colours_of(comparison)
    if not colours:
        return []
    height = 4.2 + 0.09 * max(0, len(colours) - 12)
    lines, columns = panels_of(len(colours))
    kinds: dict[str, tuple[tuple[float, float], Callable[[Comparison, dict[int, str], Figure], None]]] = {
        "accuracy.png": ((15, height), draw_accuracy),
        "clients.png": ((2.4 * columns + 1.4, 1.7 * lines + 1.2), draw_clients),
        "rho.png": ((8.5, height), draw_rho),
        "fairness.png": ((9, 6.5), draw_fairness),
    }
    paths = []
    for name, (size, draw) in kinds.items():
        with rc_context(STYLE):
            figure = Figure(figsize=size, layout=None if draw is draw_clients else "constrained")
            FigureCanvasAgg(figure)
            draw(comparison, colours, figure)
            try:
                figure.savefig(directory / name)
            except OSError as error:
                raise RunError(f"{directory / name}: the plot cannot be written ({error.strerror})") from None
        paths.append(directory / name)
    return paths

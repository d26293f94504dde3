"""What holds for `local-newton`, `fednew` and `fednl` alone: impossible combinations, and names in tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dqnfed_flwr.config.settings import Settings


def second_order_faults(settings: Settings) -> Iterator[str]:
    """What is wrong with the settings of a second-order method."""
    if settings.method == "local-newton" and settings.local_newton.solver == "lbfgs":
        if settings.curvature.kind == "none":
            yield "curvature.kind: local-newton.solver lbfgs needs curvature pairs, found 'none'; use secant or hvp"
        if settings.local.epochs > 1:
            yield (
                f"local.epochs: local-newton.solver lbfgs takes one step a round, found {settings.local.epochs}; use "
                "1, or solver cg"
            )
    if settings.method == "fednl" and settings.fednl.form == "diagonal" and settings.fednl.option == "projection":
        yield (
            "fednl.option: the form diagonal leaves the rest of the Hessian to the shift, found 'projection'; use shift"
        )


def second_order_title(settings: Settings) -> str | None:
    """The title with the form in brackets; None for other methods."""
    title = settings.profile.title
    if settings.method == "local-newton":
        return f"{title} ({'L-BFGS' if settings.local_newton.solver == 'lbfgs' else _cg(settings.local_newton.matrix)})"
    if settings.method == "fednew":
        form = "Q-" + title if settings.fednew.bits else title
        return f"{form} ({_cg(settings.fednew.matrix)})" if settings.fednew.form == "cg" else form
    if settings.method == "fednl":
        form = title + "-PP" if settings.fednl.form == "exact" and settings.sampled < settings.clients else title
        return form if settings.fednl.form == "exact" else f"{form} ({settings.fednl.form.replace('-', ' ')})"
    return None


def _cg(matrix: str) -> str:
    return "CG" if matrix == "hessian" else "CG, Gauss-Newton"

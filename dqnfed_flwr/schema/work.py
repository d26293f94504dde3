"""Local work as it is seen from outside: by name, with what of it matters to settings, checks and attacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CurvatureMatrix = Literal["hessian", "gauss-newton"]
SOFTMAX = "solves with the Gauss-Newton matrix of a cross-entropy; use {key} hessian"
"""Why a method refuses other tasks than classification, with the key of its matrix."""


@dataclass(frozen=True, slots=True)
class WorkProfile:
    """One kind of local work.

    Attributes
    ----------
    name : str
        As in `local.work`, or the method's own.
    source : str
        `module:Class` of the client's half, imported by the client alone.
    passes : bool
        Whether it is passes of SGD, which read `local.batch-size` and the like and change the buffers of a model. Other
        work begins with a gradient.
    epochs : bool
        Whether it takes `local.epochs` steps without being such passes.
    gradient_row : bool
        Whether its row is a gradient; that of other work is the way from the model received to one of its own.
    scaled_row : bool
        Whether its row becomes a step by the local rate.
    twice : bool
        Whether it differentiates twice.
    wants_step : bool
        Whether clients that do it need the step before, u_{t-1}.
    """

    name: str
    source: str
    passes: bool = False
    epochs: bool = False
    gradient_row: bool = False
    scaled_row: bool = False
    twice: bool = False
    wants_step: bool = False


GRADIENT = WorkProfile("gradient", "dqnfed_flwr.client.work:GradientWork", gradient_row=True, scaled_row=True)
LBFGS = WorkProfile("lbfgs", "dqnfed_flwr.client.work:LbfgsWork", epochs=True, gradient_row=True, scaled_row=True)
SGD = WorkProfile("sgd", "dqnfed_flwr.client.work:SgdWork", passes=True)
GENERAL = {work.name: work for work in (GRADIENT, LBFGS, SGD)}
"""The work that any method may be fed with."""


def cg_title(matrix: CurvatureMatrix) -> str:
    """What a title says of conjugate gradients on products with this matrix."""
    return "CG" if matrix == "hessian" else "CG, Gauss-Newton"

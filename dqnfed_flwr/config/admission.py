"""Settings of admission: which replies are believed, see `docs/admission.md`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dqnfed_flwr.config._group import Group


class AdmissionSettings(Group):
    """Which replies of sound form are believed, and how long a client that is not believed stays out."""

    mode: Literal["off", "reject", "clip"] = Field(
        "reject", description="implausible replies: not looked for, turned away, or a row too long cut to the limit"
    )
    norm_factor: float = Field(8.0, gt=1, description="largest norm of a row over the round's median")
    loss_factor: float = Field(30.0, gt=1, description="largest loss over the round's median")
    rate_factor: float = Field(1000.0, gt=1, description="largest d_k/|g_k|^2 over the round's median")
    spread: float = Field(
        5.0, ge=0, description="deviations (of the round's logarithms, from their MAD) allowed where that is more"
    )
    past_factor: float = Field(
        4.0,
        ge=1,
        description="a figure within this factor of the client's own earlier ones is believed longer, see admission.md",
    )
    min_cosine: float = Field(
        -1.0, ge=-1, lt=1, description="smallest cosine of a row with the sum of the others' unit rows; -1 is off"
    )
    min_replies: int = Field(5, ge=3, description="fewest to compare with; below it the own past alone counts")
    veto_limit: int = Field(
        2,
        ge=0,
        description="exchanges of one step after which a minority that contradicts itself has no vote on it; 0 never",
    )
    suspend_after: int = Field(3, ge=0, description="refusals in a row that suspend a client; 0 never")
    suspend_rounds: int = Field(20, ge=1, description="rounds for which a suspended client is not asked")

"""Settings of the guarantee: what harm is, and how many clients may lie; see `docs/admission.md`."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from dqnfed_flwr.config._group import Group

SHARE = "%"
"""Ends an entitlement that is a share of the typical loss."""


def _as_text(value: Any) -> Any:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else value


class GuaranteeSettings(Group):
    """What is promised to the clients, and against how many of them."""

    entitlement: Annotated[str, BeforeValidator(_as_text)] = Field(
        "50%",
        description="loss below which a client counts as served and may rise, but not above: a share of the round's "
        "typical loss, such as 50%, or a loss, such as 0.1; 0 lets no loss rise at all, as in the paper",
    )
    tolerate: float = Field(
        0.0,
        ge=0,
        description="f, clients of those asked in a round that may lie: a number, or below 1 a share of them; so many "
        "can be overruled for a round, and are named",
    )
    voters: float = Field(
        0.5, gt=0, le=1, description="share of a round's participants that must judge its step, else it is tried again"
    )

    @field_validator("entitlement")
    @classmethod
    def _check_entitlement(cls, text: str) -> str:
        try:
            fit = 0 <= float(text.strip().removesuffix(SHARE)) < math.inf
        except ValueError:
            fit = False
        if not fit:
            raise ValueError(
                f"found {text!r}; give a loss of at least 0, such as 0.1, or a share of the round's typical "
                "loss, such as 50%"
            )
        return text

    @field_validator("tolerate")
    @classmethod
    def _check_tolerate(cls, number: float) -> float:
        if number >= 1 and number != int(number):
            raise ValueError(f"found {number:g}; give a whole number of clients, or a share of them below 1")
        return number

    @property
    def level_and_share(self) -> tuple[float, float]:
        """`entitlement` as a loss and a share of the typical loss, of which one is 0."""
        text = self.entitlement.strip()
        value = float(text.removesuffix(SHARE))
        return (0.0, value / 100) if text.endswith(SHARE) else (value, 0.0)

    def liars(self, asked: int) -> int:
        """f among so many clients asked, always fewer than half of them."""
        number = int(self.tolerate) if self.tolerate >= 1 else int(self.tolerate * asked + 1e-9)
        return min(number, max((asked - 1) // 2, 0))

"""Admission: whether a reply of sound form is believed, and who is asked at all. Knows nothing of Flower."""

from dqnfed_flwr.admission.examine import REASONS, Figures, Past, Refusal, examine
from dqnfed_flwr.admission.ledger import SUSPENDED, Ledger
from dqnfed_flwr.admission.votes import VETO, fall_behind, promise_breakers, stubborn

__all__ = [
    "REASONS",
    "SUSPENDED",
    "VETO",
    "Figures",
    "Ledger",
    "Past",
    "Refusal",
    "examine",
    "fall_behind",
    "promise_breakers",
    "stubborn",
]

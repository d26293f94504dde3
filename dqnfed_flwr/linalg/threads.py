"""Threads of the linear algebra library behind NumPy.

K x K problems gain nothing from threads, and OpenBLAS's spin for a while after each call: torch's then wait for the
cores. Measured on two cores: 160 ms for a step of K = 100, D = 650,000 with both pools awake, 17 ms with one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold OpenBLAS to one thread within; other libraries and the setting afterwards are untouched."""
    with _openblas().limit(limits=1):
        yield


@cache
def _openblas() -> ThreadpoolController:
    return ThreadpoolController().select(internal_api="openblas")

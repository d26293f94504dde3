from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.small_tables import Tables


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tables:
    return Tables(tmp_path, monkeypatch)

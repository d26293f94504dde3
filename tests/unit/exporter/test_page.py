"""The page stands by itself: no reference to a network, and it shows what the exporter knows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from dqnfed_flwr.exporter.exporter import Exporter, ExporterOptions
from tests.helpers.served import NODES, RUNS, polling, serving, write_run

PAGE = files("dqnfed_flwr.exporter").joinpath("dashboard.html").read_text("utf-8")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def test_the_page_refers_to_nothing_outside() -> None:
    assert set(re.findall(r"\w+://[^\s\"'`]+", PAGE)) == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert not re.search(r"<(script|link|img|iframe)[^>]*\b(src|href)=\"(?!data:)", PAGE)
    assert "@import" not in PAGE
    assert "url(" not in PAGE


def test_the_page_writes_no_markup_from_data() -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", PAGE)


@pytest.mark.deploy
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_shows_runs_clients_and_nodes(tmp_path: Path) -> None:
    command = tmp_path / "flwr"
    command.write_text(
        f"#!/bin/sh\ncase \"$*\" in *supernode*) echo '{json.dumps(NODES)}';; *) echo '{json.dumps(RUNS)}';; esac\n"
    )
    command.chmod(0o755)
    directory = tmp_path / "metrics"
    directory.mkdir()
    write_run(directory, 'r"><img src=x onerror=alert(1)>', 12, rhos=[1.0, 0.5] * 6)
    exporter = Exporter(ExporterOptions(directory), polling(command))
    exporter.look()
    with serving(exporter) as server:
        browser = [
            str(CHROMIUM),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'c'}",
        ]
        done = subprocess.run(
            [*browser, "--virtual-time-budget=2500", "--dump-dom", server.url],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    shown = done.stdout
    assert "12 of 12" in shown
    assert "<img" not in shown
    assert shown.count('fill="var(--red)"') == 6  # rounds of a low ratio
    assert all(word in shown for word in ("clients not harmed", "heard of those asked", "4 of 4", "votes overruled"))
    assert all(word in shown for word in ("absent", "offline", "<polygon", "ServerApp raised", "live, "))

"""What is asked of a cluster, and of its nodes before the first run; the runs themselves are in tests/deploy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dqnfed_flwr.compare import on_ray
from dqnfed_flwr.compare.on_ray import RayCluster, check_shares
from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.version import package_version
from tests.helpers.cli import call

NODE = {"Alive": True, "NodeID": "a", "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4.0}}


class Silence(Exception):
    """What a cluster says that does not answer in time."""


class FakeRay:
    """A cluster of one node that answers `answer` when it is looked at."""

    exceptions = SimpleNamespace(GetTimeoutError=Silence)

    def __init__(self, answer: Any, node: dict[str, Any] = NODE) -> None:
        self._answer, self._node = answer, node
        self.tokens: list[Path] = []

    def nodes(self) -> list[dict[str, Any]]:
        return [self._node, {**self._node, "Alive": False}]

    def remote(self, **_: Any) -> Any:
        looked = SimpleNamespace(remote=self._look)
        return lambda look: SimpleNamespace(options=lambda **_: looked)

    def _look(self, token: str) -> int:
        self.tokens.append(Path(token))
        return len(self.tokens) - 1

    def get(self, task: int, timeout: float) -> Any:
        assert self.tokens[task].exists()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.fixture(autouse=True)
def no_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "_on", lambda node: node)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (("b", "0.0.1", True), f"node 10.0.0.1 (b) has dqnfed-flwr 0.0.1, here is {package_version()}"),
        (("b", package_version(), False), "does not see {folder}; give --output a folder that all nodes share"),
        (Silence(), "node 10.0.0.1 did not answer within 0 s"),
        (ImportError("No module named 'dqnfed_flwr'"), "cannot import dqnfed_flwr (No module named 'dqnfed_flwr')"),
    ],
)
def test_a_node_that_cannot_carry_out_a_run_is_named(answer: Any, words: str, tmp_path: Path) -> None:
    ray = FakeRay(answer)
    with pytest.raises(RunError) as refused:
        on_ray._check_nodes(ray, RayCluster("auto"), tmp_path / "runs" / "one")
    assert words.format(folder=tmp_path / "runs") in str(refused.value)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_cluster_that_is_fit_is_asked_once_a_node(tmp_path: Path) -> None:
    ray = FakeRay(("b", package_version(), True))
    on_ray._check_nodes(ray, RayCluster("auto", cpus=4), tmp_path / "runs" / "one")
    assert len(ray.tokens) == 1


def test_more_than_any_node_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="asks for 8 CPU, 0 GPU, which no node has; there are: 4 CPU, 0 GPU"):
        on_ray._check_nodes(FakeRay(()), RayCluster("auto", cpus=8), tmp_path / "one")


@pytest.mark.parametrize(("cpus", "gpus"), [(0, 0), (-1, 0), (1, -0.5), (1, 1.5)])
def test_shares_that_do_not_exist(cpus: float, gpus: float) -> None:
    with pytest.raises(ConfigError, match="-per-run"):
        check_shares(cpus, gpus)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare", "digits", "--gpus-per-run", "0.5"), "give --ray ADDRESS too"),
        (("compare", "digits", "--ray", "auto", "--cpus-per-run", "0"), "give more than 0"),
        (("reproduce", "table9", "--ray", "auto", "--gpus-per-run", "1.5"), "a share of one GPU"),
        (("run", "digits", "--ray", "auto"), "give --engine flower too"),
    ],
)
def test_options_that_do_not_go_together(words: tuple[str, ...], message: str) -> None:
    done = call(*words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nobody_listens_is_refused_at_once(address: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray comes with the extra `simulation`")
    done = call("compare", "digits", "--seeds", "0", "--ray", address, "--output", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert f"nobody answers at {address}" in " ".join(done.stderr.split())

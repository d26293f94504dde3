"""Each thing that can be wrong is found, and reported with its remedy."""

from __future__ import annotations

import datetime as dt
import re
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dqnfed_flwr.deploy import check, check_local, pki
from dqnfed_flwr.deploy.findings import Level, failed
from dqnfed_flwr.deploy.plan import Node, bundle_text, read_plan, write_plan
from dqnfed_flwr.errors import ConfigError
from tests.helpers.checks import only, remember, troubles

OTHER = pki.make_server(pki.make_authority(), "localhost", [], 1)


def test_a_new_federation_is_well(place: Path) -> None:
    findings = check.check(place)
    assert troubles(findings) == {}
    assert sum("is free" in finding.what for finding in findings) == 2


@pytest.mark.parametrize("flwr", ["1.40.0", "1.42.0"])
def test_a_flower_whose_nodes_reach_the_control_port_needs_a_gate(
    flwr: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_local, "version", lambda name: flwr)
    write_plan(place, replace(read_plan(place), flwr=flwr))
    found = {what: fix for what, fix in troubles(check.check(place)).items() if "speaks HTTP" in what}
    assert list(found) == [f"flwr {flwr} speaks HTTP on one port for nodes and operators, the Control port"]
    assert "put a gate on the Fleet port" in next(iter(found.values()))


@pytest.mark.parametrize("name", ["server/server.key", "ca/ca.key", "server/superexec.secret", "nodes/node-1/node.key"])
def test_a_secret_that_others_can_read(place: Path, name: str) -> None:
    (place / name).chmod(0o640)
    what, fix = only(check.check(place))
    assert what == f"{place / name} is open to other users (640)"
    assert fix.startswith(f"chmod 600 {place / name}")
    assert failed(check.check(place))


@pytest.mark.parametrize("name", ["server/superexec.secret", "operator/config.toml", "nodes/node-0/node.pub"])
def test_a_file_that_is_missing(place: Path, name: str) -> None:
    (place / name).unlink()
    what, fix = only(check.check(place))
    assert what == f"{place / name} is missing"
    assert fix


def test_keys_may_be_kept_elsewhere_but_not_on_the_device(place: Path) -> None:
    (place / "ca" / "ca.key").unlink()
    (place / "nodes" / "node-0" / "node.key").unlink()
    (place / "nodes" / "node-0" / "superexec.secret").unlink()
    findings = check.check(place)
    assert troubles(findings) == {}
    assert {f"the {what} is kept elsewhere" for what in ("key of node-0", "secret of node-0")} <= {
        finding.what for finding in findings
    }
    on_device = troubles(check.check(place / "nodes" / "node-0"))
    assert "copy the node's folder again" in on_device[f"{place / 'nodes/node-0/node.key'} is missing"]
    assert "put any random text there" in on_device[f"{place / 'nodes/node-0/superexec.secret'} is missing"]


def test_node_that_could_take_part_in_no_masked_run(place: Path) -> None:
    node = place / "nodes" / "node-0"
    (node / "identity.key").unlink()
    assert not any("masked" in what for what in troubles(check.check(place)))  # it may be kept at the site alone
    found = troubles(check.check(node))
    fix = found[
        "node-0 has no identity.key: its clients can take part in no masked run, and the systemd unit does not start"
    ]
    assert fix == "`dqnfed deploy refresh`, and copy both here"


def test_a_missing_certificate(place: Path) -> None:
    (place / "server" / "server.crt").unlink()
    assert any("dqnfed deploy rotate" in fix for fix in troubles(check.check(place)).values())


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [
        (0, Level.OK, "is valid until"),
        (340, Level.WARNING, "expires in 24 days"),
        (366, Level.FAILURE, "expired on"),
        (-1, Level.FAILURE, "not valid before"),
    ],
)
def test_dates_of_the_server_certificate(place: Path, days: int, level: Level, words: str) -> None:
    now = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    found = [finding for finding in check.check(place, now=now) if finding.what.startswith("the server certificate")]
    assert [(finding.level, words in finding.what) for finding in found] == [(level, True)]
    if days > 0:
        assert "rotate" in found[0].fix
    if days < 0:
        assert "clock" in found[0].fix


def test_a_certificate_of_another_authority(place: Path) -> None:
    (place / "server" / "ca.crt").write_bytes(pki.make_authority().certificate)
    found = troubles(check.check(place))
    assert "the server certificate is not signed by server/ca.crt" in found
    fix = found["the certificate of operator operator is not signed by server/ca.crt"]
    assert fix == f"`dqnfed deploy rotate {place}`"


def change_plan(place: Path, **changes: object) -> None:
    write_plan(place, replace(read_plan(place), **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spoil", "said", "mend"),
    [
        (lambda place: (place / "server").chmod(0o755), r"server is open to other users \(755\)", "chmod 700"),
        (
            lambda place: (place / "server" / "server.key").write_bytes(OTHER.key),
            "^server.key is not the key of server.crt$",
            "`dqnfed deploy rotate",
        ),
        (
            lambda place: change_plan(place, others=("fl.example.org",)),
            "^the server certificate lacks fl.example.org$",
            "`dqnfed deploy rotate",
        ),
        (
            lambda place: (place / "server" / "nodes" / "node-1.crt").unlink(),
            "^node-1 is not on the list",
            "refresh .*, restart the SuperLink, and copy node.crt",
        ),
        (lambda place: change_plan(place, flwr="1.38.2"), "made for 1.38.2", "flwr==1.38.2"),
    ],
)
def test_what_is_wrong_is_found_and_mended(place: Path, spoil: Callable[[Path], object], said: str, mend: str) -> None:
    spoil(place)
    what, fix = only(check.check(place))
    assert re.search(said, what)
    assert re.search(mend, fix)


def test_keys_that_were_mixed_up(place: Path) -> None:
    first, second = place / "nodes" / "node-0", place / "nodes" / "node-1"
    (first / "node.pub").write_bytes((second / "node.pub").read_bytes())
    mixed, other = troubles(check.check(place))
    assert mixed.endswith("node.key and node.pub do not belong together")
    assert other == f"{place / 'server/nodes/node-0.crt'} is of another key than node.pub"


def test_somebody_else_on_the_list(place: Path) -> None:
    shutil.copy(place / "server" / "nodes" / "node-1.crt", place / "server" / "nodes" / "ward-b.crt")
    findings = check.check(place)
    assert "no nodes of this folder: ward-b" in only(findings)[0]
    assert not failed(findings)


def test_certificates_of_nodes_end_with_the_authority(place: Path) -> None:
    now = dt.datetime.now(dt.UTC) + dt.timedelta(days=3651)
    for folder in (place, place / "nodes" / "node-0"):
        found = {one.what: one for one in check.check(folder, now=now)}
        expired = next(one for what, one in found.items() if what.startswith("the certificate of node-0 expired"))
        assert expired.level is Level.FAILURE
        assert "copy node.crt" in expired.fix


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda own, other: own.unlink(), "is missing, so that the SuperLink turns this node away"),
        (lambda own, other: shutil.copy(other, own), "is of another key than node.pub"),
        (
            lambda own, other: own.write_bytes(pki.make_operator(pki.make_authority(), "node-0", 9).certificate),
            "is not signed by the authority in ca.crt",
        ),
        (lambda own, other: own.write_text("none"), "no certificate in PEM format"),
    ],
)
def test_a_device_whose_certificate_is_unfit(place: Path, spoil: Callable[[Path, Path], object], words: str) -> None:
    own, other = (place / "nodes" / f"node-{k}" / "node.crt" for k in range(2))
    spoil(own, other)
    found = troubles(check.check(own.parent))
    assert [fix for what, fix in found.items() if words in what and "copy" in fix], found


def test_little_space(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 0, int(1e9)))
    what, fix = only(check.check(place))
    assert what.startswith("1.0 GB are free")
    assert "delete" in fix
    assert not failed(check.check(place))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 0, int(1e8)))
    assert failed(check.check(place))


def test_little_space_where_the_services_write(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services = place.parent / "services"
    services.mkdir()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 0, int(1e9 if path == services else 1e11)))
    findings = check.check(place)
    what, fix = only(findings)
    assert what == f"1.0 GB are free in {services}"
    assert str(services / "server" / "runs") in fix
    assert f"100 GB are free in {place / 'server' / 'state'}" in [finding.what for finding in findings]
    assert f"1.0 GB are free in {services}" in troubles(check.check(place / "nodes" / "node-0"))


def test_a_superlink_that_is_gone_from_a_registered_federation(place: Path) -> None:
    remember(place, {"node-0": "11", "node-1": "12"})
    findings = check.check(place)
    what, fix = only(findings)
    assert what == "no SuperLink runs here, and 2 nodes are registered: no run could begin"
    assert "start it" in fix
    assert failed(findings)


def test_a_clock_that_nobody_sets(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_local, "clock_synchronised", lambda: False)
    what, fix = only(check.check(place))
    assert "clock" in what
    assert "timedatectl" in fix


def test_a_device_checks_its_own_folder(place: Path) -> None:
    found = troubles(check.check(place / "nodes" / "node-0"))
    assert len(found) == 1
    what, fix = next(iter(found.items()))
    assert what.startswith("localhost:")
    assert "cannot be reached" in what
    assert "firewall" in fix


def test_a_device_of_another_version_and_without_its_data(place: Path) -> None:
    plan = replace(read_plan(place), dqnfed="9.9.9")
    text = bundle_text(plan, Node("node-0", 0, 9094, "/nowhere/site.npz"))
    (place / "nodes" / "node-0" / "node.toml").write_text(text)
    found = troubles(check.check(place / "nodes" / "node-0"))
    assert any("9.9.9 at the server" in what for what in found)
    assert "put the file there" in found["no data at /nowhere/site.npz"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (r"port = \d+", "", "port: found None, needed is a number"),
        (r"port = \d+", 'port = "abc"', "port: found 'abc', needed is a number"),
        (r"localhost:\d+", "localhost", "superlink: found 'localhost', needed is HOST:PORT"),
        ("localhost", "\udcff", "cannot be read"),
    ],
)
def test_a_device_whose_description_was_changed(place: Path, old: str, new: str, reason: str) -> None:
    file = place / "nodes" / "node-0" / "node.toml"
    changed, count = re.subn(old, new, file.read_text())
    assert count == 1
    file.write_text(changed, "utf-8", "surrogateescape")
    with pytest.raises(ConfigError, match=reason) as refused:
        check.check(file.parent)
    assert "copy the node's folder again" in str(refused.value)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dqnfed deploy init"):
        check.check(tmp_path)

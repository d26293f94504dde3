"""The folder of a federation: what is in it, who may read it, how it changes."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from dqnfed_flwr.deploy import build, files, operators, pki
from dqnfed_flwr.deploy.plan import Federation, Node, read_plan
from dqnfed_flwr.errors import ConfigError, RunError

PLAN = Federation(
    "fl.example.org", ("192.0.2.7",), nodes=(Node("node-0", 0, 9094), Node("node-1", 1, 9095, "/d/s.npz"))
)
SECRET = ("ca/ca.key", "server/server.key", "server/superexec.secret", "operator.key", "node.key", "superexec.secret")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    build.create(tmp_path / "federation", PLAN)
    return tmp_path / "federation"


def secrets_in(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.as_posix().endswith(SECRET)]


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_secrets_are_private_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        build.create(tmp_path / "deep" / "federation", PLAN)
        build.add_node(tmp_path / "deep" / "federation")
        build.rotate(tmp_path / "deep" / "federation", authority=True)
    finally:
        os.umask(before)
    place = tmp_path / "deep" / "federation"
    assert len(secrets_in(place)) == 4 + 2 * 3
    assert {path.stat().st_mode & 0o777 for path in secrets_in(place)} == {0o600}
    folders = [path for path in [place, *place.rglob("*")] if path.is_dir() and path.name != "apps"]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in place.glob("nodes/*/apps")} == {0o755}  # for the client's user
    public = {path.stat().st_mode & 0o777 for path in place.rglob("*") if path.is_file()} - {0o600}
    assert public == {0o644}


def test_every_private_key_is_in_a_file_for_secrets(place: Path) -> None:
    found = {path for path in place.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()}
    assert found == {path for path in secrets_in(place) if path.suffix == ".key"}
    assert (place / ".gitignore").read_text() == "*\n"  # git leaves them alone


def test_secrets_differ_and_are_nowhere_else(place: Path) -> None:
    texts = [path.read_bytes() for path in secrets_in(place)]
    assert len(set(texts)) == len(texts)
    others = [path.read_bytes() for path in place.rglob("*") if path.is_file() and path not in secrets_in(place)]
    assert not any(secret.strip() in other for secret in texts for other in others)


def test_a_second_call_overwrites_nothing(place: Path) -> None:
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"holds a federation already.*add-node"):
        build.create(place, PLAN)
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        build.create(tmp_path, PLAN)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_failure_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "write_plan", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(ConfigError, match="No space left"):
        build.create(tmp_path / "federation", PLAN)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host": "fl.example.org:9092"}, "without port"),
        ({"host": "999.1.1.1"}, "IP address"),
        ({"others": ("a b",)}, "'a b'"),
        ({"fleet_port": 0}, "1 to 65535"),
        ({"control_port": 9092}, "give two ports"),
        ({"days": 0}, "found 0; allowed are 1 to 36500"),
        ({"days": 3_000_000}, "allowed are 1 to 36500"),
        ({"nodes": (Node("../x", 0, 1),)}, "lower-case"),
        ({"nodes": (Node("a", 0, 1), Node("a", 1, 2))}, "one name"),
        (
            {"nodes": (Node("operator", 0, 1),)},
            "a name of the server's own; not allowed: superlink",
        ),
        ({"nodes": (Node("a", 0, 1, "site.npz"),)}, "absolute path"),
        ({"nodes": (Node("a", 0, 1, "/x\x01y.npz"),)}, "printable"),
        ({"host": "2001:DB8::0001"}, "have this address as 2001:db8::1: give it in that form"),
        ({"host": "fe80::1%lo"}, "have this address as fe80::1: give it"),
        ({"nodes": (Node("a", 0, 1, "/x y.npz"),)}, "without spaces"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        build.create(tmp_path / "federation", replace(PLAN, **changes))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.5", "::1"])
def test_ports_of_nodes_beside_the_server_are_not_its_own(tmp_path: Path, host: str) -> None:
    plan = replace(PLAN, host=host, fleet_port=9095)
    with pytest.raises(ConfigError, match=r"node-1 and --fleet-port have 9095; give another --node-port"):
        build.create(tmp_path / "federation", plan)
    assert list(tmp_path.iterdir()) == []
    build.create(tmp_path / "federation", replace(plan, host="fl.example.org"))


def test_a_node_that_is_added_has_no_port_of_the_server(tmp_path: Path) -> None:
    build.create(tmp_path / "federation", replace(PLAN, host="localhost", fleet_port=9096, control_port=9097))
    assert [build.add_node(tmp_path / "federation").port for _ in range(2)] == [9098, 9099]


def test_a_further_name_gets_into_the_certificate(place: Path) -> None:
    build.rotate(place, others=["fl2.example.org", "192.0.2.7", "fl.example.org"])
    certificate = pki.first_certificate((place / "server" / "server.crt").read_bytes())
    names = ["fl.example.org", "fl2.example.org", "localhost", "192.0.2.7", "127.0.0.1"]
    assert sorted(pki.names_of(certificate)) == sorted(names)
    assert read_plan(place).others == ("192.0.2.7", "fl2.example.org")
    before = (place / "server" / "server.crt").read_bytes()
    with pytest.raises(ConfigError, match="'a b'"):
        build.rotate(place, others=["a b"])
    assert (place / "server" / "server.crt").read_bytes() == before


def test_the_plan_is_read_back(place: Path) -> None:
    assert read_plan(place) == PLAN
    assert replace(PLAN, host="2001:db8::7").superlink == "[2001:db8::7]:9092"


def test_flowers_connection(place: Path) -> None:
    config = tomllib.loads((place / "operator" / "config.toml").read_text())["superlink"]
    assert config == {
        "default": "dqnfed",
        "dqnfed": {"address": "127.0.0.1:8000", "root-certificates": str(place / "operator" / "ca.crt")},
    }


def test_commands_name_files_that_are_there(place: Path) -> None:
    for role, folder in (("superlink", "server"), ("superexec", "server"), ("node-1", "nodes/node-1")):
        words = shlex.split((place / "commands" / f"{role}.txt").read_text(), comments=True)
        assert words[words.index("cd") + 1] == str(place / folder)
        files = [word for word in words if word.endswith((".crt", ".key", ".secret"))]
        assert files
        assert [name for name in files if not (place / folder / name).is_file()] == []
    assert '--node-config partition-id=1 name="node-1" data="/d/s.npz"' in " ".join(
        shlex.split((place / "commands" / "node-1.txt").read_text(), comments=True)
    )


def test_a_shell_reads_the_environment(place: Path) -> None:
    script = '. ./environment; printf %s "$DQNFED_NODE_CONFIG|$FLWR_TELEMETRY_ENABLED|$DQNFED_SUPERLINK"'
    done = subprocess.run(
        ["sh", "-c", script], cwd=place / "nodes" / "node-1", capture_output=True, text=True, check=True
    )
    assert done.stdout == 'partition-id=1 name="node-1" data="/d/s.npz"|0|fl.example.org:9092'


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="File name too long"):
        build.create(tmp_path / ("x" * 300), PLAN)


def test_an_operator_is_told_of_the_clients_that_there_are(place: Path) -> None:
    operator = place / "commands" / "operator.txt"
    assert "--set clients=2" in operator.read_text()
    build.remove_node(place, "node-0")  # node-1 is still client 1 of two
    assert "--set clients=2" in operator.read_text()
    build.add_node(place)
    build.remove_node(place, "node-1")
    assert "--set clients=1" in operator.read_text()
    shutil.rmtree(place / "commands")
    assert build.remove_node(place, "node-0").partition == 0


@pytest.mark.parametrize("text", [b"\xff", b"nodes = 3", b"host = 1\nunknown = 2", b"nodes = [3]"])
def test_a_damaged_plan_is_told(place: Path, text: bytes) -> None:
    (place / "federation.toml").write_bytes(text)
    with pytest.raises(ConfigError, match=r"federation\.toml: cannot be read .*restore it from your backup"):
        read_plan(place)


@pytest.mark.parametrize("lost", ["others", "fleet_port", "flwr", "dqnfed", "data"])
def test_a_plan_that_lacks_something_is_damaged(place: Path, lost: str) -> None:
    plan = place / "federation.toml"
    found = tomllib.loads(plan.read_text())
    del (found["nodes"][1] if lost == "data" else found)[lost]
    plan.write_text(tomli_w.dumps(found))
    with pytest.raises(ConfigError, match=rf"federation\.toml: cannot be read \('{lost}'\); restore it"):
        read_plan(place)


def test_nodes_come_and_go(place: Path) -> None:
    assert build.add_node(place).name == "node-2"
    assert build.add_node(place, "ward-b", "mine:load") == Node("ward-b", 3, 9097, "mine:load")
    build.remove_node(place, "node-1")
    assert not (place / "nodes" / "node-1").exists()
    assert not (place / "commands" / "node-1.txt").exists()
    assert build.add_node(place, "late").partition == 1
    assert [(node.name, node.partition) for node in read_plan(place).nodes] == [
        ("node-0", 0),
        ("late", 1),
        ("node-2", 2),
        ("ward-b", 3),
    ]
    assert pki.same_node_key(
        (place / "nodes" / "late" / "node.key").read_bytes(), (place / "nodes" / "late" / "node.pub").read_bytes()
    )
    with pytest.raises(ConfigError, match="already"):
        build.add_node(place, "late")
    with pytest.raises(ConfigError, match="no node 'node-1'; there are node-0"):
        build.remove_node(place, "node-1")


def test_rotate_keeps_authority_and_node_keys(place: Path) -> None:
    watched = [place / "ca" / "ca.crt", place / "ca" / "ca.key", *place.glob("nodes/*/*")]
    watched = [path for path in watched if path.is_file()]
    before = {path: path.read_bytes() for path in watched}
    old = pki.first_certificate((place / "server" / "server.crt").read_bytes())
    build.rotate(place, days=30)
    new = pki.first_certificate((place / "server" / "server.crt").read_bytes())
    assert {path: path.read_bytes() for path in watched} == before
    assert new.serial_number != old.serial_number
    assert new.public_key() != old.public_key()
    assert pki.names_of(new) == pki.names_of(old)
    assert (new.not_valid_after_utc - new.not_valid_before_utc - pki.BACKDATED).days == 30
    assert pki.signed_by(new, pki.certificates((place / "nodes" / "node-0" / "ca.crt").read_bytes()))
    assert pki.belongs_to(new, (place / "server" / "server.key").read_bytes())


def test_a_new_authority_is_trusted_beside_the_old_one(place: Path) -> None:
    old = pki.first_certificate((place / "server" / "server.crt").read_bytes())
    build.rotate(place, authority=True)
    new = pki.first_certificate((place / "server" / "server.crt").read_bytes())
    for folder in ("server", "operator", "nodes/node-0", "nodes/node-1"):
        trusted = pki.certificates((place / folder / "ca.crt").read_bytes())
        assert pki.signed_by(new, trusted)
        assert pki.signed_by(old, trusted)
    build.rotate(place)
    again = pki.first_certificate((place / "server" / "server.crt").read_bytes())
    assert pki.signed_by(again, trusted[:1])


@pytest.mark.parametrize("days", [30, 5000])
def test_a_new_authority_outlasts_the_certificate_it_signs(place: Path, days: int) -> None:
    build.rotate(place, authority=True, days=days)
    server = pki.first_certificate((place / "server" / "server.crt").read_bytes())
    authority = pki.first_certificate((place / "ca" / "ca.crt").read_bytes())
    assert authority.not_valid_after_utc >= server.not_valid_after_utc
    assert (authority.not_valid_after_utc - authority.not_valid_before_utc - pki.BACKDATED).days == max(3650, days + 1)


def test_no_certificate_outlasts_the_authority_that_is_kept(place: Path) -> None:
    build.rotate(place, days=36_500)
    server, authority = (
        pki.first_certificate((place / "server" / name).read_bytes()) for name in ("server.crt", "ca.crt")
    )
    assert server.not_valid_after_utc == authority.not_valid_after_utc


def test_rotate_without_the_authoritys_key_says_what_to_do(place: Path) -> None:
    (place / "ca" / "ca.key").unlink()
    before = (place / "server" / "server.crt").read_bytes()
    with pytest.raises(ConfigError, match=r"put the authority's key back.*--ca"):
        build.rotate(place)
    assert (place / "server" / "server.crt").read_bytes() == before


@pytest.mark.parametrize("what", ["ca.key", "both"])
def test_the_key_of_an_earlier_authority_signs_nothing(place: Path, what: str) -> None:
    earlier = {name: (place / "ca" / name).read_bytes() for name in ("ca.key", "ca.crt")}
    build.rotate(place, authority=True)
    build.rotate(place, authority=True)
    for name in ("ca.key", "ca.crt") if what == "both" else ("ca.key",):
        (place / "ca" / name).write_bytes(earlier[name])
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    said = "is not among the authorities in" if what == "both" else r"ca\.key is not the key of .*ca\.crt"
    for change in (lambda: build.rotate(place), lambda: build.add_node(place), lambda: operators.add(place, "bob")):
        with pytest.raises(ConfigError, match=rf"{said}.*nothing was changed.*rotate DIR --ca"):
            change()
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("lost", ["ca", "server/server.crt"])
def test_a_new_authority_where_the_old_key_or_the_certificate_is_not_there(place: Path, lost: str) -> None:
    (place / lost).rename(place.parent / "elsewhere")
    build.rotate(place, authority=True)
    new = pki.first_certificate((place / "server" / "server.crt").read_bytes())
    for folder in ("ca", "operator"):
        assert pki.signed_by(new, pki.certificates((place / folder / "ca.crt").read_bytes()))


def test_rotate_in_a_damaged_folder_says_what_is_missing(place: Path) -> None:
    shutil.rmtree(place / "server")
    with pytest.raises(ConfigError, match=r"server.*No such folder; nothing was changed.*dqnfed deploy check"):
        build.rotate(place, authority=True)


def test_a_new_authority_is_made_for_all_folders_or_for_none(place: Path) -> None:
    shutil.rmtree(place / "nodes" / "node-1")
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"nodes/node-1: No such folder; nothing was changed.*remove-node"):
        build.rotate(place, authority=True)
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_a_renewal_that_ended_half_way_is_repeated(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = pki.first_certificate((place / "server" / "server.crt").read_bytes())

    def fail(path: Path, content: bytes) -> None:
        if path.name == "server.key":
            raise OSError(28, "No space left on device")
        files.write_private(path, content)

    monkeypatch.setattr(build, "write_private", fail)
    for _ in range(2):
        with pytest.raises(RunError, match="some files"):
            build.rotate(place, authority=True)
    monkeypatch.undo()
    build.rotate(place, authority=True)
    new = pki.first_certificate((place / "server" / "server.crt").read_bytes())
    for folder in ("server", "operator", "nodes/node-0", "nodes/node-1"):
        trusted = pki.certificates((place / folder / "ca.crt").read_bytes())
        assert pki.signed_by(new, trusted)
        assert pki.signed_by(old, trusted)  # the SuperLink uses it until it is restarted


@pytest.mark.parametrize("days", [-1, 3_000_000])
def test_rotate_refuses_days_that_no_certificate_has(place: Path, days: int) -> None:
    before = (place / "server" / "server.crt").read_bytes()
    with pytest.raises(ConfigError, match=f"--days: found {days}; allowed are 1 to 36500"):
        build.rotate(place, days=days)
    assert (place / "server" / "server.crt").read_bytes() == before


def test_a_node_cannot_be_added_without_the_authoritys_certificate(place: Path) -> None:
    (place / "server" / "ca.crt").unlink()
    with pytest.raises(ConfigError, match=r"server/ca.crt is missing; nothing.*Copy .*operator/ca.crt there"):
        build.add_node(place)
    assert sorted(path.name for path in (place / "nodes").iterdir()) == ["node-0", "node-1"]
    shutil.rmtree(place / "commands")
    with pytest.raises(ConfigError, match="commands: No such folder"):
        build.add_node(place)


def test_no_federation(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no federation.toml there; make a federation with `dqnfed deploy init"):
        build.add_node(tmp_path)

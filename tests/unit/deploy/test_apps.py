"""Which apps a node runs: what counts for a hash, what is listed, and what an installed app may not have become."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_disk

from dqnfed_flwr.config import Settings
from dqnfed_flwr.deploy import apps
from dqnfed_flwr.deploy.build import add_node, create, refresh
from dqnfed_flwr.deploy.plan import Federation, Node
from dqnfed_flwr.deploy.prefork import allowed as look
from dqnfed_flwr.deploy.prefork.allowed import NotAllowedError, app_hash, bundle_files, difference, guard, manifest_of
from dqnfed_flwr.deploy.runs import not_allowed
from dqnfed_flwr.engine.flower import write_app
from dqnfed_flwr.errors import ConfigError

NODES = (Node("node-0", 0, 9094), Node("node-1", 1, 9095))
PROJECT = b'[project]\nname = "x"\n[tool.flwr.app]\npublisher = "y"\n[tool.flwr.app.config]\nrounds = 3\n'
FILES = {"pyproject.toml": PROJECT, "code/__init__.py": b"", "code/app.py": b"SAID = 'good'\n"}


def bundle(**changes: bytes) -> bytes:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in {**FILES, **changes, ".info/CONTENT": b""}.items():
            archive.writestr(name, content)
    return packed.getvalue()


def install(files: dict[str, bytes], place: Path) -> Path:
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


def test_settings_do_not_count_and_all_else_does() -> None:
    same = app_hash(bundle_files(bundle()))
    assert app_hash(FILES) == same
    assert app_hash({**FILES, "pyproject.toml": PROJECT.replace(b"rounds = 3", b"rounds = 4\nz = 1")}) == same
    others = [
        {**FILES, "code/app.py": b"SAID = 'bad'\n"},
        {**FILES, "code/more.py": b""},
        {"pyproject.toml": PROJECT, "code/app.py": FILES["code/app.py"]},
        {**FILES, "pyproject.toml": PROJECT.replace(b'"y"', b'"z"')},
        {**FILES, "pyproject.toml": PROJECT + b'[tool.flwr.app.components]\nclientapp = "os:abort"\n'},
        {"pyproject.toml": PROJECT, "code/__init__.py": FILES["code/app.py"], "code/app.py": b""},
    ]
    assert len({same, *map(app_hash, others)}) == 1 + len(others)


def test_an_app_without_project_or_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for project in (b"", b"[", b"tool = 3"):
        with pytest.raises(NotAllowedError, match=r"pyproject\.toml"):
            app_hash({**FILES, "pyproject.toml": project})
    monkeypatch.setattr(look, "LARGEST_APP", 10)
    with pytest.raises(NotAllowedError, match="larger"):
        bundle_files(bundle())


def test_init_lists_this_packages_own_app_whatever_its_settings(tmp_path: Path) -> None:
    place = tmp_path / "fl"
    create(place, Federation("localhost", nodes=NODES))
    write_app(tmp_path / "app", Settings.from_mapping({"data": "digits", "clients": 7}))
    sent = app_hash(bundle_files(build_fab_from_disk(tmp_path / "app")))
    assert [apps.allowed(place / "nodes" / node.name) for node in NODES] == [[sent], [sent]]
    assert not_allowed(str(place)) == ""
    late = place / "nodes" / add_node(place).name
    assert apps.allowed(late) == [sent]
    (late / "apps" / sent).unlink()
    assert "node-2 may refuse this app, which is not on the lists here" in not_allowed(str(place))
    assert f"dqnfed deploy allow DIR {sent}" in not_allowed(str(place))
    refresh(place)
    assert apps.allowed(late) == [sent]
    assert not_allowed("hospital") == ""


def test_allow_takes_a_hash_a_folder_or_a_packed_app(tmp_path: Path) -> None:
    place = tmp_path / "fl"
    create(place, Federation("localhost", nodes=NODES))
    write_app(tmp_path / "app", Settings())
    (tmp_path / "app" / "client_app" / "more.py").write_text("")
    (tmp_path / "app.fab").write_bytes(build_fab_from_disk(tmp_path / "app"))
    found, nodes = apps.allow(place, str(tmp_path / "app"))
    assert [node.name for node in nodes] == ["node-0", "node-1"]
    assert found in apps.allowed(place / "nodes" / "node-1")
    assert apps.allow(place, str(tmp_path / "app.fab"))[0] == found
    assert apps.allow(place / "nodes" / "node-0", "a" * 64) == ("a" * 64, [place / "nodes" / "node-0"])
    assert "a" * 64 not in apps.allowed(place / "nodes" / "node-1")
    for wrong in ("abc", str(tmp_path / "absent"), str(place)):
        with pytest.raises(ConfigError, match=r"APP|no Flower app"):
            apps.allow(place, wrong)
    assert (place / "nodes" / "node-0" / "apps").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda place: (place / "code" / "app.py").write_text("SAID = 'bad'\n"), "code/app.py was changed"),
        (lambda place: (place / "code" / "torch.py").write_text(""), "code/torch.py was added"),
        (lambda place: (place / "code" / "x.so").write_text(""), "code/x.so was added"),
        (lambda place: (place / "code" / "app.py").unlink(), "code/app.py is missing"),
        (lambda place: (place / "lib").symlink_to("/usr/lib"), "lib was added"),
        (lambda place: (place / "code" / "__pycache__").symlink_to("/usr/lib"), "__pycache__ was added"),
        (lambda place: (place / "pyproject.toml").write_bytes(PROJECT + b"\n"), "pyproject.toml was changed"),
    ],
)
def test_what_an_installed_app_became(tmp_path: Path, change: Any, words: str) -> None:
    place = install(FILES, tmp_path / "app")
    assert difference(manifest_of(FILES), place) == ""
    change(place)
    assert words in difference(manifest_of(FILES), place)


SCRIPT = """
import importlib, sys
from pathlib import Path
from dqnfed_flwr.deploy.prefork.allowed import manifest_of, only_sources_below
place = Path(sys.argv[1])
files = {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*.py")}
if sys.argv[2] == "guarded":
    only_sources_below(place, manifest_of(files))
exec(sys.argv[3])
sys.path.insert(0, str(place))
print(importlib.import_module("code_of_mine.app").SAID)
"""


def imported(place: Path, how: str, change: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, str(place), how, change]
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)


def test_a_compiled_file_is_not_read(tmp_path: Path) -> None:
    place = install({"code_of_mine/__init__.py": b"", "code_of_mine/app.py": b"SAID = 'good'\n"}, tmp_path / "app")
    assert imported(place, "plain").stdout == "good\n"
    (compiled,) = (place / "code_of_mine" / "__pycache__").glob("app.*")
    compiled.write_bytes(compiled.read_bytes().replace(b"good", b"evil"))
    assert imported(place, "plain").stdout == "evil\n"  # so it is an attack
    assert imported(place, "guarded").stdout == "good\n"
    link = tmp_path / "link"
    link.symlink_to(place)
    assert imported(link, "guarded").stdout == "good\n"


def test_a_source_that_changes_after_the_look_is_refused(tmp_path: Path) -> None:
    place = install({"code_of_mine/__init__.py": b"", "code_of_mine/app.py": b"SAID = 'good'\n"}, tmp_path / "app")
    late = imported(place, "guarded", "(place / 'code_of_mine' / 'app.py').write_text('SAID = 1')")
    assert "was changed after its app was allowed" in late.stderr
    assert late.stdout == ""


def client(place: Path) -> Any:
    """As much of Flower's client as is guarded."""
    return SimpleNamespace(
        install_from_fab=lambda content, **_: install(bundle_files(content), place),
        get_load_client_app_fn=lambda **_: lambda *names: names,
        get_project_dir=lambda fab_id, version, fab_hash: place.parent / fab_id,
    )


def test_only_a_listed_app_is_installed_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    listed, place = tmp_path / "node" / "apps", tmp_path / "installed"
    listed.mkdir(parents=True)
    one = client(place)
    guard(listed, one)
    with pytest.raises(NotAllowedError, match=rf"dqnfed deploy allow {tmp_path / 'node'} {app_hash(FILES)}"):
        one.install_from_fab(bundle(), skip_prompt=True)
    assert not place.exists()
    (listed / app_hash(FILES)).touch()
    assert one.install_from_fab(bundle()) == place
    load = one.get_load_client_app_fn(multi_app=True)
    assert load("installed", "1", "h") == ("installed", "1", "h")
    with pytest.raises(NotAllowedError, match="not the app that came"):
        load("another", "1", "h")


def test_a_client_of_another_make_is_not_run_unguarded(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        guard(tmp_path, SimpleNamespace())
    found = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    assert {"install_from_fab", "get_load_client_app_fn", "get_project_dir"} <= set(vars(found))

"""What keeps other users of the machine and other machines out of a cluster that is made here, without Ray.

What a running cluster leaves open is tried in ``test_ray_cluster``.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from jax._src import xla_bridge

from pathways_nb.errors import PlaceError
from pathways_nb.runtime.cluster import lean_ray, open_ports, private_folder, ray_cluster, ray_link, ray_token
from pathways_nb.runtime.cluster.private_folder import NotPrivateError, SessionFolder, folder_of_user, token_of_user
from pathways_nb.runtime.hosts import intruders, meeting
from tests.support.stranger import CAN_BE_ANOTHER, NOBODY, TRY, said_by_stranger
from tests.support.waiting import until


@pytest.fixture
def place(tmp_path, monkeypatch) -> Iterator[Path]:
    """A short folder for temporary files, in which everybody may write; ``tmp_path`` lies elsewhere."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="d") as made:
        Path(made).chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


@pytest.fixture
def no_token(monkeypatch) -> None:
    """No token of Ray in the environment, and no Ray."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")  # so that it is as before after the test
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "ray", raising=False)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# ---- the folder of this user


def test_folder_and_token_are_this_users_alone(place) -> None:
    token = token_of_user(folder_of_user())
    assert (token.parent.parent, mode_of(token.parent), mode_of(token)) == (place, 0o700, 0o600)
    assert len(token.read_text()) == 64
    assert token_of_user(folder_of_user()).read_text() == token.read_text()


def test_paths_of_sockets_are_not_too_long(place, monkeypatch, tmp_path) -> None:
    assert folder_of_user().parent == place
    monkeypatch.setattr(os, "getuid", lambda: 2**32 - 2)
    monkeypatch.setattr(private_folder, "check", lambda folder: None)
    monkeypatch.setattr(Path, "mkdir", lambda self, mode: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 20)))
    assert len(f"{folder_of_user()}{private_folder._SOCKET}") <= 107


def linked(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def file_instead(folder: Path) -> None:
    folder.rmdir()
    folder.touch()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (linked, "it is a link, not a folder"),
        (file_instead, "it is no folder"),
        (lambda folder: folder.chmod(0o755), "its mode is 0755, not 0700"),
        (lambda folder: folder.parent.chmod(0o777), "others can replace it, because /tmp/.* has mode 0777"),
    ],
)
def test_a_folder_that_others_can_reach_is_refused(place, no_token, spoil, said) -> None:
    folder = folder_of_user()
    spoil(folder)
    with pytest.raises(
        PlaceError, match=rf"attach\('ray'\): {folder}: {said}.*Remove it if .* or set TMPDIR to a short"
    ):
        ray_cluster.connect(None)


def test_a_folder_of_another_user_is_refused(place, monkeypatch) -> None:
    folder, me = folder_of_user(), os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    folder.rename(folder.with_name(f"pathways_nb-{me + 1}"))
    with pytest.raises(NotPrivateError, match=f"belongs to user {me}, and this process is user {me + 1}'s"):
        folder_of_user()


def test_another_user_reads_no_token_and_replaces_no_socket(place) -> None:
    token, session = token_of_user(folder_of_user()), private_folder.new_session_folder()
    os.chmod(session.path, 0o777)  # as Ray does
    (session.path / "raylet").touch()
    session.check()
    assert mode_of(token.parent) == 0o700
    if CAN_BE_ANOTHER:
        tries = "tried(lambda: open(sys.argv[1]).read())\ntried(lambda: os.remove(sys.argv[2]))\n"
        tries += "tried(lambda: os.rename(os.path.dirname(sys.argv[1]), sys.argv[1] + '-mine'))\n"
        said = said_by_stranger(TRY + tries, str(token), str(session.path / "raylet"))
        assert said.split() == ["PermissionError"] * 3
    session.remove()
    assert not session.path.exists()


def test_what_ended_clusters_have_left_is_removed(place) -> None:
    kept, left = (private_folder.new_session_folder() for _ in range(2))
    (left.path / "logs").mkdir()
    left.held.close()  # as the system does when its process ends
    fresh: SessionFolder = private_folder.new_session_folder()
    assert {kept.path, fresh.path} == set(folder_of_user().glob("r-*"))
    for one in (kept, fresh):
        one.remove()


# ---- the token


def test_an_open_token_that_ray_made_is_not_used(place, no_token, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    theirs = tmp_path / ".ray" / "auth_token"
    theirs.parent.mkdir()
    theirs.write_text("x" * 64)
    theirs.chmod(0o644)
    ray_token.use(print)
    used = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert (used.parent.parent, mode_of(used), os.environ["RAY_AUTH_MODE"]) == (place, 0o600, "token")
    assert used.read_text() != theirs.read_text()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.chmod(0o644), "its mode is 0644, not 0600"),
        (lambda path: linked(path), "it is a link, not a file"),
    ],
)
def test_a_token_that_others_can_read_is_refused(place, no_token, monkeypatch, spoil, said) -> None:
    path = token_of_user(folder_of_user())
    spoil(path)
    for _ in range(2):  # by its name, and then named by the environment
        with pytest.raises(
            NotPrivateError, match=f"{said}. Who can read it can run code as you. Remove it, or chmod 600"
        ):
            ray_token.use(print)
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))


def test_a_token_that_is_switched_off_is_said(no_token, monkeypatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    said: list[str] = []
    ray_token.use(said.append)
    assert len(said) == 1
    assert "RAY_AUTH_MODE=disabled: every user of this machine can run code as you" in said[0]


def test_a_ray_that_does_not_read_it_again_is_said(place, no_token, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setitem(sys.modules, "ray._raylet", ModuleType("without these names"))
    said: list[str] = []
    ray_token.use(said.append)
    assert len(said) == 1
    assert "reads its token only when it is imported" in said[0]


# ---- ports


@pytest.mark.parametrize(("name", "is_ours"), [("raylet", True), ("tensorboard", False)])
def test_a_port_that_other_machines_can_reach_is_said(capsys, tmp_path, name, is_ours) -> None:
    """What is left if Ray or JAX changes the private names that keep them on loopback; of other programs, nothing."""
    (tmp_path / name).symlink_to(os.path.realpath(sys.executable))
    program = (
        "import socket, sys\nopen = [socket.create_server((host, 0)) for host in ('127.0.0.1', '0.0.0.0')]\n"
        "print(open[1].getsockname()[1], flush=True)\nsys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([tmp_path / name, "-S", "-c", program], stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        port = child.stdout.readline().strip()
        ray_cluster.tell_open_ports(ray_cluster.Connection(None, None, own=True), print)
        ray_cluster.tell_open_ports(ray_cluster.Connection(None, "10.0.0.1:6379", own=True), print)
        child.communicate()
    said = capsys.readouterr().out
    assert said.count("other machines can reach this cluster") == is_ours
    told = f": raylet (process {child.pid}) on 0.0.0.0:{port}. This version of Ray or JAX is not kept on loopback"
    assert (told in said) == is_ours
    assert "127.0.0.1" not in said
    assert open_ports.reachable(child.pid) == []


def test_ray_keeps_loopback_only_where_it_is_asked_to(monkeypatch) -> None:
    services = lean_ray.imported()._private.services
    usual = services.resolve_ip_for_localhost
    with lean_ray._on_loopback():
        assert services.resolve_ip_for_localhost("127.0.0.1") == "127.0.0.1"
    assert services.resolve_ip_for_localhost is usual
    monkeypatch.delattr(services, "resolve_ip_for_localhost")
    with lean_ray._on_loopback():  # a version without it starts as usual
        assert not hasattr(services, "resolve_ip_for_localhost")


# ---- where the processes of an island meet


def test_on_one_machine_they_meet_at_a_socket_of_this_user() -> None:
    where = meeting.new_meeting("10.0.0.1", on_one_machine=True)
    kind, path = where.split(":")
    folder = Path(path).parent
    assert (kind, mode_of(folder), len(path) <= 107) == ("unix", 0o700, True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        Path(path).chmod(0o777)
        if CAN_BE_ANOTHER:
            join = "tried(lambda: socket.socket(socket.AF_UNIX).connect(sys.argv[1]))\n"
            assert said_by_stranger(TRY + join, path).split() == ["PermissionError"]
    Path(path).unlink()
    folder.rmdir()


def test_nothing_is_left_of_a_meeting_whose_hosts_died() -> None:
    killed: list[Any] = []
    asked = SimpleNamespace(remote=lambda: SimpleNamespace(future=Future))
    actor = SimpleNamespace(process_id=asked)
    link = ray_link.RayLink(SimpleNamespace(kill=lambda actor, no_restart: killed.append(actor)), actor)
    link.meeting = meeting.new_meeting("10.0.0.1", on_one_machine=True)
    folder = Path(link.meeting.removeprefix("unix:")).parent
    assert folder.is_dir()
    for _ in range(2):  # also of one that is over
        link.kill()
    assert (folder.exists(), killed) == (False, [actor, actor])


@pytest.mark.parametrize(("address", "bound"), [("127.0.0.1", "127.0.0.1"), ("192.0.2.77", "[::]")])
def test_over_machines_they_meet_at_this_machines_address(address, bound) -> None:
    """No process listens at more addresses than the one that the others call, if the machine has that."""
    where = meeting.new_meeting(address, on_one_machine=False)
    assert where.startswith(f"{address}:")
    assert meeting._bindable(where) == where.replace(address, bound)


def test_gloo_is_kept_on_loopback() -> None:
    """The canary of JAX's private names: the function is there, and takes the name of a host."""
    usual = xla_bridge._jax.make_gloo_tcp_collectives
    assert "hostname: str" in (usual.__doc__ or "")
    with meeting._gloo_on_loopback():
        assert xla_bridge._jax.make_gloo_tcp_collectives.keywords == {"hostname": "127.0.0.1"}
    assert xla_bridge._jax.make_gloo_tcp_collectives is usual


def test_gloo_goes_where_its_host_is_if_jax_has_another_name_for_it(monkeypatch) -> None:
    monkeypatch.delattr(xla_bridge._jax, "make_gloo_tcp_collectives")
    with meeting._gloo_on_loopback():
        assert not hasattr(xla_bridge._jax, "make_gloo_tcp_collectives")


def test_another_users_connection_is_noticed(monkeypatch, watchdog) -> None:
    """As at gloo's port, which asks nobody who calls."""
    told: list[str] = []
    intruders.watch(intruders.listening(), told.append)
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    assert port in intruders.listening()
    with server, socket.create_connection(server.getsockname()), server.accept()[0]:
        assert intruders.foreign_users({port}) == set(), "a process of this user is no stranger"
        if CAN_BE_ANOTHER:
            call = (
                "with socket.socket() as mine:\n    mine.connect(('127.0.0.1', int(sys.argv[1])))\n    mine.recv(1)\n"
            )
            with ThreadPoolExecutor() as pool:
                stranger = pool.submit(said_by_stranger, call, str(port))
                with server.accept()[0]:
                    until(lambda: bool(told))
                stranger.result()
        else:
            me = os.getuid()
            monkeypatch.setattr(os, "getuid", lambda: me + 1)
            assert intruders.foreign_users({port}) == {me}
            with socket.create_connection(server.getsockname()), server.accept()[0]:
                until(lambda: bool(told))
    user = NOBODY if CAN_BE_ANOTHER else me
    assert told[0].startswith(f"a process of user {user} connected to its port {port}, at which hosts trust each other")


def test_a_look_at_ports_leaves_no_descriptor_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        counts = []
        for _ in range(3):
            assert server.getsockname()[1] in intruders.listening()
            counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert len(set(counts)) == 1


def test_a_token_that_is_not_there_is_refused_by_its_path(place, no_token, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(private_folder.NotPrivateError, match="none cannot be read: No such file.*RAY_AUTH_TOKEN_PATH"):
        ray_token.use(print)


def test_owners_of_connections_are_read_from_the_systems_table(monkeypatch, tmp_path) -> None:
    table = tmp_path / "tcp"
    rows = [
        "0: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000 {other} 0 1 1",  # to our port
        "1: 0100007F:9C41 0100007F:1F91 01 00000000:00000000 00:00000000 00000000 7777 0 1 1",  # to another port
        "2: 0100007F:9C42 0100007F:1F90 06 00000000:00000000 00:00000000 00000000 7778 0 1 1",  # ended
        "3: 0100007F:9C43 0A00000A:1F90 01 00000000:00000000 00:00000000 00000000 7779 0 1 1",  # to another machine
        "4: 0100007F:9C44 0100007F:1F90 01 00000000:00000000 00:00000000 00000000 0 0 1 1",  # root's
        "5: 0000000000000000FFFF00000100007F:9C45 0000000000000000FFFF00000100007F:1F90 01 0:0 00:0 0 {six} 0 1 1",
    ]
    table.write_text("\n".join(["  sl  local_address …", *rows]).format(other=NOBODY, six=NOBODY - 1))
    monkeypatch.setattr(intruders, "_TABLES", (table, tmp_path / "missing"))
    assert intruders.foreign_users({8080}) == {NOBODY, NOBODY - 1}

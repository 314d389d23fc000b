"""The daemon's socket: made with its folder, with the right mode, replaced when stale, never stolen."""

import os
import socket
import stat
import subprocess
import sys

import pytest

from advisor.server.listener import ListenError, listen
from advisor.server.peers import allowed, peer_of


def test_the_folder_is_made_and_only_owner_and_group_may_connect(tmp_path):
    path = tmp_path / "run" / "advisor" / "advisor.sock"
    listener = listen(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    listener.close()
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give the socket to any group")
def test_the_socket_belongs_to_the_group_of_the_settings_also_by_number(tmp_path):
    path = tmp_path / "advisor.sock"
    listener = listen(path, "64030")
    assert path.stat().st_gid == 64030
    listener.close()


def test_a_group_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ListenError, match="no group 'no-such-group'"):
        listen(tmp_path / "advisor.sock", "no-such-group")


def test_a_second_daemon_is_refused_and_the_first_goes_on(tmp_path):
    path = tmp_path / "advisor.sock"
    first = listen(path)
    with pytest.raises(ListenError, match="already serves here"):
        listen(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    first.close()


def test_a_daemon_whose_lock_file_was_removed_is_still_not_robbed(tmp_path):
    path = tmp_path / "advisor.sock"
    first = listen(path)
    (tmp_path / "advisor.sock.lock").unlink()
    with pytest.raises(ListenError, match=rf"pid {os.getpid()}\) already serves"):
        listen(path)
    first.close()


def test_the_socket_of_a_killed_daemon_is_replaced(tmp_path):
    path = tmp_path / "advisor.sock"
    program = (
        "import os, sys, pathlib; from advisor.server.listener import listen; "
        "kept = listen(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert path.exists()
    listener = listen(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.close()


def test_a_file_that_is_not_a_socket_is_left_alone(tmp_path):
    path = tmp_path / "advisor.sock"
    path.write_text("precious")
    with pytest.raises(ListenError, match="not a socket"):
        listen(path)
    assert path.read_text() == "precious"


def test_a_path_too_long_for_a_socket_says_so(tmp_path):
    with pytest.raises(ListenError, match=r"too long .* shorten paths\.socket"):
        listen(tmp_path / ("x" * 120))


def test_stopping_does_not_remove_the_socket_of_a_successor(tmp_path):
    path = tmp_path / "advisor.sock"
    first = listen(path)
    path.rename(tmp_path / "moved")
    path.write_text("the successor's")
    first.close()
    assert path.read_text() == "the successor's"


def test_the_kernel_says_who_is_at_the_other_end():
    left, right = socket.socketpair()
    with left, right:
        assert peer_of(left).pid == os.getpid()
        assert peer_of(left).uid == os.getuid()


def test_users_are_given_by_name_or_number_and_unknown_names_are_told():
    who = allowed(["root", "64030", "nobody-of-this-name"])
    assert {0, 64030, os.geteuid()} <= who.uids
    assert who.unknown == ("nobody-of-this-name",)

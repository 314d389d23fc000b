"""The status page and Prometheus' figures, asked for over HTTP as a browser and a scraper would."""

from __future__ import annotations

import http.client
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

from tests.server.daemons import Daemon, submission, wait_until

SAMPLE = re.compile(r'slurm_advisor_[a-z_]+(\{[a-z]+="(\\.|[^"\\\n])*"(,[a-z]+="(\\.|[^"\\\n])*")*\})? [-+0-9.e]+')


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    daemon = Daemon(tmp_path_factory.mktemp("web"), server={"http": "127.0.0.1:0"}, modes={"users": {"zoe": "shadow"}})
    try:
        daemon.start()
        with daemon.hook() as hook:
            for name in ("train", 'a "quoted" \\ <b>name</b>'):
                assert hook.ask(submission(name=name)).token
        wait_until(lambda: daemon.query("select count(*) from decisions") == [(2,)])
        yield daemon
    finally:
        daemon.close()


def get(daemon, path, host=None, method="GET"):
    """Code, headers and text."""
    listening = wait_until(lambda: daemon.status().web.listening)
    connection = http.client.HTTPConnection(listening, timeout=20)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_a_scraper_gets_every_figure_in_prometheus_format(daemon):
    code, headers, text = get(daemon, "/metrics")
    assert code == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in lines), [line for line in lines if not SAMPLE.fullmatch(line)]
    figures = dict(line.rpartition(" ")[::2] for line in lines)
    assert len(figures) == len(lines), "no sample twice"
    assert figures["slurm_advisor_up"] == "1" and figures["slurm_advisor_submissions_total"] == "2"
    assert figures['slurm_advisor_decisions_total{outcome="rewritten"}'] == "2"
    assert figures["slurm_advisor_problems"] == "0"
    assert float(figures['slurm_advisor_answer_seconds{quantile="0.99"}']) < 10
    named = set(re.findall(r"^# TYPE (\S+) (?:counter|gauge)$", text, re.M))
    assert {line.partition("{")[0].partition(" ")[0] for line in lines} == named


def test_the_page_shows_health_modes_and_the_last_decisions(daemon):
    code, headers, text = get(daemon, "/")
    assert code == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert "All is well; mode enforce" in text and "user zoe" in text and "shadow" in text
    assert "alice" in text and "new/a100" in text and "sent there" in text
    assert "<b>name</b>" not in text and "&lt;b&gt;name&lt;/b&gt;" in text
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "<script" not in text and "http://" not in text and "src=" not in text
    wait_until(lambda: "Not enough evidence" in get(daemon, "/")[2])


def test_health_says_what_is_wrong_once_something_is(daemon):
    assert get(daemon, "/health")[::2] == (200, "well\n")
    daemon.recording.rename(daemon.recording.with_suffix(".away"))
    try:
        wait_until(lambda: get(daemon, "/health")[0] == 503)
        assert "poll of Slurm failed" in get(daemon, "/health")[2]
        assert 'class="say bad"' in get(daemon, "/")[2]
    finally:
        daemon.recording.with_suffix(".away").rename(daemon.recording)
    wait_until(lambda: get(daemon, "/health")[0] == 200)


@pytest.mark.parametrize(("host", "code"), [("localhost:80", 200), ("[::1]:80", 200), ("evil.example", 421), ("", 421)])
def test_a_name_that_is_not_this_hosts_is_refused(daemon, host, code):
    assert get(daemon, "/metrics", host)[0] == code


def test_other_paths_and_methods_are_not_there(daemon):
    assert get(daemon, "/../etc/passwd")[0] == 404
    assert get(daemon, "/", method="POST")[0] == 501
    code, headers, text = get(daemon, "/", method="HEAD")
    assert code == 200 and int(headers["Content-Length"]) > 1000 and text == ""


def test_a_killed_page_comes_back_and_the_daemon_answers_meanwhile(daemon):
    children = subprocess.run(
        ["ps", "--ppid", str(daemon.process.pid), "-o", "pid=,args="], capture_output=True, text=True, check=True
    )
    (pid,) = [int(line.split()[0]) for line in children.stdout.splitlines() if "advisor.server.web" in line]
    subprocess.run(["kill", "-9", str(pid)], check=True)
    with daemon.hook() as hook:
        assert hook.ask().token
    wait_until(lambda: "the status page is not there" in daemon.said())
    wait_until(lambda: daemon.status().web.listening and not daemon.status().problems(), 30)
    assert get(daemon, "/health")[0] == 200


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here: install the Debian package chromium")
def test_a_browser_shows_it(daemon, tmp_path):
    listening = wait_until(lambda: daemon.status().web.listening)
    shot = tmp_path / "page.png"
    done = subprocess.run(
        [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1000,1000", f"--screenshot={shot}", f"http://{listening}/",
        ],
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and shot.read_bytes().startswith(b"\x89PNG") and shot.stat().st_size > 20_000


def test_it_is_off_unless_asked_for_follows_a_reload_and_tells_of_a_taken_port(tmp_path):
    daemon = Daemon(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        try:
            daemon.start()
            assert daemon.status().web.listening == "" and "advisor.server.web" not in daemon.said()
            daemon.configure(server={"http": f"127.0.0.1:{port}"})
            daemon.signal(signal.SIGHUP)
            wait_until(lambda: any("server.http" in problem for problem in daemon.status().problems()))
            taken.close()
            wait_until(lambda: daemon.status().web.listening == f"127.0.0.1:{port}", 30)
            assert get(daemon, "/health")[0] == 200
            assert daemon.stop() == 0
            time.sleep(0.1)
            with pytest.raises(ConnectionRefusedError):
                http.client.HTTPConnection("127.0.0.1", port, timeout=5).request("GET", "/")
        finally:
            daemon.close()

import datetime
import re
import subprocess
import sys

from flashcore_numba.checks.forward import FORWARD
from flashcore_numba.measure import peers
from flashcore_numba.records import environment


def test_the_commit_can_be_given(monkeypatch):
    monkeypatch.setenv("FLASHCORE_COMMIT", "abc123")
    assert environment.commit() == ("abc123", False)
    monkeypatch.setenv("FLASHCORE_COMMIT", "abc123+dirty")
    assert environment.commit() == ("abc123", True)


def test_the_commit_comes_from_git(monkeypatch, request):
    monkeypatch.delenv("FLASHCORE_COMMIT", raising=False)
    commit, dirty = environment.commit()
    root = request.config.rootpath
    if (root / ".git").exists():
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True)
        assert commit == done.stdout.strip()
        assert isinstance(dirty, bool)
    else:
        assert (commit, dirty) == ("unknown", None)


def test_no_git_program_means_unknown(monkeypatch):
    monkeypatch.delenv("FLASHCORE_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "")
    assert environment.commit() == ("unknown", None)


def test_packages_and_date():
    found = environment.packages()
    assert re.fullmatch(r"3\.\d+\.\d+.*", found["python"])
    assert {"numba", "numba-cuda", "numpy"} <= set(found)
    then = datetime.datetime.strptime(environment.today(), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)
    assert abs((datetime.datetime.now(datetime.UTC) - then).total_seconds()) < 60


def test_without_pytorch_every_peer_is_listed_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found, absent = peers.prepare(FORWARD, None, {}, None)
    assert found == []
    assert list(absent) == [
        label for label in peers.PEERS if label != peers.TWO_LAUNCHES
    ]  # for a gate or norm
    assert all("PyTorch is not installed" in reason for reason in absent.values())

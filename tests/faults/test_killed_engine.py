"""kill -9 at random moments: no acknowledged event is lost, none is applied twice, no bit differs."""

from killing import kill_often


def test_fifty_kills_lose_nothing_and_repeat_nothing(tmp_path):
    kill_often(tmp_path / "live.db", times=50)

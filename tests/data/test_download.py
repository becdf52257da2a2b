"""Downloads against a server on this machine that breaks off, lies, and cannot resume."""

import hashlib
import http.server
import threading
from dataclasses import dataclass, field

import pytest

from onlinecde.data import DataError
from onlinecde.data.download import fetch

CONTENT = bytes(range(256)) * 4000
SUM = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Behaviour:
    """What the server does, and what it was asked."""

    ranges: bool = True
    etag: str | None = '"v1"'
    break_after: list[int] = field(default_factory=list)
    """Bytes to send before hanging up, one for each answer; then all."""
    content: bytes = CONTENT
    status: int = 200
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def server():
    behaviour = Behaviour()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = self.headers.get("Range")
            behaviour.asked.append(wanted)
            if behaviour.status != 200:
                self.send_error(behaviour.status)
                return
            content, start = behaviour.content, 0
            mark = self.headers.get("If-Range")
            if wanted and behaviour.ranges and mark in (None, behaviour.etag):
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header(
                    "Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}"
                )
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(content) - start))
            if behaviour.etag:
                self.send_header("ETag", behaviour.etag)
            self.end_headers()
            body = content[start:]
            if behaviour.break_after:
                body = body[: behaviour.break_after.pop(0)]
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    instance = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=instance.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{instance.server_port}/file.bin", behaviour
    instance.shutdown()
    instance.server_close()
    thread.join()


def test_a_file_comes_whole_with_progress_and_its_sum_is_recorded(server, tmp_path):
    url, _ = server
    seen = []
    path = fetch(
        url, tmp_path / "d" / "f.bin", progress=lambda size, total: seen.append((size, total))
    )
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert sorted(p.name for p in path.parent.iterdir()) == ["f.bin", "f.bin.sha256"]
    assert (tmp_path / "d" / "f.bin.sha256").read_text() == f"{SUM}  f.bin\n"


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(server, tmp_path):
    url, behaviour = server
    behaviour.break_after = [300_000, 200_000]
    assert fetch(url, tmp_path / "f.bin", sha256=SUM).read_bytes() == CONTENT
    assert behaviour.asked == [None, "bytes=300000-", "bytes=500000-"]


def test_a_transfer_that_keeps_breaking_is_kept_for_the_next_call(server, tmp_path):
    url, behaviour = server
    behaviour.break_after = [100_000, 100_000]
    with pytest.raises(DataError, match=r"broke off 2 times.*200000 bytes are kept.*run the same"):
        fetch(url, tmp_path / "f.bin", attempts=2)
    assert not (tmp_path / "f.bin").exists()
    assert fetch(url, tmp_path / "f.bin").read_bytes() == CONTENT
    assert behaviour.asked[-1] == "bytes=200000-"


def test_a_server_without_ranges_sends_all_again(server, tmp_path):
    url, behaviour = server
    behaviour.ranges, behaviour.break_after = False, [100_000]
    assert fetch(url, tmp_path / "f.bin", sha256=SUM).read_bytes() == CONTENT
    assert len(behaviour.asked) == 2


def test_without_a_mark_or_a_sum_nothing_is_patched_together(server, tmp_path):
    url, behaviour = server
    behaviour.etag, behaviour.break_after = None, [100_000]
    assert fetch(url, tmp_path / "f.bin").read_bytes() == CONTENT
    assert behaviour.asked == [None, None]


def test_a_file_that_changed_in_between_is_fetched_anew(server, tmp_path):
    url, behaviour = server
    behaviour.break_after = [100_000]
    with pytest.raises(DataError, match="broke off"):
        fetch(url, tmp_path / "f.bin", attempts=1)
    behaviour.etag, behaviour.content = '"v2"', CONTENT[::-1]
    assert fetch(url, tmp_path / "f.bin").read_bytes() == CONTENT[::-1]


def test_a_part_that_is_whole_already_is_only_renamed(server, tmp_path):
    url, _ = server
    (tmp_path / "f.bin.part").write_bytes(CONTENT)
    assert fetch(url, tmp_path / "f.bin", sha256=SUM).read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_thrown_away(server, tmp_path):
    url, _ = server
    (tmp_path / "f.bin.part").write_bytes(CONTENT + b"x")
    assert fetch(url, tmp_path / "f.bin", sha256=SUM).read_bytes() == CONTENT


def test_a_wrong_sum_is_refused_and_deleted(server, tmp_path):
    url, _ = server
    with pytest.raises(DataError, match=rf"SHA-256 of the download is {SUM}, expected was 0000"):
        fetch(url, tmp_path / "f.bin", sha256="0" * 64)
    assert not (tmp_path / "f.bin").exists()
    assert not (tmp_path / "f.bin.part").exists()


def test_a_file_that_is_there_is_checked_and_not_fetched_again(server, tmp_path):
    url, behaviour = server
    fetch(url, tmp_path / "f.bin")
    fetch(url, tmp_path / "f.bin")
    assert len(behaviour.asked) == 1
    (tmp_path / "f.bin").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"has not the SHA-256.*Delete it"):
        fetch(url, tmp_path / "f.bin")


def test_a_missing_page_says_to_download_by_hand(server, tmp_path):
    url, behaviour = server
    behaviour.status = 404
    with pytest.raises(DataError, match=r"answers 404 .*Download the file by hand into"):
        fetch(url, tmp_path / "f.bin")
    assert len(behaviour.asked) == 1


def test_a_server_that_fails_is_asked_again(server, tmp_path):
    url, behaviour = server
    behaviour.status = 503
    with pytest.raises(DataError, match=r"broke off 3 times: HTTP Error 503"):
        fetch(url, tmp_path / "f.bin", attempts=3)
    assert len(behaviour.asked) == 3


def test_no_server_at_all_is_a_clear_error(tmp_path):
    with pytest.raises(DataError, match=r"broke off 1 times.*refused"):
        fetch("http://127.0.0.1:9/x", tmp_path / "f.bin", attempts=1)

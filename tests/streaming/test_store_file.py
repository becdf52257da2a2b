"""The file of a SQLite store: whose it is, who may read it, whether it can be written."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap

import pytest

from onlinecde.streaming import SQLiteStore, StoreBusy, StoreError, StoreFull
from onlinecde.streaming.stores.sqlite import ROOM

PARTS = ("live.db", "live.db-wal", "live.db-shm")


def modes(folder):
    return {name: stat.S_IMODE((folder / name).stat().st_mode) for name in PARTS}


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_store_is_for_its_owner_alone(tmp_path, open_umask):
    store = SQLiteStore(tmp_path / "live.db")
    store.adopt("a model")
    assert modes(tmp_path) == dict.fromkeys(PARTS, 0o600)
    store.close()


def test_an_older_store_that_others_could_read_is_closed_to_them(tmp_path, open_umask, logged):
    before = sqlite3.connect(tmp_path / "live.db", isolation_level=None)
    before.execute("PRAGMA journal_mode = WAL")
    before.execute("PRAGMA user_version = 7")  # leaves a WAL behind while it is open
    assert set(modes(tmp_path).values()) == {0o644}
    store = SQLiteStore(tmp_path / "live.db")
    assert modes(tmp_path) == dict.fromkeys(PARTS, 0o600)
    told = [record.told["mode_before"] for record in logged]
    assert told == ["0644"] * 3
    store.close()
    before.close()


def in_another_process(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


OPEN = """
import sys
from onlinecde.streaming import SQLiteStore, StoreBusy
for name in sys.argv[1:]:
    try:
        SQLiteStore(name)
    except StoreBusy as error:
        print("refused", flush=True)
    else:
        print("opened", flush=True)
sys.stdin.read()
"""


def test_a_second_engine_is_refused_by_whatever_name_it_comes(tmp_path):
    store = SQLiteStore(tmp_path / "live.db")
    store.adopt("a model")
    names = [tmp_path / one for one in ("live.db", "symbolic.db", "hard.db", "folder/live.db")]
    names[1].symlink_to(tmp_path / "live.db")
    names[2].hardlink_to(tmp_path / "live.db")
    (tmp_path / "folder").symlink_to(tmp_path)
    (tmp_path / "live.db.lock").unlink(missing_ok=True)
    for name in names:
        with pytest.raises(StoreBusy, match="in use by another engine"):
            SQLiteStore(name)
    # After refusals in its own process it is still locked for others.
    done = in_another_process(OPEN, *names)
    assert done.stdout.split() == ["refused"] * len(names), done
    store.close()
    for name in names:
        SQLiteStore(name).close()


def test_a_refused_second_opening_takes_no_lock_of_sqlite_away(tmp_path):
    store = SQLiteStore(tmp_path / "live.db")
    store.adopt("a model")
    (tmp_path / "link.db").symlink_to(tmp_path / "live.db")
    with pytest.raises(StoreBusy):
        SQLiteStore(tmp_path / "link.db")
    # Another process that believes itself the last to close a database deletes its WAL.
    look = """
        import sqlite3, sys
        db = sqlite3.connect(sys.argv[1])
        print(db.execute("SELECT model FROM meta").fetchone())
        db.close()
    """
    done = in_another_process(look, tmp_path / "live.db")
    assert done.stdout == "('a model',)\n", done
    assert (tmp_path / "live.db-wal").exists()
    store.close()


def test_a_killed_owner_leaves_no_lock_behind(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", OPEN, str(tmp_path / "live.db")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as owner:  # fmt: skip
        assert owner.stdout.readline() == "opened\n"
        with pytest.raises(StoreBusy):
            SQLiteStore(tmp_path / "live.db")
        owner.send_signal(signal.SIGKILL)
        assert owner.wait(10) == -signal.SIGKILL
    SQLiteStore(tmp_path / "live.db").close()


def test_a_store_that_is_closed_can_be_opened_again_and_one_that_fails_to_open_too(tmp_path):
    (tmp_path / "text.db").write_text("no database, but a text long enough to look into\n" * 50)
    for _ in range(2):
        with pytest.raises(StoreError, match="no SQLite database"):
            SQLiteStore(tmp_path / "text.db")
    for _ in range(2):
        store = SQLiteStore(tmp_path / "live.db")
        store.close()
        store.close()


def test_a_look_whether_it_can_be_written_writes(tmp_path):
    store = SQLiteStore(tmp_path / "live.db")
    before = store.head(), (tmp_path / "live.db-wal").stat().st_size
    store.check_writable()
    assert store.head() == before[0]
    assert (tmp_path / "live.db-wal").stat().st_size > before[1], "nothing was written"
    store.close()


def test_a_store_whose_file_is_gone_or_another_says_so(tmp_path):
    store = SQLiteStore(tmp_path / "live.db")
    (tmp_path / "live.db").rename(tmp_path / "moved.db")
    with pytest.raises(StoreError, match="moved"):
        store.check_writable()
    (tmp_path / "live.db").write_bytes((tmp_path / "moved.db").read_bytes())
    with pytest.raises(StoreError, match="replaced"):
        store.check_writable()
    (tmp_path / "moved.db").replace(tmp_path / "live.db")
    store.check_writable()
    store.close()


def test_a_full_disk_is_told_before_the_next_commit(small_disk):
    store = SQLiteStore(small_disk / "live.db")
    store.check_writable()
    with (small_disk / "other").open("wb") as other:
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        other.write(b"\0" * (free - ROOM + 65_536))
    with pytest.raises(StoreFull, match="make room"):
        store.check_writable()
    (small_disk / "other").unlink()
    store.check_writable()
    store.close()


def test_a_file_that_may_not_grow_cannot_be_written(tmp_path):
    store = SQLiteStore(tmp_path / "live.db")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "live.db-wal").stat().st_size
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(StoreError, match="disk"):
            store.check_writable()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    store.check_writable()
    store.close()

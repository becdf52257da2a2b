"""A private PostgreSQL for tests: on loopback, in a folder of its own, run by no one important, always stopped."""

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

_COUNT = itertools.count()
_GUARD = """
cat > /dev/null
pid=$(head -n 1 "$0/data/postmaster.pid") && grep -q "$0" "/proc/$pid/cmdline" && kill -QUIT "$pid" && sleep 1
rm -rf "$0"
"""
"""Ends the server when the process that started it is gone, however it went"""


def binaries():
    """The folder of initdb and postgres, or None."""
    known = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda one: int(one.parent.name))
    found = shutil.which("initdb")
    known += [Path(found).resolve().parent] if found else []
    whole = [one for one in known if (one / "initdb").exists() and (one / "postgres").exists()]
    return whole[-1] if whole else None


def missing():
    """Why there can be no PostgreSQL here, or None."""
    try:
        import psycopg  # noqa: F401
        import psycopg_pool  # noqa: F401
    except ImportError as error:
        return f'{error}: pip install "onlinecde[postgres]"'
    if binaries() is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    if os.geteuid() == 0 and _someone() is None:
        return "PostgreSQL does not run as root, and there is no user postgres or nobody"
    return None


def _someone():
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


class PostgresServer:
    """PostgreSQL in a temporary folder. durable: whether it syncs its disk, as a crash test needs it to.

    `url()` names a fresh schema, so that tests may share one server.
    """

    def __init__(self, *, durable, options=()):
        self.bin, self.process = binaries(), None
        self.folder = Path(tempfile.mkdtemp(prefix="onlinecde-pg-"))
        self.data, self.log = self.folder / "data", self.folder / "log"
        self.guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, self.folder],
            stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.who = {}
        if os.geteuid() == 0:
            someone = _someone()
            self.who = {"user": someone.pw_uid, "group": someone.pw_gid, "extra_groups": []}
            os.chown(self.folder, someone.pw_uid, someone.pw_gid)
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        sync = "on" if durable else "off"
        self.options = [
            f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}",
            f"fsync={sync}", "recovery_init_sync_method=syncfs",
            "max_connections=40", "shared_buffers=64MB", "autovacuum=off", *options,
        ]  # fmt: skip
        try:
            subprocess.run(
                [self.bin / "initdb", "-D", self.data, "-U", "onlinecde", "-A", "trust", "-N",
                 "-E", "UTF8", "--no-locale"],
                check=True, capture_output=True, cwd=self.folder, timeout=60, **self.who,
            )  # fmt: skip
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self):
        """Start it, and wait until it answers; after a kill, until the dead one's children are gone."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if self.process is None or self.process.poll() is not None:
                settings = [word for one in self.options for word in ("-c", one)]
                with self.log.open("ab") as log:
                    self.process = subprocess.Popen(
                        [self.bin / "postgres", "-D", self.data, *settings],
                        stdout=log, stderr=log, cwd=self.folder, **self.who,
                    )  # fmt: skip
            with contextlib.suppress(Exception), self.connect():
                return
            time.sleep(0.02)
        raise AssertionError(self.log.read_text()[-2000:])

    def connect(self):
        """A connection of the test's own, in autocommit."""
        import psycopg

        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="onlinecde", dbname="postgres",
            autocommit=True, connect_timeout=5,
        )  # fmt: skip

    def ask(self, sql):
        """The rows of one question."""
        with self.connect() as own:
            found = own.execute(sql)
            return found.fetchall() if found.description else []

    def url(self, schema=None):
        """Where a store may be made: a schema no one has, unless it is given."""
        schema = schema or f"s{os.getpid()}_{next(_COUNT)}"
        return f"postgresql://onlinecde@127.0.0.1:{self.port}/postgres?schema={schema}"

    def children(self):
        """Process ids of the server's children, its backends among them."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(stat.read_text().rpartition(")")[2].split()[1]) == self.process.pid:
                    found.append(int(stat.parent.name))
        return found

    def kill(self):
        """kill -9: the server and all its children."""
        own = [*self.children(), self.process.pid]
        for pid in own:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self.process.wait(10) == -signal.SIGKILL

    def wait_for(self, where, seconds=10.0):
        """The process id of a backend of a store that is found to wait for something, as pg_stat_activity tells."""
        until = time.monotonic() + seconds
        with self.connect() as own:
            while time.monotonic() < until:
                found = own.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name = 'onlinecde' AND "
                    + where
                ).fetchall()
                if found:
                    return found[0][0]
                time.sleep(0.01)
        raise AssertionError(f"no backend was seen with {where}")

    def stop(self):
        """End it and leave nothing behind."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)  # at once: nothing is to be kept
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.guard.stdin.close()
        self.guard.wait(10)


@contextlib.contextmanager
def postgres(*, durable, options=()):
    """A server for as long as this lasts."""
    server = PostgresServer(durable=durable, options=options)
    try:
        yield server
    finally:
        server.stop()

#!/usr/bin/env python3
"""Compares `untorn ship` with Litestream on one load: rows of 1 KB into SQLite, each in its own transaction, at a steady rate.

    scripts/setup.sh ship && make build && scripts/ship-peer.py [SECONDS] [ROWS_PER_SECOND]

Both ship to versitygw, whose log of accesses counts requests. The table has the time of a commit, requests and bytes that
were sent for each commit, what is stored at the end, the last row in a restore after the shipper was killed (rows that are
missing were acknowledged), and the time of the restore.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "target" / "release"
SERVERS = Path(os.environ.get("UNTORN_SHIP_SERVERS", ROOT / "target" / "ship-servers"))
SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 60
RATE = float(sys.argv[2]) if len(sys.argv) > 2 else 100
LITESTREAM = os.environ.get("LITESTREAM", str(SERVERS / "litestream"))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """versitygw with an empty bucket."""

    def __init__(self, work: Path) -> None:
        self.objects, self.log = work / "objects", work / "access.log"
        (self.objects / "peer").mkdir(parents=True)
        port = free_port()
        key, secret = "untorn" + secrets.token_hex(6), secrets.token_hex(20)
        self.endpoint = f"http://127.0.0.1:{port}"
        self.environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }
        # Litestream refuses to start with it.
        self.environment.pop("AWS_CA_BUNDLE", None)
        self.process = subprocess.Popen(
            [SERVERS / "versitygw", "--port", f"127.0.0.1:{port}", "--access-log", self.log, "posix", self.objects],
            env={**os.environ, "ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except OSError:
                time.sleep(0.1)
        sys.exit("ship-peer: versitygw does not answer")

    def counts(self) -> dict[str, int]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        puts = sum("PUT.OBJECT" in line or "PutObject" in line for line in lines)
        return {"requests": len(lines), "puts": puts}

    def stored(self) -> tuple[int, int]:
        files = [path for path in (self.objects / "peer").rglob("*") if path.is_file()]
        return len(files), sum(path.stat().st_size for path in files)


class Untorn:
    name = "untorn ship"

    def connect(self, path: Path) -> sqlite3.Connection:
        loader = sqlite3.connect(":memory:")
        loader.enable_load_extension(True)
        loader.load_extension(str(BUILD / "install" / "libuntorn_sqlite"))
        return sqlite3.connect(f"file:{path}?vfs=untorn", uri=True, isolation_level=None)

    def ship(self, path: Path) -> list[str]:
        return [str(BUILD / "untorn-ship"), "ship", str(path), "s3://peer/untorn"]

    def restore(self, to: Path, server: Server) -> Path:
        run([BUILD / "untorn-ship", "restore", "s3://peer/untorn", to, "--plain"], server)
        return to / "rows.db"


class Litestream:
    name = "Litestream"

    def __init__(self, server: Server) -> None:
        self.url = f"s3://peer/litestream?endpoint={server.endpoint}&forcePathStyle=true&region=us-east-1"

    def connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None)
        # As its documentation recommends, but each commit is durable, as Untorn's are.
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=full")
        connection.execute("pragma busy_timeout=5000")
        return connection

    def ship(self, path: Path) -> list[str]:
        return [LITESTREAM, "replicate", str(path), self.url]

    def restore(self, to: Path, server: Server) -> Path:
        to.mkdir()
        run([LITESTREAM, "restore", "-o", to / "rows.db", self.url], server)
        return to / "rows.db"


def run(command: list, server: Server) -> None:
    done = subprocess.run(command, env=server.environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"ship-peer: {command}: {done.stdout}{done.stderr}")


def measure(contender: Untorn | Litestream, server: Server, work: Path) -> dict[str, str]:
    path = work / "data" / "rows.db"
    path.parent.mkdir(parents=True)
    connection = contender.connect(path)
    connection.execute("create table rows (number integer primary key, text blob)")
    shipper = subprocess.Popen(
        contender.ship(path), env=server.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(3)
    before, times, start, number = server.counts(), [], time.monotonic(), 0
    while time.monotonic() - start < SECONDS:
        text = secrets.token_bytes(500).hex()
        begun = time.monotonic()
        number += 1
        connection.execute("insert into rows values (?, ?)", (number, text))
        times.append(time.monotonic() - begun)
        time.sleep(max(0, start + number / RATE - time.monotonic()))
    shipper.send_signal(signal.SIGKILL)
    shipper.wait()
    sent = server.counts()
    objects, stored = server.stored()
    begun = time.monotonic()
    restored = contender.restore(work / "restored", server)
    took = time.monotonic() - begun
    last = sqlite3.connect(restored).execute("select max(number) from rows").fetchone()[0]
    connection.close()
    quantiles = statistics.quantiles(times, n=100)
    return {
        "commit, median": f"{statistics.median(times) * 1e6:.0f} us",
        "commit, 99 %": f"{quantiles[98] * 1e6:.0f} us",
        "requests per hour": f"{(sent['requests'] - before['requests']) * 3600 / SECONDS:.0f}",
        "of them PUT": f"{(sent['puts'] - before['puts']) * 3600 / SECONDS:.0f}",
        "objects at the end": f"{objects}",
        "bytes stored per row": f"{stored / number:.0f}",
        "rows lost with the machine": f"{number - last} of {number}",
        "restore": f"{took:.2f} s",
    }


def main() -> None:
    # Many builds of Python load no extensions of SQLite; Debian's does.
    if not hasattr(sqlite3.Connection, "enable_load_extension"):
        if sys.executable == "/usr/bin/python3":
            sys.exit("ship-peer: this Python loads no extensions of SQLite")
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    results = {}
    for kind in ("untorn", "litestream"):
        with tempfile.TemporaryDirectory() as work:
            server = Server(Path(work))
            try:
                contender = Untorn() if kind == "untorn" else Litestream(server)
                results[contender.name] = measure(contender, server, Path(work))
            finally:
                server.process.kill()
                server.process.wait()
    names = list(results)
    print(f"{SECONDS:.0f} s, {RATE:.0f} rows of 1 KB a second")
    print(f"{'':28}" + "".join(f"{name:>18}" for name in names))
    for row in results[names[0]]:
        print(f"{row:28}" + "".join(f"{results[name][row]:>18}" for name in names))


main()

"""`untorn.sqlite`: transactions of SQLite are commits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import untorn
import untorn.sqlite

needs_extension = pytest.mark.skipif(
    "UNTORN_SQLITE" not in os.environ, reason="skipped: UNTORN_SQLITE does not name libuntorn_sqlite.so"
)


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)


def test_a_missing_extension_is_named() -> None:
    program = "import untorn.sqlite\nuntorn.sqlite.connect('a.db')"
    said = run(program, UNTORN_SQLITE="/none/libuntorn_sqlite.so").stderr
    assert "cannot load /none/libuntorn_sqlite.so into SQLite" in said, said
    Path("other.so").write_bytes(b"not a library")
    with pytest.raises(untorn.Error, match="cannot load"):
        untorn.sqlite._load(os.path.abspath("other.so"))


@needs_extension
def test_transactions_survive_a_kill() -> None:
    program = """
import os, signal, untorn.sqlite
db = untorn.sqlite.connect("a b.db")
with db:
    db.execute("CREATE TABLE t(a)")
    db.execute("INSERT INTO t VALUES (1)")
db.execute("INSERT INTO t VALUES (2)")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run(program)
    assert done.returncode == -signal.SIGKILL, done.stderr
    done = run("import untorn.sqlite\nprint(untorn.sqlite.connect('a b.db').execute('SELECT a FROM t').fetchall())")
    assert done.stdout == "[(1,)]\n", done.stderr
    assert os.path.isdir("a b.db.untorn")


@needs_extension
def test_databases_of_one_store_are_one_commit() -> None:
    program = """
import os, untorn.sqlite
os.mkdir("store")
db = untorn.sqlite.connect("store/a.db", store="store", isolation_level=None)
db.execute("ATTACH 'file:store/b.db?vfs=untorn&store=store' AS b")
db.execute("CREATE TABLE t(a)")
db.execute("CREATE TABLE b.u(a)")
db.execute("BEGIN")
db.execute("INSERT INTO t VALUES (1)")
db.execute("INSERT INTO b.u VALUES (1)")
db.execute("COMMIT")
print(db.execute("SELECT t.a + u.a FROM t, b.u").fetchall())
"""
    done = run(program)
    assert done.stdout == "[(2,)]\n", done.stderr

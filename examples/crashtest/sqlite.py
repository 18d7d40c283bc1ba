"""SQLite: one transaction updates twenty rows on as many pages. `DIR JOURNAL_MODE SYNCHRONOUS`"""
import sqlite3, sys
from common import KEYS, acknowledge, oracle, main, rounds


def open_(dir, mode, synchronous):
    db = sqlite3.connect(dir + "/db", isolation_level=None)
    db.execute(f"PRAGMA journal_mode={mode}")
    db.execute(f"PRAGMA synchronous={synchronous}")
    return db


def setup(dir, mode, synchronous):
    db = open_(dir, mode, "full")
    db.execute("CREATE TABLE t (key INTEGER PRIMARY KEY, n INTEGER, filling TEXT)")
    db.executemany("INSERT INTO t VALUES (?, 0, ?)", [(key, "x" * 3000) for key in range(KEYS)])
    db.close()


def run(dir, mode, synchronous):
    db = open_(dir, mode, synchronous)
    for n in rounds():
        db.execute("BEGIN")
        db.execute("UPDATE t SET n = ?", (n,))
        db.execute("COMMIT")
        acknowledge(n)


def check(dir, mode, synchronous):
    db = open_(dir, mode, synchronous)
    whole = db.execute("PRAGMA integrity_check").fetchone()[0]
    if whole != "ok":
        sys.exit(f"the database is damaged: {whole}")
    oracle([n for (n,) in db.execute("SELECT n FROM t ORDER BY key")])


main(setup=setup, run=run, check=check)

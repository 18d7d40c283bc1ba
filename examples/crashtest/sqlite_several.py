"""SQLite: one transaction updates twenty rows of each of several databases, and moves an amount from one to the next.
`DIR VFS JOURNAL_MODE SYNCHRONOUS DATABASES`; with the VFS `untorn`, UNTORN_SQLITE names the extension."""
import os, sqlite3, sys
from common import KEYS, acknowledge, oracle, main, rounds


def open_(dir, vfs, mode, synchronous, databases):
    uri = lambda n: f"file:{dir}/db{n}?vfs={vfs}" + (f"&store={dir}" if vfs == "untorn" else "")
    if vfs == "untorn":
        loader = sqlite3.connect(":memory:")
        loader.enable_load_extension(True)
        loader.load_extension(os.environ["UNTORN_SQLITE"])
    db = sqlite3.connect(uri(0), uri=True, isolation_level=None)
    schemas = ["main"] + [f"db{n}" for n in range(1, int(databases))]
    for n, schema in enumerate(schemas):
        if n > 0:
            db.execute(f"ATTACH '{uri(n)}' AS {schema}")
        db.execute(f"PRAGMA {schema}.journal_mode={mode}")
        db.execute(f"PRAGMA {schema}.synchronous={synchronous}")
        db.execute(f"PRAGMA {schema}.cache_size=10")
    return db, schemas


def setup(dir, vfs, mode, synchronous, databases):
    db, schemas = open_(dir, vfs, mode, "full", databases)
    for schema in schemas:
        db.execute(f"CREATE TABLE {schema}.t (key INTEGER PRIMARY KEY, n INTEGER, amount INTEGER, filling TEXT)")
        db.executemany(f"INSERT INTO {schema}.t VALUES (?, 0, 0, ?)", [(key, "x" * 3000) for key in range(KEYS)])
    db.close()


def run(dir, vfs, mode, synchronous, databases):
    db, schemas = open_(dir, vfs, mode, synchronous, databases)
    for n in rounds():
        db.execute("BEGIN")
        for at, schema in enumerate(schemas):
            db.execute(f"UPDATE {schema}.t SET n = ?, amount = amount + ?", (n, n * (2 * at - len(schemas) + 1)))
        db.execute("COMMIT")
        acknowledge(n)


def check(dir, vfs, mode, synchronous, databases):
    db, schemas = open_(dir, vfs, mode, synchronous, databases)
    numbers, amounts = [], []
    for schema in schemas:
        whole = db.execute(f"PRAGMA {schema}.integrity_check").fetchone()[0]
        if whole != "ok":
            sys.exit(f"the database {schema} is damaged: {whole}")
        for n, amount in db.execute(f"SELECT n, amount FROM {schema}.t ORDER BY key"):
            numbers.append(n)
            amounts.append(amount)
    if sum(amounts) != 0:
        sys.exit(f"the amounts are {sum(amounts)} together")
    if synchronous != "off":
        oracle(numbers)
    elif len(set(numbers)) != 1:
        sys.exit(f"half a transaction: {sorted(set(numbers))}")


main(setup=setup, run=run, check=check)

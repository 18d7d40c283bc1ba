"""Python's `shelve` on a database of `dbm`: one key at a time. `DIR gnu|ndbm|dumb`

`gnu` is synced after each change, the others when they are closed. A database of `dumb` is three files: it writes the
bytes of a new key before the line of its index, and so each key is new."""
import importlib, shelve, sys
from common import KEYS, acknowledge, oracle, main, rounds


def open_(dir, kind, flag):
    return shelve.Shelf(importlib.import_module("dbm." + kind).open(dir + "/db", flag))


def setup(dir, kind):
    with open_(dir, kind, "c") as db:
        for key in range(KEYS):
            db[f"key-{key}"] = "0" * 300


def run(dir, kind):
    db = open_(dir, kind, "w")
    for n in rounds():
        value = (n, "x" * (n * 37 % 900))
        if kind == "dumb":
            db[f"new-{n}"] = value
        else:
            db["counter"] = value
        if kind == "gnu":
            db.sync()
        elif kind == "ndbm":
            db.close()
            db = open_(dir, kind, "w")
        acknowledge(n)


def check(dir, kind):
    with open_(dir, kind, "r") as db:
        for key in range(KEYS):
            if db[f"key-{key}"] != "0" * 300:
                sys.exit(f"key-{key}, which was not changed, is damaged")
        counters = [name for name in db.keys() if name == "counter" or name.startswith("new-")]
        values = [db[name] for name in counters]
    if any(filling != "x" * (n * 37 % 900) for n, filling in values):
        sys.exit("a value is damaged")
    oracle([max([n for n, _ in values], default=0)])


main(setup=setup, run=run, check=check)

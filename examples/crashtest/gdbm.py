"""GDBM, opened to flush after each write (`s`): one key at a time, without transactions. That alone does not flush each
write (seen with GDBM 1.23); with `sync`, the program asks for it."""
import dbm.gnu, os, sys
from common import KEYS, acknowledge, oracle, main, rounds


def setup(dir, sync=None):
    with dbm.gnu.open(dir + "/db", "cs") as db:
        for key in range(KEYS):
            db[f"key-{key}"] = "0" * 300


def run(dir, sync=None):
    with dbm.gnu.open(dir + "/db", "ws") as db:
        for n in rounds():
            # Of another length, so that it moves.
            db["counter"] = f"{n} " + "x" * (n * 37 % 900)
            if sync:
                db.sync()
            acknowledge(n)


def check(dir, sync=None):
    said = open(os.environ["UNTORN_ACKED"]).read().split()
    with dbm.gnu.open(dir + "/db", "w") as db:
        for key in range(KEYS):
            if db[f"key-{key}"] != b"0" * 300:
                sys.exit(f"key-{key}, which was not changed, is damaged")
        if said:
            n = int(db["counter"].split()[0])
            oracle([n])


main(setup=setup, run=run, check=check)

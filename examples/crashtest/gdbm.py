"""gdbm, opened to flush after each write (`s`): one key at a time, no transactions asked of it."""
import dbm.gnu, os, sys
from common import KEYS, ROUNDS, acknowledge, judge, main


def setup(dir):
    with dbm.gnu.open(dir + "/db", "cs") as db:
        for key in range(KEYS):
            db[f"key-{key}"] = "0" * 300


def run(dir):
    with dbm.gnu.open(dir + "/db", "ws") as db:
        for n in range(1, ROUNDS + 1):
            # Of another length, so that it moves.
            db["counter"] = f"{n} " + "x" * (n * 37 % 900)
            acknowledge(n)


def check(dir):
    said = open(os.environ["UNTORN_ACKED"]).read().split()
    with dbm.gnu.open(dir + "/db", "w") as db:
        for key in range(KEYS):
            if db[f"key-{key}"] != b"0" * 300:
                sys.exit(f"key-{key}, which nobody has changed, is damaged")
        if said:
            n = int(db["counter"].split()[0])
            judge([n])


main(setup=setup, run=run, check=check)

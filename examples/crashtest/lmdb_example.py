"""LMDB with its defaults: one transaction puts twenty keys."""
import lmdb
from common import KEYS, ROUNDS, acknowledge, oracle, main


def open_(dir):
    return lmdb.open(dir + "/db", map_size=16 << 20)


def put(db, n):
    with db.begin(write=True) as txn:
        for key in range(KEYS):
            txn.put(b"key-%d" % key, b"%d " % n + b"x" * 700)


def setup(dir):
    put(open_(dir), 0)


def run(dir):
    db = open_(dir)
    for n in range(1, ROUNDS + 1):
        put(db, n)
        acknowledge(n)


def check(dir):
    with open_(dir).begin() as txn:
        oracle([int(txn.get(b"key-%d" % key).split()[0]) for key in range(KEYS)])


main(setup=setup, run=run, check=check)

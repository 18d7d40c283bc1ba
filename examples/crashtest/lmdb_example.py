"""LMDB with its defaults, or with `writemap`: one transaction puts twenty keys. `DIR [writemap]`"""
import lmdb
from common import KEYS, acknowledge, oracle, main, rounds


def open_(dir, how):
    return lmdb.open(dir + "/db", map_size=16 << 20, writemap=how == "writemap")


def put(db, n):
    with db.begin(write=True) as txn:
        for key in range(KEYS):
            txn.put(b"key-%d" % key, b"%d " % n + b"x" * 700)


def setup(dir, how=None):
    put(open_(dir, how), 0)


def run(dir, how=None):
    db = open_(dir, how)
    for n in rounds():
        put(db, n)
        acknowledge(n)


def check(dir, how=None):
    with open_(dir, how).begin() as txn:
        oracle([int(txn.get(b"key-%d" % key).split()[0]) for key in range(KEYS)])


main(setup=setup, run=run, check=check)

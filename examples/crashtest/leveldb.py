"""LevelDB with `sync`: one batch puts twenty keys."""
import plyvel
from common import KEYS, acknowledge, oracle, main, rounds


def put(db, n):
    with db.write_batch(transaction=True, sync=True) as batch:
        for key in range(KEYS):
            batch.put(b"key-%d" % key, b"%d " % n + b"x" * 700)


def setup(dir):
    put(plyvel.DB(dir + "/db", create_if_missing=True), 0)


def run(dir):
    db = plyvel.DB(dir + "/db")
    for n in rounds():
        put(db, n)
        acknowledge(n)


def check(dir):
    db = plyvel.DB(dir + "/db")
    oracle([int((db.get(b"key-%d" % key) or b"-1").split()[0]) for key in range(KEYS)])


main(setup=setup, run=run, check=check)

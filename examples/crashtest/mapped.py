"""A mapped file: twenty pages get the same number, then one `msync` (`mmap.flush`)."""
import mmap, os
from common import KEYS, acknowledge, oracle, main, rounds

PAGE = 4096


def setup(dir):
    with open(dir + "/mapped", "wb") as file:
        file.write(b"0".ljust(PAGE) * KEYS)
        os.fsync(file.fileno())


def run(dir):
    with open(dir + "/mapped", "r+b") as file, mmap.mmap(file.fileno(), 0) as map:
        for n in rounds():
            for key in range(KEYS):
                map[key * PAGE : (key + 1) * PAGE] = (b"%d" % n).ljust(PAGE)
            map.flush()
            acknowledge(n)


def check(dir):
    with open(dir + "/mapped", "rb") as file:
        oracle([int(file.read(PAGE)) for _ in range(KEYS)])


main(setup=setup, run=run, check=check)

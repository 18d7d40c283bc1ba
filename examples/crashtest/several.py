"""Several files that change together, by `write`, by a mapping, and by a new file in place of another; then one `fsync`, of
one of them. Only a store that is mounted with `--commit=store` keeps them together."""
import mmap, os
from common import acknowledge, oracle, main, rounds

PAGE = 4096
FILES = ["first", "second", "mapped", "replaced"]


def page(n):
    return (b"%d" % n).ljust(PAGE)


def setup(dir):
    for name in FILES:
        with open(f"{dir}/{name}", "wb") as file:
            file.write(page(0) * 4)
            os.fsync(file.fileno())
    descriptor = os.open(dir, os.O_RDONLY)
    os.fsync(descriptor)


def run(dir):
    first, second, mapped = [open(f"{dir}/{name}", "r+b", buffering=0) for name in FILES[:3]]
    map = mmap.mmap(mapped.fileno(), 0)
    for n in rounds():
        for at in range(4):
            os.pwrite(first.fileno(), page(n), at * PAGE)
            os.pwrite(second.fileno(), page(n), at * PAGE)
            map[at * PAGE : (at + 1) * PAGE] = page(n)
        with open(f"{dir}/new", "wb") as new:
            new.write(page(n) * 4)
        os.rename(f"{dir}/new", f"{dir}/replaced")
        with open(f"{dir}/made-{n}", "wb") as made:
            made.write(page(n) * 4)
        if n > 1:
            os.remove(f"{dir}/made-{n - 1}")
        os.fsync(first.fileno())
        acknowledge(n)


def check(dir):
    names = FILES + [name for name in os.listdir(dir) if name.startswith("made-") or name == "new"]
    found = []
    for name in names:
        with open(f"{dir}/{name}", "rb") as file:
            found += [int(file.read(PAGE) or -1) for _ in range(4)]
    found += [int(name[5:]) for name in names if name.startswith("made-")]
    oracle(found)


main(setup=setup, run=run, check=check)

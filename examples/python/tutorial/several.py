# Two arrays, a counter and a log that change together, in one commit.
# python several.py STEPS
import sys

import untorn

with untorn.Store("run") as store, store.open("log.csv", "a+") as log:
    mode = "r+" if "count" in store.list() else "w+"
    sand = store.memmap("sand", "i8", mode, shape=100_000)
    moved = store.memmap("moved", "i8", mode, shape=100_000)
    count = store.memmap("count", "i8", mode, shape=2)  # steps, and grains moved in all of them
    if count[0] == 0:
        sand[::1000] = 10_000
    log.seek(0)
    print(count[0], "steps")
    assert sand.sum() == 1_000_000 and moved.sum() == count[1] and len(log.readlines()) == count[0], "torn"

    for step in range(1, 1 + int(sys.argv[1] if len(sys.argv) > 1 else 1000)):
        slide = (sand[:-1] - sand[1:]) // 4
        sand[:-1] -= slide
        sand[1:] += slide
        moved[:-1] += abs(slide)
        count += 1, abs(slide).sum()
        print(*count, sep=",", file=log)
        if step % 100 == 0:
            untorn.sync(sand, moved, count, log)
    untorn.sync(sand, moved, count, log)

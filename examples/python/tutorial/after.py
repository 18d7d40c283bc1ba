# Grains of sand slide downhill over 100000 cells in a mapped file. No grain is ever made or lost.
# python after.py STEPS
import os
import sys

from untorn import memmap

GRAINS = 1_000_000
mode = "r+" if os.path.exists("sand.dat") else "w+"
sand = memmap("sand.dat", "i8", mode, shape=100_000)
if not sand.any():
    sand[::1000] = GRAINS // 100
    sand.flush()
print(sand.sum(), "grains")
assert sand.sum() == GRAINS, "torn"

for step in range(1, 1 + int(sys.argv[1] if len(sys.argv) > 1 else 1000)):
    slide = (sand[:-1] - sand[1:]) // 4
    sand[:-1] -= slide
    sand[1:] += slide
    if step % 100 == 0:
        sand.flush()
sand.flush()

"""Counts in a file that is replaced by rename, without the fsyncs that this needs."""
import os, sys

dir = sys.argv[1]
for n in range(1, 101):
    with open(dir + "/counter.new", "w") as file:
        file.write(f"{n}\n" * 1000)
    os.rename(dir + "/counter.new", dir + "/counter")
    print(n, flush=True)

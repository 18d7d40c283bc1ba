# untorn.write and untorn.replace: a file is replaced whole, or not at all.
import csv
import os
from pathlib import Path

import untorn

untorn.write("config.toml", "colour = 'red'\n")
os.chmod("config.toml", 0o640)
untorn.write("config.toml", "colour = 'blue'\n")
assert Path("config.toml").read_text() == "colour = 'blue'\n"
assert os.stat("config.toml").st_mode & 0o777 == 0o640, "the mode is kept"

with untorn.replace("report.csv", "w", newline="") as file:
    csv.writer(file).writerows([("apples", 3), ("pears", 4)])

# An exception leaves the file as it was.
try:
    with untorn.replace("report.csv") as file:
        file.write("half a rep")
        raise RuntimeError("no paper")
except RuntimeError:
    pass
assert Path("report.csv").read_bytes() == b"apples,3\r\npears,4\r\n"

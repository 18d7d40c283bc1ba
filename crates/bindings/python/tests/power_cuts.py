"""A program for untorn-crashtest, and its check: `power_cuts.py run|check PROGRAM DIRECTORY`.

Each number is in one commit, printed once it is durable; after a power cut a number that was printed last, or a later
one, must be there as a whole.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import commits

COMMITS = 60


class Enough(BaseException):
    """The last commit was acknowledged."""


def acknowledge(number: int) -> None:
    print(number, flush=True)
    if number == COMMITS:
        raise Enough


def main() -> None:
    action, program, directory = sys.argv[1:]
    os.chdir(directory)
    commits.failure_class = "power"
    write, _ = commits.PROGRAMS[program]
    if action == "run":
        try:
            write(acknowledge)
        except Enough:
            return
    acknowledged = Path(os.environ["UNTORN_ACKED"]).read_text().split()
    last = int(acknowledged[-1]) if acknowledged else 0
    found = commits.last_in(program)
    if found < last:
        sys.exit(f"{found} is there, and {last} was acknowledged")


main()

"""Power cuts of a recording disk under programs in Python (untorn-crashtest): no acknowledged commit is lost or torn."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commits import PROGRAMS
from conftest import extent

CRASHTEST = os.environ.get("UNTORN_CRASHTEST", "")
# Without /dev/fuse or loop devices.
COULD_NOT_BE_DONE = 2


@pytest.mark.skipif(os.geteuid() != 0, reason="file systems are mounted: needs root")
@pytest.mark.skipif(not CRASHTEST, reason="UNTORN_CRASHTEST does not name the program untorn-crashtest")
@pytest.mark.parametrize("program", PROGRAMS)
def test_power_cuts(program: str, randomness: random.Random) -> None:
    script = f"{sys.executable} {Path(__file__).parent / 'power_cuts.py'}"
    states = extent(8, 400)
    for file_system in ["ext4", "xfs", "btrfs"][: extent(1, 3)]:
        seed = str(randomness.randrange(1 << 32))
        done = subprocess.run(
            [CRASHTEST, "--fs", file_system, "--states", str(states), "--seed", seed]
            + ["--check", f"{script} check {program} {{}}", "--", *script.split(), "run", program, "{}"],
            capture_output=True,
            text=True,
            timeout=3000,
        )
        said = done.stdout + done.stderr
        if done.returncode == COULD_NOT_BE_DONE:
            pytest.skip(said)
        assert done.returncode == 0 and "no violation" in said, said
        print(f"{program}: {' '.join(re.findall(rf'^ *{file_system} .*', said, re.M)[-1:])}")

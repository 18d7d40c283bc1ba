"""Children that are killed while they commit: the state is that of the last commit, or of the one on its way."""

from __future__ import annotations

import random

import pytest
from commits import PROGRAMS, byte, last_in
from conftest import extent, run_and_kill


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("program", PROGRAMS)
def test_kills(program: str, randomness: random.Random) -> None:
    write, _ = PROGRAMS[program]
    kills = extent(12, 250)
    for _ in range(kills):
        acknowledged = run_and_kill(write, randomness, 30)
        found = last_in(program)
        if acknowledged:
            assert byte(found) in (byte(acknowledged), byte(acknowledged + 1))
    print(f"{program}: {kills} kills")

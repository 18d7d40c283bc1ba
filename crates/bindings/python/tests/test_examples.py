"""The programs of examples/python, and those that the documents show."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import extent

import untorn

pytest.importorskip("numpy", reason="skipped: numpy is not installed")

SOURCE = Path(os.environ.get("UNTORN_SOURCE") or Path(__file__).parents[4])
EXAMPLES = SOURCE / "examples/python"
PROGRAMS = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py"))


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-W", "error", *map(str, args)]


def run(*args: str | Path) -> str:
    """The output of a program, which must end with code 0 and print no warning."""
    done = subprocess.run(command(*args), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    if "sqlite" in name and "UNTORN_SQLITE" not in os.environ:
        pytest.skip("skipped: UNTORN_SQLITE does not name libuntorn_sqlite.so")
    lines = (EXAMPLES / name).read_text().splitlines()
    assert len(lines) <= 40 and re.fullmatch("# .+[.:]", lines[0]), "a short program, after a line that says what it shows"
    run(EXAMPLES / name)


def test_each_face_of_the_package_has_an_example() -> None:
    shown = "".join((EXAMPLES / name).read_text() for name in PROGRAMS)
    faces = [name for name in untorn.__all__ if name.isalpha() and name.islower()]
    faces += ["sync_async", "memmap", "open_memmap", "Store", "Reader", "Gate", "aio.GatedWriter"]
    assert len(faces) > 14
    assert [name for name in faces if not re.search(rf"\buntorn\.{name}\b", shown)] == []


def blocks(document: str) -> list[str]:
    """The Python code of a document."""
    return re.findall(r"^```python\n(.*?)^```$", (SOURCE / document).read_text(), re.DOTALL | re.MULTILINE)


def test_the_tutorial_shows_its_programs() -> None:
    before, after, several = (
        (EXAMPLES / "tutorial" / f"{name}.py").read_text() for name in ("before", "after", "several")
    )
    changed = [pair for pair in zip(before.splitlines()[2:], after.splitlines()[2:], strict=True) if pair[0] != pair[1]]
    assert changed == [("from numpy import memmap", "from untorn import memmap")]
    shown = blocks("docs/TUTORIAL_NUMPY.md")
    assert shown == [before[before.index("import") :], changed[0][1] + "\n", several[several.index("import") :]]


@pytest.mark.parametrize("document", ["docs/PYTHON.md", "crates/bindings/python/README.md"])
def test_code_of_documents(document: str) -> None:
    parts = blocks(document)
    assert parts
    # The names that the code takes as given.
    prelude = """
import csv, numpy, untorn
text, rows = "a = 1", [(1, 2)]
open("state.bin", "wb").close()
with untorn.Store("data") as store:
    for name in ("accounts", "new", "old"):
        store.write(name, "x")
numpy.save("field.npy", numpy.arange(10))
"""
    Path("program.py").write_text("\n".join([prelude, *parts]))
    run("program.py")
    assert Path("config.toml").read_text() == "a = 1"
    with untorn.open("state.bin", "rb") as file:
        assert file.read() == bytes(4096) + b"..."


def killed(randomness: random.Random, name: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of the tutorial, kills it at any time, and runs it again for no steps."""
    program = EXAMPLES / "tutorial" / name
    child = subprocess.Popen(command("-u", program, "1000000"), stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
        time.sleep(randomness.uniform(0, 0.3))
        child.kill()
    child.wait()
    return subprocess.run(command(program, "0"), capture_output=True, text=True, timeout=120)


def test_a_kill_tears_an_array_of_numpy(randomness: random.Random) -> None:
    for _ in range(100):
        done = killed(randomness, "before.py")
        if done.returncode != 0:
            assert "AssertionError: torn" in done.stderr, done.stderr
            return
    pytest.fail("none of 100 kills came in the middle of a step")


def test_no_kill_tears_an_array_of_untorn(randomness: random.Random) -> None:
    kills, has_slid = 0, False
    # At least one kill comes after steps that were committed.
    while kills < extent(5, 200) or not has_slid and kills < 200:
        done = killed(randomness, "after.py")
        assert (done.returncode, done.stdout, done.stderr) == (0, "1000000 grains\n", ""), done.stderr
        has_slid = any(Path("sand.dat").read_bytes()[8:16])
        kills += 1
    assert has_slid


def test_no_kill_tears_a_commit_of_several_files(randomness: random.Random) -> None:
    steps = kills = 0
    # At least one kill comes after a commit.
    while kills < extent(5, 200) or steps == 0 and kills < 200:
        done = killed(randomness, "several.py")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        before, steps = steps, int(done.stdout.split()[0])
        assert steps >= before and steps % 100 == 0
        kills += 1
    assert steps > 0

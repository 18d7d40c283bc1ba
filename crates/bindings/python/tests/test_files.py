"""Files of their own: `open`, `write`, `replace`."""

from __future__ import annotations

import csv
import gc
import io
import os
import pickle
import stat
import subprocess
import sys
import tarfile
import warnings
import zipfile

import pytest

import untorn


def put(name: str, contents: bytes) -> None:
    with untorn.open(name, "wb") as file:
        file.write(contents)


def contents(name: str) -> bytes:
    with untorn.open(name, "rb") as file:
        return file.read()


def test_write_replaces_whole_and_keeps_the_mode() -> None:
    with open("config", "w") as file:
        file.write("old")
    os.chmod("config", 0o640)
    untorn.write("config", "süß")
    assert open_bytes("config") == "süß".encode()
    assert stat.S_IMODE(os.stat("config").st_mode) == 0o640
    untorn.write(b"config", memoryview(b"bytes"))
    assert open_bytes("config") == b"bytes"
    assert os.listdir() == ["config"]


def open_bytes(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read()


def test_write_into_a_store_is_a_commit() -> None:
    with untorn.Store("store") as store, store.open("a", "wb") as file:
        file.write(b"old")
    untorn.write("store/a", b"new")
    assert untorn.Reader("store").read("a") == b"new"


def test_replace_writes_nothing_on_an_exception() -> None:
    untorn.write("report", "old")
    with pytest.raises(ZeroDivisionError), untorn.replace("report") as file:
        file.write("half")
        1 / 0
    assert open_bytes("report") == b"old"
    with untorn.replace("report", "w", encoding="utf-16", newline="\r\n") as file:
        csv.writer(file, lineterminator="\n").writerows([["a", "b"], ["1", "2"]])
    assert open_bytes("report").decode("utf-16") == "a,b\r\n1,2\r\n"
    with untorn.replace("new.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("member", "x" * 1000)
    with zipfile.ZipFile("new.zip") as archive:
        assert archive.read("member") == b"x" * 1000
    assert sorted(os.listdir()) == ["new.zip", "report"]
    with pytest.raises(ValueError):
        untorn.replace("report", "a")


def test_a_block_commits_and_an_exception_rolls_back() -> None:
    with untorn.open("state", "w+b") as file:
        file.write(b"one")
        file.seek(0)
        assert file.read() == b"one"
    assert contents("state") == b"one"
    with pytest.raises(ZeroDivisionError), untorn.open("state", "r+b") as file:
        file.write(b"two")
        file.flush()
        file.write(b"three")
        1 / 0
    assert file.closed
    assert contents("state") == b"one"


@pytest.mark.parametrize("mode", ["r+b", "wb", "ab", "w", "r+", "a"])
@pytest.mark.parametrize("buffering", [-1, 0, 7])
def test_close_with_uncommitted_changes_says_so(mode: str, buffering: int) -> None:
    put("state", b"one")
    if buffering == 0 and "b" not in mode:
        buffering = 1
    file = untorn.open("state", mode, buffering)
    file.write(b"two" if "b" in mode else "two")
    with pytest.raises(untorn.Uncommitted, match=r"commit\(\).*with"):
        file.close()
    assert file.closed
    file.close()
    assert contents("state") == b"one"


@pytest.mark.parametrize("mode", ["r+b", "w", "ab"])
def test_commit_on_close(mode: str) -> None:
    put("state", b"")
    file = untorn.open("state", mode, commit_on_close=True)
    file.write(b"two" if "b" in mode else "two")
    file.close()
    assert contents("state") == b"two"


@pytest.mark.parametrize("commit_on_close", [False, True])
@pytest.mark.parametrize("mode", ["r+b", "w", "ab", "raw"])
def test_a_finaliser_never_commits(mode: str, commit_on_close: bool) -> None:
    put("state", b"one")
    file = untorn.open(
        "state", "r+b" if mode == "raw" else mode, 0 if mode == "raw" else -1, commit_on_close=commit_on_close
    )
    file.write("two" if mode == "w" else b"two")
    with pytest.warns(ResourceWarning, match="unclosed file"):
        del file
        gc.collect()
    assert contents("state") == b"one"


def test_the_end_of_the_interpreter_discards_and_warns() -> None:
    put("state", b"one")
    program = "import untorn\nf = untorn.open('state', 'r+b', commit_on_close=True)\nf.write(b'two')"
    done = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert "ResourceWarning: unclosed file" in done.stderr
    assert contents("state") == b"one"


def test_rollback_returns_to_the_last_commit_and_its_position() -> None:
    with untorn.open("log", "w+b") as file:
        file.write(b"first\n")
        file.commit()
        file.write(b"second\n")
        file.rollback()
        assert (file.tell(), file.read()) == (6, b"")
        file.write(b"third\n")
    assert contents("log") == b"first\nthird\n"
    with untorn.open("log", "r+", encoding="utf-8") as file:
        assert file.readline() == "first\n"
        file.rollback()
        assert file.readline() == "first\n"
        file.seek(0, 2)
        file.write("fourth\n")
        file.commit()
        file.write("fifth\n")
        file.rollback()
        file.write("sixth\n")
    assert contents("log") == b"first\nthird\nfourth\nsixth\n"


def test_tickets() -> None:
    with untorn.open("log", "w+b") as file:
        file.write(b"first")
        ticket = file.commit_async()
        file.write(b"second")
        ticket.result()
        assert ticket.done() and ticket.lsn is not None
        ticket.result(0)
        file.rollback()
    assert contents("log") == b"first"


def test_raw_files() -> None:
    with untorn.open("state", "w+b", 0) as raw:
        assert isinstance(raw, untorn.RawFile)
        assert raw.pwrite(b"abc", 5) == 3
        assert raw.tell() == 0
        assert raw.pread(100, 0) == b"\0" * 5 + b"abc"
        assert raw.pread(2, 100) == b""
        assert raw.truncate(6) == 6
        assert raw.readall() == b"\0" * 5 + b"a"
        assert raw.seek(-1, 2) == 5
        with pytest.raises(ValueError):
            raw.seek(-10, 1)
        with pytest.raises(io.UnsupportedOperation):
            raw.fileno()
        assert isinstance(raw, io.RawIOBase)
    with pytest.raises(ValueError, match="closed"):
        raw.pread(1, 0)


def test_reading_creates_nothing_and_sees_the_last_commit() -> None:
    with open("plain", "wb") as file:
        file.write(b"plain")
    assert contents("plain") == b"plain"
    assert os.listdir() == ["plain"]
    with pytest.raises(FileNotFoundError):
        untorn.open("none")
    with untorn.open("state", "wb") as file:
        file.write(b"one")
        file.commit()
        file.write(b"two")
        file.flush()
        assert contents("state") == b"one"
        with untorn.open("state", "r", newline="") as reading:
            assert reading.read() == "one"
            with pytest.raises(io.UnsupportedOperation):
                reading.write("no")


def test_errors_are_those_of_the_system_too() -> None:
    with pytest.raises(FileNotFoundError) as found:
        untorn.open("none", "r+b")
    assert isinstance(found.value, untorn.Error)
    assert (found.value.kind, found.value.errno, found.value.filename) == ("io", 2, "none")
    assert found.value.outcome == "not-committed"
    put("there", b"")
    with pytest.raises(FileExistsError):
        untorn.open("there", "xb")
    with pytest.raises(OSError):
        untorn.open(".", "r+b")
    with untorn.open("there", "r+b"), pytest.raises(untorn.Busy, match="in use") as busy:
        untorn.open("there", "r+b")
    assert busy.value.kind == "busy"
    for mode in ("", "rw", "b", "rr", "rbt", "z", "r++"):
        with pytest.raises(ValueError):
            untorn.open("there", mode)
    with pytest.raises(ValueError):
        untorn.open("there", "rb", encoding="utf-8")
    with pytest.raises(ValueError, match="failure_class"):
        untorn.open("there", "r+b", failure_class="none")
    with pytest.raises(TypeError):
        untorn.open("there", "r+b", no_such_option=1)


def test_waiting_for_another_owner_takes_its_time() -> None:
    with untorn.open("state", "w+b"), pytest.raises(untorn.Busy):
        untorn.open("state", "r+b", wait=0.12)


def test_pickle_zipfile_tarfile_and_text() -> None:
    with untorn.open("p", "wb") as file:
        pickle.dump({"a": [1, 2]}, file)
    with untorn.open("p", "rb") as file:
        assert pickle.load(file) == {"a": [1, 2]}
    with untorn.open("z", "w+b") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a", "hello" * 1000)
        file.commit()
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr("b", "more")
    with untorn.open("z", "rb") as file, zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None and archive.namelist() == ["a", "b"]
    with untorn.open("t", "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        archive.add("p")
    with untorn.open("t", "rb") as file, tarfile.open(fileobj=file) as archive:
        assert archive.getnames() == ["p"]
    with untorn.open("text", "w", encoding="utf-8", newline="\n") as file:
        print("zwölf", "Boxkämpfer", file=file)
    with untorn.open("text", encoding="utf-8") as file:
        assert list(file) == ["zwölf Boxkämpfer\n"]


def test_numpy_files() -> None:
    np = pytest.importorskip("numpy")
    values = np.arange(100_000, dtype="f8").reshape(100, 1000)
    with untorn.open("a.npy", "wb") as file:
        np.save(file, values)
    with untorn.open("a.npy", "rb") as file:
        assert (np.load(file) == values).all()
    with untorn.open("a.npz", "wb") as file:
        np.savez_compressed(file, values=values)
    with untorn.open("a.npz", "rb") as file, np.load(file) as loaded:
        assert (loaded["values"] == values).all()
    with pytest.raises(ZeroDivisionError), untorn.open("a.npy", "wb") as file:
        np.save(file, values * 2)
        1 / 0
    with untorn.open("a.npy", "rb") as file:
        assert (np.load(file) == values).all()


def test_pandas_files() -> None:
    pandas = pytest.importorskip("pandas", reason="skipped: pandas is not installed")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    with untorn.open("f.csv", "w") as file:
        frame.to_csv(file, index=False)
    with untorn.open("f.csv") as file:
        assert pandas.read_csv(file).equals(frame)


def test_detached_files_stay_open() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = untorn.open("state", "w")
        buffer = text.detach()
        del text
        gc.collect()
        with buffer:
            buffer.write(b"kept")
    assert contents("state") == b"kept"

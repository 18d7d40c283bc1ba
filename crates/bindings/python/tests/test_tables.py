"""`untorn.dbm` and `untorn.shelve`."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import forked

import untorn
import untorn.dbm
import untorn.shelve


def test_a_table_is_a_mapping_in_order() -> None:
    with untorn.dbm.open("t", "c") as table:
        for number in reversed(range(1000)):
            table[b"%04d" % number] = b"%d" % number
        assert len(table) == 1000 and list(table) == [b"%04d" % n for n in range(1000)]
        assert table["0007"] == b"7" and table.get(b"x") is None and table.get("x", 1) == 1
        assert list(table.range(b"0300", b"0303")) == [b"0300", b"0301", b"0302"]
        assert (table.firstkey(), table.nextkey(b"0998"), table.nextkey(b"0999")) == (b"0000", b"0999", None)
        table["0007"] = "longer than it was"
        assert table.pop("0007") == b"longer than it was" and "0007" not in table
        with pytest.raises(KeyError):
            del table["0007"]
        with pytest.raises(KeyError):
            table["0007"]
        with pytest.raises(TypeError):
            table[7] = b""  # type: ignore[index]
        assert table.setdefault("new", b"1") == b"1" and table.setdefault("new", b"2") == b"1"
    with untorn.dbm.open("t", "r") as table:
        assert len(table) == 1000 and table["new"] == b"1"
        with pytest.raises(untorn.Error, match="for reading only"):
            table["x"] = b""
    with untorn.dbm.open("t", "n") as table:
        assert len(table) == 0 and table.firstkey() is None
    assert untorn.dbm.whichdb("t") == "untorn.dbm"
    assert untorn.dbm.whichdb("none") is None
    with open("other", "w") as file:
        file.write("UNTORNHP")
    assert untorn.dbm.whichdb("other") == ""


def test_flags_and_modes() -> None:
    for flag in ("r", "w"):
        with pytest.raises(untorn.dbm.error):
            untorn.dbm.open("none", flag)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        untorn.dbm.open("none", "q")  # type: ignore[arg-type]
    assert os.listdir() == []
    untorn.dbm.open("t", "c", 0o600).close()
    assert os.stat("t").st_mode & 0o777 == 0o600


def test_close_exceptions_and_finalisers() -> None:
    table = untorn.dbm.open("t", "c")
    table["a"] = b"1"
    with pytest.raises(untorn.Uncommitted, match=r"commit\(\)"):
        table.close()
    table.close()
    with pytest.raises(ValueError):
        table["a"]
    with pytest.raises(ZeroDivisionError), untorn.dbm.open("t", "c") as table:
        table["a"] = b"1"
        1 / 0
    with untorn.dbm.open("t", "w") as table:
        assert len(table) == 0
    table = untorn.dbm.open("t", "c", commit_on_close=True)
    table["a"] = b"1"
    with pytest.warns(ResourceWarning, match="unclosed table"):
        del table
        gc.collect()
    table = untorn.dbm.open("t", "w", commit_on_close=True)
    assert len(table) == 0
    table["a"] = b"1"
    table.close()
    with untorn.dbm.open("t", "r") as table:
        assert table["a"] == b"1"


def test_transactions_of_a_table() -> None:
    with untorn.dbm.open("t", "c") as table:
        with table.transaction():
            table["a"] = b"1"
        with pytest.raises(ZeroDivisionError), table.transaction():
            table["a"] = b"2"
            1 / 0
        assert table["a"] == b"1"
        table["b"] = b"1"
        with pytest.raises(untorn.Invalid), table.transaction():
            pass
        ticket = table.commit_async()
        ticket.result()
        table["b"] = b"2"
        table.rollback()
        assert table["b"] == b"1"


def test_tables_in_a_store_commit_with_files() -> None:
    with untorn.Store("store") as store, store.dbm("t") as table, store.open("log", "w") as log:
        table["a"] = b"1"
        log.write("a = 1\n")
        untorn.sync(log, table)
        table["a"] = b"2"
        table.rollback()
        assert table["a"] == b"1" and untorn.Reader("store").read("log") == b"a = 1\n"
        with pytest.raises(TypeError):
            untorn.sync(table, table)
        with untorn.shelve.open("s", store=store) as shelf:
            shelf["x"] = (1, 2)
        assert store.dbm("s", commit_on_close=True).keys() == [b"x"]
    gc.collect()


test_tables_in_a_store_commit_with_files = pytest.mark.filterwarnings("ignore:unclosed table:ResourceWarning")(
    test_tables_in_a_store_commit_with_files
)


def test_a_child_cannot_use_the_table() -> None:
    with untorn.dbm.open("t", "c") as table:
        table["a"] = b"1"

        def child() -> None:
            for call in (lambda: table["a"], table.commit, table.rollback, table.close):
                with pytest.raises(untorn.Forked):
                    call()

        assert forked(child) == (0, "")


def test_threads_share_a_table() -> None:
    with untorn.dbm.open("t", "c") as table:

        def work(number: int) -> None:
            for step in range(200):
                table[f"{number} {step}"] = str(step)
                if step % 50 == 0:
                    table.commit()
                assert table[f"{number} {step}"] == str(step).encode()

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
        assert len(table) == 1200


def test_shelves() -> None:
    with untorn.shelve.open("s", writeback=True) as shelf:
        shelf["list"] = [1]
        shelf["list"].append(2)
        shelf["none"] = None
    with untorn.shelve.open("s", writeback=True) as shelf:
        assert dict(shelf) == {"list": [1, 2], "none": None}
        shelf.rollback()
        shelf["list"].append(3)
        shelf.rollback()
        assert shelf["list"] == [1, 2]
        with shelf.transaction():
            shelf["list"].append(4)
    shelf = untorn.shelve.open("s")
    assert shelf["list"] == [1, 2, 4]
    shelf["list"] = []
    with pytest.raises(untorn.Uncommitted):
        shelf.close()
    with pytest.raises(ValueError, match="closed shelf"):
        shelf["list"]
    shelf.close()
    with pytest.raises(ZeroDivisionError), untorn.shelve.open("s") as shelf:
        del shelf["list"]
        1 / 0
    shelf = untorn.shelve.open("s", commit_on_close=True)
    assert shelf["list"] == [1, 2, 4]
    shelf["list"] = [5]
    shelf.close()
    with untorn.shelve.open("s", "r") as shelf:
        assert shelf["list"] == [5]

# untorn.dbm and untorn.shelve: tables from bytes to bytes, and from names to objects, whose changes are commits.
import untorn
import untorn.dbm
import untorn.shelve

with untorn.dbm.open("ages.db", "c") as table:
    table["ada"] = b"36"
    table["grace"] = b"85"
    table["linus"] = b"21"
    table.commit()
    assert list(table.range("b", "l")) == [b"grace"], "keys are in order"
    try:
        with table.transaction():
            del table["ada"]
            table["grace"] = table["nobody"]
    except KeyError:
        pass
    assert table["ada"] == b"36", "an exception rolls back"

with untorn.shelve.open("people") as shelf:
    shelf["ada"] = {"age": 36, "languages": ["English", "French"]}
with untorn.shelve.open("people", "r") as shelf:
    assert shelf["ada"]["languages"][1] == "French"

# Outside of a `with` block, sync() or commit() commits; close() does not.
shelf = untorn.shelve.open("people")
shelf["bob"] = None
try:
    shelf.close()
except untorn.Uncommitted as error:
    assert error.kind == "uncommitted"
with untorn.shelve.open("people") as shelf:
    assert list(shelf) == ["ada"]

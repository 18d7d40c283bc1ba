# untorn.Store and its transactions: several files and names change together, or not at all.
import untorn

with untorn.Store("bank") as store:
    store.write("ann", "100")
    store.write("bob", "0")
    store.write("draft", "Ann pays Bob 30.")

    with store.transaction() as t:
        t.open("ann", "w").write("70")
        t.open("bob", "w").write("30")
        t.mkdir("letters")
        t.rename("draft", "letters/1")

    # An exception aborts: no file and no name changes.
    try:
        with store.transaction() as t:
            t.unlink("letters/1")
            t.open("ann", "w").write("-30")
            raise ValueError("Ann has only 70")
    except ValueError:
        pass

    with store.open("ann") as ann, store.open("bob") as bob:
        assert (ann.read(), bob.read()) == ("70", "30")
    assert store.list() == ["ann", "bob", "letters"] and store.list("letters") == ["1"]

    # Files that are open already are committed together by untorn.sync.
    with store.open("ann", "r+") as ann, store.open("bob", "r+") as bob:
        ann.write("50")
        bob.write("50")
        untorn.sync(ann, bob)
        ann.truncate()
        untorn.sync_async(ann, bob).result()  # a ticket

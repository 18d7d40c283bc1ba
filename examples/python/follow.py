# Reader.follow: every commit of a store, once and in order, with its changes.
import untorn

with untorn.Store("notes") as store:
    store.write("first", "hello")
    reader = untorn.Reader("notes")
    follow = reader.follow()

    with store.open("first", "r+b") as file:
        file.seek(5)
        file.write(b", world")
    store.rename("first", "greeting")

    # In asyncio: `async for commit in follow`. A follower that was away for long gets `untorn.Missed`.
    written = next(follow)
    assert isinstance(written, untorn.Commit)
    ranges = [change for change in written.changes if change.kind == "written"]
    assert [(change.path, change.range, change.read()) for change in ranges] == [("first", (5, 12), b", world")]
    renamed = next(follow)
    assert [(change.path, change.to) for change in renamed.changes] == [("first", "greeting")]
    assert follow.lsn == renamed.lsn and follow.next_within(0.01) is None
    assert reader.follow(written.lsn).next_within(0).lsn == renamed.lsn

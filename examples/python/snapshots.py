# untorn.Reader and its snapshots: a store as of one commit, read by other processes while its owner writes.
import multiprocessing

import untorn


def total(reader: untorn.Reader) -> int:
    with reader.snapshot() as snapshot:
        return sum(int(snapshot.read(name)) for name in snapshot.list())


if __name__ == "__main__":
    with untorn.Store("bank") as store, multiprocessing.get_context("spawn").Pool(1) as pool:
        reader = untorn.Reader("bank")
        store.write("ann", "100")
        store.write("bob", "0")
        with reader.snapshot() as before:
            for paid in range(1, 31):
                with store.transaction() as t:
                    t.open("ann", "w").write(str(100 - paid))
                    t.open("bob", "w").write(str(paid))
                assert pool.apply(total, [reader]) == 100
            assert before.read("ann") == b"100" and reader.read("ann") == b"70"
            assert before.stat("bob").st_size == 1
            before.refresh()
            assert before.read("bob") == b"30"

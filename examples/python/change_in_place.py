# untorn.open: a file that is changed in place. The end of a `with` block commits, an exception rolls back.
import pickle

import untorn

with untorn.open("state.bin", "wb") as file:
    file.write(bytes(8192))

with untorn.open("state.bin", "r+b") as file:
    file.seek(4096)
    file.write(b"first")
    file.commit()  # durable on return
    file.write(b"second")
    file.rollback()  # back to the commit, with the position
    assert file.tell() == 4101
    file.raw.pwrite(b"third", 0)  # by position, from any thread

try:
    with untorn.open("state.bin", "r+b") as file:
        file.truncate(0)
        raise RuntimeError("wrong file")
except RuntimeError:
    pass

with untorn.open("state.bin", "rb") as file:
    contents = file.read()
assert contents[:5] == b"third" and contents[4096:4102] == b"first\0" and len(contents) == 8192

# Whatever takes a file object takes these.
with untorn.open("names.pickle", "wb") as file:
    pickle.dump(["Ada", "Grace"], file)
with untorn.open("names.pickle", "rb") as file:
    assert pickle.load(file) == ["Ada", "Grace"]

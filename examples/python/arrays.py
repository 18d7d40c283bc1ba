# untorn.memmap and open_memmap: numpy arrays over files. `flush` is a commit, `rollback` returns to the last one.
import numpy

import untorn

field = untorn.memmap("field.dat", "f8", "w+", shape=(100, 100))
field[3] = 1
field.flush()
field[:] = numpy.nan
field.rollback()
assert field.sum() == 100

field[4] = 2
ticket = field.flush_async()  # the flush goes on in the background
ticket.result()
field = field.resized((200, 100))  # the file grows
assert field[150].sum() == 0
field.flush()
field.close()

# The end of a `with` block flushes, an exception rolls back.
with untorn.open_memmap("field.npy", "w+", "i4", (10,)) as numbers:
    numbers[:] = range(10)
assert numpy.load("field.npy").tolist() == list(range(10))

with untorn.memmap("field.dat", "f8", "r", shape=(200, 100)) as field:
    assert field.sum() == 300

# untorn.Gate: answers on a socket or a pipe that leave when the commit that they report is durable.
import socket

import untorn

ours, theirs = socket.socketpair()
with ours, theirs, untorn.Store("orders") as store, untorn.Gate() as gate:
    output = gate.output(ours)
    with store.open("log", "ab") as log:
        for number in range(3):
            log.write(b"order %d\n" % number)
            output.write(b"have %d\n" % number, after=log.commit_async())
        output.write(b"bye\n")  # after everything before
        gate.drain()
    assert gate.held_bytes == 0
    assert theirs.recv(100) == b"have 0\nhave 1\nhave 2\nbye\n"
    assert untorn.Reader("orders").read("log") == b"order 0\norder 1\norder 2\n"

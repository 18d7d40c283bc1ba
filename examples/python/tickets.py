# Tickets: commits that a program starts, and awaits later in asyncio or waits for in a thread.
import asyncio

import untorn


async def main() -> None:
    with untorn.Store("events") as store, store.open("log", "ab") as log:
        tickets = []
        for number in range(100):
            log.write(b"event %d\n" % number)
            tickets.append(log.commit_async())
        for ticket in tickets:
            await ticket
        assert all(ticket.done() for ticket in tickets)

        # The end of the block awaits the commit.
        async with store.transaction() as t:
            t.open("summary", "w").write("100 events")

        log.write(b"the end\n")
        ticket = log.commit_async()
        ticket.result(timeout=60)  # seconds
        assert untorn.Reader("events").wait_for(ticket.lsn, timeout=0)

    reader = untorn.Reader("events")
    assert reader.read("log").count(b"\n") == 101 and reader.read("summary") == b"100 events"


asyncio.run(main())

"""Tickets, transactions, followers and gated writers in event loops."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import untorn
import untorn.aio


async def test_a_thousand_tickets() -> None:
    with untorn.Store("store") as store, store.open("a", "wb", 0) as file:
        tickets = []
        for number in range(1000):
            file.write(b"%d\n" % number)
            tickets.append(file.commit_async())
        await asyncio.gather(*tickets)
        assert all(ticket.done() for ticket in tickets)
        await tickets[0]
        assert untorn.Reader("store").read("a").count(b"\n") == 1000


async def test_transactions() -> None:
    with untorn.Store("store") as store:
        async with store.transaction() as txn:
            txn.open("a", "wb").write(b"x")
        with pytest.raises(ZeroDivisionError):
            async with store.transaction() as txn:
                txn.open("a", "wb").write(b"y")
                raise ZeroDivisionError
        assert untorn.Reader("store").read("a") == b"x"


async def test_a_cancelled_wait_does_not_cancel_the_commit() -> None:
    with untorn.Store("store") as store, store.open("a", "wb", 0) as file:
        for _ in range(50):
            file.write(b"x")
            ticket = file.commit_async()
            task = asyncio.ensure_future(ticket)
            await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            await ticket
        assert untorn.Reader("store").read("a") == b"x" * 50


async def test_tickets_of_a_store_that_closes() -> None:
    store = untorn.Store("store")
    with store.open("a", "wb", 0) as file:
        file.write(b"x")
        tickets = [file.commit_async() for _ in range(10)]
        waiting = [asyncio.ensure_future(ticket) for ticket in tickets]
        await asyncio.sleep(0)
    store.close()
    await asyncio.gather(*waiting)
    assert untorn.Reader("store").read("a") == b"x"


def test_loops_in_several_threads_share_a_store() -> None:
    failures: list[BaseException] = []
    with untorn.Store("store") as store:

        def run(number: int) -> None:
            async def main() -> None:
                with store.open(f"f{number}", "wb", 0) as file:
                    for _ in range(50):
                        file.write(b"x")
                        await asyncio.wait_for(file.commit_async(), 60)

            try:
                asyncio.run(main())
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert [len(untorn.Reader("store").read(f"f{n}")) for n in range(4)] == [50] * 4


async def test_follow() -> None:
    with untorn.Store("store") as store:
        store.write("a", b"one")
        start = int(time.time()) - 1
        follow = untorn.Reader("store").follow()

        async def two() -> list[tuple[int, int]]:
            return [(commit.lsn, commit.time) async for commit, _ in azip(follow, 2)]

        task = asyncio.create_task(two())
        await asyncio.sleep(0)
        store.write("a", b"two")
        store.write("a", b"three")
        (first, made), (second, _) = await task
        assert first < second and start <= made <= time.time()


async def azip(follow, most):  # noqa: ANN001, ANN201
    number = 0
    async for commit in follow:
        yield commit, number
        number += 1
        if number == most:
            return


async def test_gated_writers() -> None:
    with untorn.Store("store") as store, store.open("log", "ab", 0) as log:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            gated = untorn.aio.GatedWriter(writer)
            while line := await reader.readline():
                log.write(line)
                gated.write(b"have " + line, after=log.commit_async())
                gated.write(b".")
            await gated.drain()
            gated.close()
            await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for number in range(100):
            writer.write(b"%d\n" % number)
        writer.write_eof()
        answer = await reader.read()
        assert answer == b"".join(b"have %d\n." % number for number in range(100))
        assert untorn.Reader("store").read("log").count(b"\n") == 100
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

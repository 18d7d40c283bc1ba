"""Tickets in event loops: one event descriptor for each store, and one wake for each group of commits."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from ._untorn import Commit, Follow, Missed, Ticket

if TYPE_CHECKING:
    Pending = list[tuple[Ticket, asyncio.Future[None]]]


class Watch:
    """Waits for a store's event descriptor in each loop that has tickets of the store."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.AbstractEventLoop, Pending] = {}

    def add(self, loop: asyncio.AbstractEventLoop, ticket: Ticket) -> asyncio.Future[None]:
        """A future of the loop, with the ticket's result."""
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            pending = self._waiting.get(loop)
            if pending is None:
                pending = self._waiting[loop] = []
                loop.add_reader(self._descriptor, self._ready)
            pending.append((ticket, future))
        if ticket.done():
            # Perhaps the descriptor had told of it before.
            self._settle(loop)
        return future

    def _ready(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            # Another loop was faster.
            pass
        here = asyncio.get_running_loop()
        with self._lock:
            loops = [loop for loop in self._waiting if loop is not here]
        for loop in loops:
            # That loop may have been asleep when this one took its event.
            try:
                loop.call_soon_threadsafe(self._settle, loop)
            except RuntimeError:
                with self._lock:
                    self._waiting.pop(loop, None)
        self._settle(here)

    def _settle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give every commit that has a result to its waiter."""
        with self._lock:
            pending = self._waiting.get(loop)
            if pending is None:
                return
            done = [entry for entry in pending if entry[0].done()]
            if len(done) == len(pending):
                del self._waiting[loop]
                loop.remove_reader(self._descriptor)
            elif done:
                pending[:] = [entry for entry in pending if not entry[0].done() and entry not in done]
        for ticket, future in done:
            if future.done():
                continue
            try:
                ticket.result(0)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(None)


def wait(ticket: Ticket) -> Generator[Any, None, None]:
    """The body of ``await ticket``."""
    if ticket.done():
        ticket.result(0)
        return
    yield from ticket._watch.add(asyncio.get_running_loop(), ticket).__await__()


async def next_commit(follow: Follow) -> Commit | Missed:
    """The body of ``async for commit in follow``: a thread waits, in short steps, so that a cancelled task leaves."""
    while True:
        found = await asyncio.to_thread(follow.next_within, 0.5)
        if found is not None:
            return found

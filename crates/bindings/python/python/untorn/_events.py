"""Tickets in event loops: one event descriptor for each store, and one wake for each group of commits."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from typing import TYPE_CHECKING

from ._untorn import Commit, Follow, Missed, Ticket

if TYPE_CHECKING:
    Pending = deque[tuple[Ticket, asyncio.Future[None]]]


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
                pending = self._waiting[loop] = deque()
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
        """Give every commit that has a result to its waiter. Commits get their results in the order of their tickets."""
        with self._lock:
            pending = self._waiting.get(loop)
            if pending is None:
                return
            while pending and pending[0][0]._settle(pending[0][1]):
                pending.popleft()
            if not pending:
                del self._waiting[loop]
                loop.remove_reader(self._descriptor)


async def next_commit(follow: Follow) -> Commit | Missed:
    """The body of ``async for commit in follow``: a thread waits, in short steps, so that a cancelled task leaves."""
    while True:
        found = await asyncio.to_thread(follow.next_within, 0.5)
        if found is not None:
            return found

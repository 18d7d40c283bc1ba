"""Answers that leave when the commit that they report is durable, for asyncio.

Tickets are awaitable by themselves: ``await f.commit_async()``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from ._untorn import Ticket

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["GatedWriter"]


class GatedWriter:
    """Sends data to an ``asyncio.StreamWriter`` when their tickets are durable, in the order of writing.

    If a commit fails, bytes behind it are discarded, and every later call raises that error.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._held: deque[tuple[bytes, Ticket | None]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._failed: BaseException | None = None

    def write(self, data: ReadableBuffer, *, after: Ticket | None = None) -> None:
        """Hand over bytes that leave when the ticket is durable; without a ticket, after everything before."""
        self._check()
        if self._task is None and (after is None or after.done()):
            if after is not None:
                after.result(0)
            self._writer.write(bytes(data))
            return
        self._held.append((bytes(data), after))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send())

    async def drain(self) -> None:
        """Wait until everything that was written has left, and the transport wants more."""
        while self._task is not None:
            await asyncio.shield(self._task)
        self._check()
        await self._writer.drain()

    def close(self) -> None:
        """Discard data that are not sent yet, and close the writer."""
        if self._task is not None:
            self._task.cancel()
        self._held.clear()
        self._writer.close()

    async def _send(self) -> None:
        try:
            while self._held:
                data, after = self._held[0]
                if after is not None:
                    await after
                self._held.popleft()
                self._writer.write(data)
        except Exception as error:
            self._failed = error
            self._held.clear()
        finally:
            self._task = None

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

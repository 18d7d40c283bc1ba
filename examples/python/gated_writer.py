# untorn.aio.GatedWriter: a server for asyncio whose answers leave when the commits that they report are durable.
import asyncio

import untorn
import untorn.aio


async def main() -> None:
    with untorn.Store("orders") as store, store.open("log", "ab") as log:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            gated = untorn.aio.GatedWriter(writer)
            async for line in reader:
                log.write(line)
                gated.write(b"have " + line, after=log.commit_async())
            await gated.drain()
            gated.close()

        server = await asyncio.start_unix_server(serve, "socket")
        reader, writer = await asyncio.open_unix_connection("socket")
        writer.write(b"apples\npears\n")
        writer.write_eof()
        assert await reader.read() == b"have apples\nhave pears\n"
        assert untorn.Reader("orders").read("log") == b"apples\npears\n"
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()


asyncio.run(main())

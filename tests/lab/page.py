"""A page's end of the socket."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

DEADLINE = 60

Frame = tuple[str, dict[str, Any], list[bytes]]


class Page:
    def __init__(self, socket: Any) -> None:
        self.socket = socket

    async def send(self, **frame: Any) -> None:
        await self.socket.write_message(json.dumps(frame))

    async def hello(self, channel: str, job: Any, client: str = "page") -> None:
        await self.send(channel=channel, job=job, message={"type": "hello", "client": client, "version": 1})

    async def call(self, channel: str, method: str, client: str = "page", **params: Any) -> Frame:
        message = {"type": "call", "id": method, "client": client, "method": method, "params": params}
        await self.send(channel=channel, message=message)
        return await self.until("reply", channel)

    async def read(self) -> Frame:
        packed = await asyncio.wait_for(self.socket.read_message(), DEADLINE)
        assert isinstance(packed, bytes), f"the socket is closed: {self.socket.close_code} {self.socket.close_reason}"
        return unpack(packed)

    async def until(self, kind: str, channel: str | None = None) -> Frame:
        """The next message of this kind; batches on the way are acknowledged."""
        while True:
            frame = name, message, _ = await self.read()
            if message["type"] == kind and channel in (None, name):
                return frame
            if message["type"] == "batch":
                await self.send(channel=name, message={"type": "ack", "n": message["n"]})

    async def closed(self) -> int:
        """The code by which the server has closed it."""
        while await asyncio.wait_for(self.socket.read_message(), DEADLINE) is not None:
            pass
        return int(self.socket.close_code)


def unpack(packed: bytes) -> Frame:
    [length] = struct.unpack_from("<I", packed)
    header = json.loads(packed[4 : 4 + length])
    buffers, start = [], 4 + length
    for size in header["buffers"]:
        buffers.append(packed[start : start + size])
        start += size
    assert start == len(packed)
    return header["channel"], header["message"], buffers

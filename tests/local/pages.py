"""The page at the other end of a view's comm: what it says and hears, without a browser."""

from __future__ import annotations

import itertools
from typing import Any

from tests.local.kernels import Cell, Kernel

VIEW_TYPE = "application/vnd.jupyter.widget-view+json"


class Page:
    """Shows the view of ``cell``, whose output has to be there; or another job in its place."""

    def __init__(self, kernel: Kernel, cell: Cell, client: str = "page-1", job: str | None = None) -> None:
        kernel.until(lambda: any(VIEW_TYPE in data for data in cell.displays.values()), "the view")
        [self.comm] = {data[VIEW_TYPE]["model_id"] for data in cell.displays.values()}
        self._kernel, self._client = kernel, client
        self._ids = map(str, itertools.count())
        self._job = {} if job is None else {"job": job}

    def send(self, message: dict[str, Any]) -> None:
        content = {"comm_id": self.comm, "data": {"method": "custom", "content": message}}
        client = self._kernel.client
        client.shell_channel.send(client.session.msg("comm_msg", content))

    @property
    def state(self) -> dict[str, Any]:
        """What the kernel told of the model when it was made."""
        [message] = self._messages("comm_open")
        state: dict[str, Any] = message["content"]["data"]["state"]
        return state

    @property
    def closed(self) -> bool:
        return bool(self._messages("comm_close"))

    def heard(self, kind: str | None = None) -> list[tuple[dict[str, Any], list[bytes]]]:
        """(message, buffers) of all that has come, or of one type."""
        found = [(message["content"]["data"], message["buffers"]) for message in self._messages("comm_msg")]
        said = [(data["content"], list(map(bytes, buffers))) for data, buffers in found if data["method"] == "custom"]
        mine = [(header, buffers) for header, buffers in said if header.get("job") == self._job.get("job")]
        return [(header, buffers) for header, buffers in mine if kind in (None, header["type"])]

    def hello(self) -> dict[str, Any]:
        """Say hello and wait for the whole picture."""
        before = len(self.heard("snapshot"))
        self.send({**self._job, "type": "hello", "client": self._client, "version": 1})
        self._kernel.until(lambda: len(self.heard("snapshot")) > before, "a snapshot")
        return self.heard("snapshot")[-1][0]

    def head(self) -> dict[str, Any]:
        """The newest head; what has come so far is acknowledged."""
        told = [header for header, _ in self.heard() if header["type"] in ("snapshot", "batch")]
        if told:
            self.send({**self._job, "type": "ack", "n": told[-1]["n"]})
        heads: list[dict[str, Any]] = [header["head"] for header in told if header.get("head")]
        return heads[-1] if heads else {}

    def call(self, method: str, **params: Any) -> tuple[dict[str, Any], list[bytes]]:
        """The answer to a call, with its buffers."""
        id = next(self._ids)
        self.send({**self._job, "type": "call", "id": id, "client": self._client, "method": method, "params": params})

        def replies() -> list[tuple[dict[str, Any], list[bytes]]]:
            return [(header, buffers) for header, buffers in self.heard("reply") if header["id"] == id]

        self._kernel.until(replies, f"the answer to {method}")
        return replies()[0]

    def _messages(self, kind: str) -> list[dict[str, Any]]:
        return [
            message
            for message in self._kernel.others
            if message["msg_type"] == kind and message["content"]["comm_id"] == self.comm
        ]

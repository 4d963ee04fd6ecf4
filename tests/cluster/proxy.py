"""A TCP proxy between a client and an API server, which cuts what goes through it when it is told to."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import yaml


class Proxy:
    """Listens on the loopback interface at ``port``; ``cut`` ends all connections of now."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = host, port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._pairs) // 2

    def cut(self) -> int:
        """The number of connections that were there."""
        with self._lock:
            ends = list(self._pairs)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        return len(ends) // 2

    def close(self) -> None:
        self._closed = True
        self.cut()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()  # wakes the thread
        self._thread.join(10)
        self._server.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in selector.select():
                    if key.fileobj is self._server:
                        self._accept(selector)
                    else:
                        self._pass_on(selector, key.fileobj)  # type: ignore[arg-type]

    def _accept(self, selector: selectors.BaseSelector) -> None:
        client, _ = self._server.accept()
        try:
            upstream = socket.create_connection(self._upstream, timeout=10)
        except OSError:
            client.close()
            return
        with self._lock:
            self._pairs[client], self._pairs[upstream] = upstream, client
        selector.register(client, selectors.EVENT_READ)
        selector.register(upstream, selectors.EVENT_READ)

    def _pass_on(self, selector: selectors.BaseSelector, end: socket.socket) -> None:
        with self._lock:
            other = self._pairs.get(end)
        if other is None:
            return
        try:
            data = end.recv(65536)
            other.sendall(data)
        except OSError:
            data = b""
        if not data:
            with self._lock:
                self._pairs.pop(end, None), self._pairs.pop(other, None)
            for one in (end, other):
                selector.unregister(one)
                one.close()


def kubeconfig_through(proxy: Proxy, original: Path, target: Path) -> Path:
    """``original`` with the proxy's address; the certificate is still the server's own name's."""
    content = yaml.safe_load(original.read_text())
    for entry in content["clusters"]:
        where = urlsplit(entry["cluster"]["server"])
        entry["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
        entry["cluster"].setdefault("tls-server-name", where.hostname)
    target.write_text(yaml.safe_dump(content))
    return target


def upstream_of(kubeconfig: Path) -> tuple[str, int]:
    content = yaml.safe_load(kubeconfig.read_text())
    where = urlsplit(content["clusters"][0]["cluster"]["server"])
    return str(where.hostname), where.port or 443

"""An asynchronous client of one API server: plain dicts and paths, one pool of connections.

Credentials and TLS are the official client's (``kubernetes.aio``): its generated models are left out, since what comes
is as it comes. To be used on the portal's loop.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from kfnb.backends.kubernetes.access import Access
from kfnb.backends.kubernetes.errors import ApiError, Unreachable, explain

if TYPE_CHECKING:
    import aiohttp
    from kubernetes.aio.client import Configuration

#: Seconds to connect, and for the first answer of all; and those between two parts of a later answer that is read as a
#: whole, which a busy server may need.
CONNECT, READ = 3.0, 30.0

#: Seconds without a byte after which a connection that is followed is taken for dead: a log, which may have nothing to
#: say for long, and a watch, in which a server says each minute how far it is (seen: 59 to 61 s, for all kinds).
SILENCE, QUIET = 330.0, 150.0

#: The server's own limit of a watch, in seconds, after which it is begun again.
WATCH = 300

#: Objects of one page of a list.
PAGE = 500

#: Times that a question is asked where the server is away or busy, and seconds between, doubling, with jitter.
TRIES, PAUSE, LONGEST = 4, 0.5, 30.0

_BODIES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Client:
    """Made without asking anything; the first request loads the credentials."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._pool: _Pool | None = None
        self._opening = asyncio.Lock()
        self._answered = False

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.session.close()
            self._pool = None

    # -- objects -----------------------------------------------------------------------------------------------

    async def get(self, path: str, **query: str | int) -> dict[str, Any]:
        return await self._json("GET", path, query)

    async def create(self, path: str, body: Mapping[str, Any], **query: str | int) -> dict[str, Any]:
        """Not asked again where the answer is lost: an object may have been made by then."""
        return await self._json("POST", path, query, body)

    async def patch(
        self, path: str, body: Any, kind: Literal["merge", "json", "apply"] = "merge", **query: str | int
    ) -> dict[str, Any]:
        return await self._json("PATCH", path, query, body, _BODIES[kind])

    async def delete(self, path: str, body: Mapping[str, Any] | None = None, **query: str | int) -> dict[str, Any]:
        return await self._json("DELETE", path, query, body)

    async def list(
        self, path: str, *, labels: str = "", fields: str = "", limit: int = PAGE
    ) -> AsyncIterator[dict[str, Any]]:
        """The pages of a list, each as the server sends it."""
        query: dict[str, str | int] = {
            "limit": limit,
            **({"labelSelector": labels} if labels else {}),
            **({"fieldSelector": fields} if fields else {}),
        }
        while True:
            page = await self._json("GET", path, query)
            yield page
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                return
            query["continue"] = more

    async def watch(self, path: str, *, labels: str = "") -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """What there is and what becomes of it, for ever: ``("LISTED", list)``, then ``("ADDED" | "MODIFIED" |
        "DELETED", object)``. After a break it goes on where it was; where the server has forgotten that, the list comes
        again, and who listens compares.

        Raises what the server refuses.
        """
        pauses = Pauses()
        version = ""
        while True:
            began = time.monotonic()
            try:
                if not version:
                    items: list[dict[str, Any]] = []
                    async for page in self.list(path, labels=labels):
                        items += page.get("items") or []
                        version = page["metadata"]["resourceVersion"]
                    yield "LISTED", {"items": items}
                async with aclosing(self._changes(path, labels, version)) as changes:
                    async for kind, thing in changes:
                        version = thing["metadata"]["resourceVersion"]
                        pauses.reset()
                        if kind != "BOOKMARK":
                            yield kind, thing
            except ApiError as error:
                if error.status == 410:
                    version = ""
                elif error.status != 429 and error.status < 500:
                    raise
            except Unreachable:
                pass
            if time.monotonic() - began < WATCH - LONGEST:  # the server's own end of a watch needs no rest
                await pauses.rest()

    async def _changes(self, path: str, labels: str, version: str) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """One watch from ``version`` on, to its end."""
        query: dict[str, str | int] = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": WATCH,
            **({"labelSelector": labels} if labels else {}),
        }
        rest = b""
        async with aclosing(self.stream(path, query, QUIET)) as chunks:
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise explain(int(status.get("code") or 500), json.dumps(status).encode(), "Following it")
                    yield event["type"], event["object"]

    async def stream(
        self, path: str, query: Mapping[str, str | int], silence: float = SILENCE
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of an answer as they come, until the server ends it. Tried once: who follows knows where to go on.

        Raises ``Unreachable`` for a connection that breaks, or that is silent for ``silence`` seconds.
        """
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=silence)
        try:
            async with self._answer("GET", path, query, None, "", timeout) as answer:
                async for chunk in answer.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise self._unreachable(error) from None

    # -- requests ----------------------------------------------------------------------------------------------

    async def _json(
        self, method: str, path: str, query: Mapping[str, str | int], body: Any = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        import aiohttp

        pauses, began = Pauses(), time.monotonic()
        for left in range(TRIES - 1, -1, -1):
            seconds = READ if self._answered else CONNECT
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=seconds)
            try:
                async with self._answer(method, path, query, body, kind, timeout) as answer:
                    told: dict[str, Any] = json.loads(await answer.read())
                    return told
            except ApiError as error:
                # 429: it was not done, and may be asked again whatever it was
                if not left or not (error.status == 429 or (error.status >= 500 and method == "GET")):
                    raise
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                # nothing was asked yet: for as long as one may wait for a server, it may be on its way back
                if not left or not self._answered or time.monotonic() - began >= CONNECT:
                    raise self._unreachable(error) from None
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                if not left or not self._answered or method == "POST":
                    raise self._unreachable(error) from None
            await pauses.rest()
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int],
        body: Any,
        kind: str,
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful answer. Credentials that are out of date are loaded once more. Raises ``ApiError``."""
        refused: _Pool | None = None
        while True:
            pool = await self._open(refused)
            pool.users += 1
            try:
                headers = {"Accept": "application/json", **({"Content-Type": kind} if body is not None else {})}
                token = (await pool.configuration.auth_settings()).get("BearerToken")
                if token is not None:
                    headers["Authorization"] = token["value"] or ""
                async with pool.session.request(
                    method,
                    pool.configuration.host + path,
                    params=dict(query),
                    data=None if body is None else json.dumps(body),
                    headers=headers,
                    timeout=timeout,
                    proxy=pool.configuration.proxy,
                    server_hostname=pool.configuration.tls_server_name or None,
                ) as answer:
                    self._answered = True
                    if answer.status == 401 and refused is None:
                        refused = pool
                        continue
                    if answer.status >= 400:
                        error = explain(answer.status, await answer.read(), f"{_VERBS[method]} {_resource(path)}")
                        if answer.status == 429:
                            await asyncio.sleep(_retry_after(answer.headers.get("Retry-After")))
                        raise error
                    yield answer
                    return
            finally:
                pool.users -= 1
                if not pool.users and pool is not self._pool:
                    await pool.session.close()

    async def _open(self, refused: _Pool | None = None) -> _Pool:
        """The connections of now; new ones under credentials loaded anew where those are the ones that were refused.

        What is being read over the old ones is read to its end.
        """
        async with self._opening:
            if self._pool is None or self._pool is refused:
                import aiohttp
                from kubernetes.aio.client.rest import RESTClientObject

                configuration = await self.access.configuration()
                self._pool = _Pool(
                    configuration,
                    aiohttp.ClientSession(
                        connector=aiohttp.TCPConnector(ssl=RESTClientObject(configuration).ssl_context, limit=0),
                        headers={"User-Agent": f"kfnb/{_version()}"},
                        read_bufsize=1 << 20,
                        trust_env=True,
                    ),
                )
            return self._pool

    def _unreachable(self, error: BaseException) -> Unreachable:
        host = self._pool.configuration.host if self._pool is not None else "the API server"
        return Unreachable(
            f"The cluster does not answer ({self.access.how}).",
            f"{host}: {str(error) or type(error).__name__}",
            "See that `kubectl get pods` works, or run on this machine: --backend local.",
        )


@dataclass
class _Pool:
    """Connections under one set of credentials, and how many requests use them."""

    configuration: Configuration
    session: aiohttp.ClientSession
    users: int = 0


class Pauses:
    """Ever longer rests between attempts, with jitter: not all clients of a server that comes back at once."""

    def __init__(self) -> None:
        self._next = PAUSE

    def reset(self) -> None:
        self._next = PAUSE

    async def rest(self) -> None:
        pause, self._next = self._next, min(2 * self._next, LONGEST)
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))


_VERBS = {"GET": "Reading", "POST": "Making", "PATCH": "Changing", "DELETE": "Deleting"}


def _resource(path: str) -> str:
    """``pods of team-a``: what a path is about, for a sentence."""
    parts = path.strip("/").split("/")
    if "namespaces" in parts and len(parts) > parts.index("namespaces") + 2:
        at = parts.index("namespaces")
        return f"{'/'.join(parts[at + 2 :])} in {parts[at + 1]}"
    return parts[-1]


def _retry_after(text: str | None) -> float:
    return min(float(text), LONGEST) if text and text.isdigit() else 0.0


def _version() -> str:
    try:
        return metadata.version("kfnb")
    except metadata.PackageNotFoundError:  # the sources, used as they are
        return "0"

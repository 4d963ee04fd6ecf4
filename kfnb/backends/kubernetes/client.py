"""An asynchronous client of one API server: plain dicts and paths, one pool of connections.

Credentials and TLS are the official client's (``kubernetes.aio``): its generated models are left out, since what comes
is as it comes. To be used on the portal's loop.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from kfnb.backends.kubernetes.access import Access
from kfnb.backends.kubernetes.errors import ApiError, Unreachable, explain

if TYPE_CHECKING:
    import aiohttp
    from kubernetes.aio.client import Configuration

#: Seconds to connect, and those between two parts of an answer that is read as a whole.
CONNECT, READ = 3.0, 30.0

#: Seconds without a byte after which a connection that is followed is taken for dead, and the server's own limit of a
#: watch, after which it is begun again.
SILENCE, WATCH = 330.0, 300

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
        self._configuration: Configuration | None = None
        self._session: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

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

    async def list(self, path: str, *, labels: str = "", limit: int = PAGE) -> AsyncIterator[dict[str, Any]]:
        """The pages of a list, each as the server sends it."""
        query: dict[str, str | int] = {"limit": limit, **({"labelSelector": labels} if labels else {})}
        while True:
            page = await self._json("GET", path, query)
            yield page
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                return
            query["continue"] = more

    async def watch(self, path: str, *, labels: str = "") -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """What there is and what becomes of it, for ever: ``("LISTED", list)``, then ``("ADDED" | "MODIFIED" |
        "DELETED", object)``. After a break of any kind the list comes again, and who listens compares.

        Raises what the server refuses.
        """
        pauses = Pauses()
        while True:
            items: list[dict[str, Any]] = []
            version = ""
            try:
                async for page in self.list(path, labels=labels):
                    items += page.get("items") or []
                    version = page["metadata"]["resourceVersion"]
                yield "LISTED", {"items": items}
                async for kind, thing in self._changes(path, labels, version):
                    pauses.reset()
                    yield kind, thing
            except (ApiError, Unreachable) as error:
                if isinstance(error, ApiError) and error.status not in (410, 429) and error.status < 500:
                    raise
            await pauses.rest()

    async def _changes(self, path: str, labels: str, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """One watch after the other, from where the last one ended, until the server has forgotten that."""
        while True:
            query: dict[str, str | int] = {
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": version,
                "timeoutSeconds": WATCH,
                **({"labelSelector": labels} if labels else {}),
            }
            rest = b""
            async for chunk in self.stream(path, query):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    kind, thing = event["type"], event["object"]
                    if kind == "ERROR":
                        raise explain(int(thing.get("code") or 500), json.dumps(thing).encode(), "Following it")
                    version = thing["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        yield kind, thing

    async def stream(self, path: str, query: Mapping[str, str | int]) -> AsyncIterator[bytes]:
        """The bytes of an answer as they come. It ends where the server ends it; a connection that breaks, or is silent
        for ``SILENCE``, raises ``Unreachable``. The first attempt only: whoever follows knows where to go on."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=SILENCE)
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

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=READ)
        pauses = Pauses()
        for left in range(TRIES - 1, -1, -1):
            try:
                async with self._answer(method, path, query, body, kind, timeout) as answer:
                    told: dict[str, Any] = json.loads(await answer.read())
                    return told
            except ApiError as error:
                # 429: it was not done, and may be asked again whatever it was
                if not left or not (error.status == 429 or (error.status >= 500 and method == "GET")):
                    raise
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                if not left or method == "POST" or isinstance(error, aiohttp.ClientConnectorError):
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
        for again in (False, True):
            session, configuration = await self._open(anew=again)
            headers = {"Accept": "application/json", **({"Content-Type": kind} if body is not None else {})}
            token = (await configuration.auth_settings()).get("BearerToken")
            if token is not None:
                headers["Authorization"] = token["value"] or ""
            async with session.request(
                method,
                configuration.host + path,
                params=dict(query),
                data=None if body is None else json.dumps(body),
                headers=headers,
                timeout=timeout,
                proxy=configuration.proxy,
                server_hostname=configuration.tls_server_name or None,
            ) as answer:
                if answer.status == 401 and not again:
                    continue
                if answer.status >= 400:
                    error = explain(answer.status, await answer.read(), f"{_VERBS[method]} {_resource(path)}")
                    if answer.status == 429:
                        await asyncio.sleep(_retry_after(answer.headers.get("Retry-After")))
                    raise error
                yield answer
                return

    async def _open(self, *, anew: bool = False) -> tuple[aiohttp.ClientSession, Configuration]:
        async with self._opening:
            if anew:
                await self.close()
            if self._session is None or self._configuration is None:
                import aiohttp
                from kubernetes.aio.client.rest import RESTClientObject

                self._configuration = await self.access.configuration()
                tls = RESTClientObject(self._configuration).ssl_context
                self._session = aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(ssl=tls, limit=0),
                    headers={"User-Agent": f"kfnb/{_version()}"},
                    read_bufsize=1 << 20,
                    trust_env=True,
                )
            return self._session, self._configuration

    def _unreachable(self, error: BaseException) -> Unreachable:
        host = self._configuration.host if self._configuration is not None else "the API server"
        return Unreachable(
            f"The cluster does not answer ({self.access.how}).",
            f"{host}: {str(error) or type(error).__name__}",
            "See that `kubectl get pods` works, or run on this machine: --backend local.",
        )


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

"""The client and its reflectors against a server of the test's own, which does what a healthy API server does not."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp.test_utils
import pytest
from aiohttp import web

from kfnb.backends.kubernetes import client as under_test
from kfnb.backends.kubernetes import reflector as reflectors
from kfnb.backends.kubernetes.access import Access, find
from kfnb.backends.kubernetes.client import Client
from kfnb.backends.kubernetes.errors import ApiError, Unreachable
from kfnb.backends.kubernetes.reflector import reflector
from tests.waiting import wait_for

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[Client]]

PODS = "/api/v1/namespaces/there/pods"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "PAUSE", 0.01)


def kubeconfig(path: Path, port: int, token: str) -> Access:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "there"}}],
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "test", "user": {"token": token}}],
    }
    path.write_text(json.dumps(config))
    access = find(file=str(path))
    assert access is not None
    return access


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    running: list[Any] = []

    async def start(handler: Handler) -> Client:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handler)
        server = aiohttp.test_utils.TestServer(application)
        await server.start_server()
        client = Client(kubeconfig(tmp_path / "kubeconfig", server.port or 0, "first"))
        running.extend([client, server])
        return client

    yield start
    for one in running:
        await one.close()


def status(code: int, **more: Any) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": f"it is {code}"}, status=code, **more)


async def test_it_says_who_it_is(serve: Serve) -> None:
    seen: dict[str, str] = {}

    async def handler(request: web.Request) -> web.Response:
        seen.update(request.headers)
        return web.json_response({})

    await (await serve(handler)).get(PODS)
    assert seen["User-Agent"].startswith("kfnb/")
    assert seen["Authorization"] == "Bearer first"


@pytest.mark.parametrize("method", ["get", "create", "patch", "delete"])
async def test_too_many_requests_are_asked_again_when_the_server_says(serve: Serve, method: str) -> None:
    times: list[float] = []

    async def handler(_: web.Request) -> web.Response:
        times.append(time.monotonic())
        return status(429, headers={"Retry-After": "1"}) if len(times) == 1 else web.json_response({"done": True})

    client = await serve(handler)
    body = () if method in ("get", "delete") else ({},)
    assert await getattr(client, method)(PODS, *body) == {"done": True}
    assert times[1] - times[0] >= 1


@pytest.mark.parametrize(("method", "asked"), [("get", under_test.TRIES), ("create", 1)])
async def test_what_may_have_been_done_is_not_asked_again(serve: Serve, method: str, asked: int) -> None:
    requests: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        requests.append(request.method)
        return status(503)

    client = await serve(handler)
    with pytest.raises(ApiError, match="it is 503") as caught:
        await getattr(client, method)(PODS, *([{}] if method == "create" else []))
    assert caught.value.status == 503
    assert len(requests) == asked


async def test_credentials_that_are_out_of_date_are_loaded_once_for_all(serve: Serve, tmp_path: Path) -> None:
    """While the requests of before go on, and what is being read is not cut."""
    valid, sent, opened = "first", asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] != f"Bearer {valid}":
            return status(401)
        if request.path != "/log":
            return web.json_response({"who": request.headers["Authorization"]})
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"before ")
        opened.set()
        await sent.wait()
        await answer.write(b"after")
        return answer

    client = await serve(handler)

    async def read() -> bytes:
        return b"".join([chunk async for chunk in client.stream("/log", {})])

    reading = asyncio.create_task(read())
    await opened.wait()
    valid = "second"
    file = tmp_path / "kubeconfig"
    file.write_text(file.read_text().replace("first", "second"))
    answers = await asyncio.gather(*(client.get(PODS) for _ in range(20)))
    assert {answer["who"] for answer in answers} == {"Bearer second"}
    sent.set()
    assert await reading == b"before after"


async def test_credentials_that_stay_refused_are_said(serve: Serve) -> None:
    async def handler(_: web.Request) -> web.Response:
        return status(401)

    client = await serve(handler)
    with pytest.raises(ApiError, match="does not know who you are"):
        await client.get(PODS)


async def test_a_server_that_takes_the_connection_and_is_silent_is_not_waited_for(serve: Serve) -> None:
    closed = asyncio.Event()

    async def handler(_: web.Request) -> web.Response:
        await closed.wait()
        return web.json_response({})

    client = await serve(handler)
    began = time.monotonic()
    with pytest.raises(Unreachable, match="--backend local"):
        await client.get("/apis")
    assert time.monotonic() - began < under_test.CONNECT + 1
    closed.set()


async def test_a_server_that_is_not_there_is_said_at_once(tmp_path: Path, unused_port: int) -> None:
    client = Client(kubeconfig(tmp_path / "kubeconfig", unused_port, "none"))
    began = time.monotonic()
    with pytest.raises(Unreachable, match="--backend local"):
        await client.get("/apis")
    assert time.monotonic() - began < 1
    await client.close()


@pytest.fixture
def unused_port() -> int:
    return aiohttp.test_utils.unused_port()


def event(kind: str, name: str, version: int) -> bytes:
    thing = {"kind": "Pod", "metadata": {"name": name, "resourceVersion": str(version)}}
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


async def test_a_watch_goes_on_where_it_was_and_lists_again_only_where_that_is_forgotten(serve: Serve) -> None:
    """One that is cut in the middle of a line, one that the server ends, one whose version is gone."""
    expired = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
    watches = [
        [event("ADDED", "a", 11), event("BOOKMARK", "", 15), event("ADDED", "never", 16)[:20]],
        [event("MODIFIED", "a", 17)],
        [json.dumps(expired).encode() + b"\n"],
        [event("DELETED", "a", 31)],
    ]
    asked: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            asked.append("list")
            last = "continue" in request.query
            version = "30" if asked.count("list") > 2 else "10"
            more = {} if last else {"continue": "page2"}
            item = {"metadata": {"name": "p2" if last else "p1"}}
            return web.json_response({"metadata": {"resourceVersion": version, **more}, "items": [item]})
        asked.append(request.query["resourceVersion"])
        answer = web.StreamResponse()
        await answer.prepare(request)
        for part in watches.pop(0):
            await answer.write(part)
        return answer

    seen: list[tuple[str, Any]] = []
    async for kind, thing in (await serve(handler)).watch(PODS):
        names = [item["metadata"]["name"] for item in thing["items"]] if kind == "LISTED" else thing["metadata"]["name"]
        seen.append((kind, names))
        if kind == "DELETED":
            break
    both = ("LISTED", ["p1", "p2"])
    assert seen == [both, ("ADDED", "a"), ("MODIFIED", "a"), both, ("DELETED", "a")]
    assert asked == ["list", "list", "10", "15", "17", "list", "list", "30"]


async def test_a_watch_that_is_silent_for_long_is_begun_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over a connection whose other end has gone without a word."""
    monkeypatch.setattr(under_test, "QUIET", 0.2)
    there = Collection("a")
    changes = (await serve(there.serve)).watch(PODS)
    assert told(await anext(changes)) == ("LISTED", ["a"])
    next_change = asyncio.ensure_future(anext(changes))
    await asyncio.to_thread(wait_for, lambda: there.watches >= 3, timeout=10, what="the third watch")
    while not next_change.done():
        there.changes.put_nowait(event("ADDED", "b", 12))
        await asyncio.wait([next_change], timeout=0.1)
    assert told(await next_change) == ("ADDED", "b")
    assert there.lists == 1
    await changes.aclose()


async def test_a_watch_without_the_right_to_it_says_so(serve: Serve) -> None:
    async def handler(_: web.Request) -> web.Response:
        return status(403)

    with pytest.raises(ApiError, match="it is 403"):
        async for _ in (await serve(handler)).watch(PODS):
            pass


class Collection:
    """Objects and the changes to come, served as lists and watches; ``forgotten`` ends a watch as too old."""

    def __init__(self, *objects: str) -> None:
        self.objects = dict.fromkeys(objects, "1")
        self.changes: asyncio.Queue[bytes] = asyncio.Queue()
        self.lists = self.watches = 0
        self.watching: set[int] = set()

    def forgotten(self) -> None:
        expired = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
        self.changes.put_nowait(json.dumps(expired).encode() + b"\n")

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.lists += 1
            items = [
                {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": version}}
                for name, version in self.objects.items()
            ]
            return web.json_response({"metadata": {"resourceVersion": "9"}, "items": items})
        self.watches += 1
        number = self.watches
        self.watching.add(number)
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            while True:
                await answer.write(await self.changes.get())
        finally:
            self.watching.discard(number)


def told(change: tuple[str, Any]) -> tuple[str, Any]:
    kind, thing = change
    names = [item["metadata"]["name"] for item in thing["items"]] if kind == "LISTED" else thing["metadata"]["name"]
    return kind, names


async def test_all_users_share_one_watch_and_hear_of_what_they_missed(serve: Serve) -> None:
    there = Collection("a", "b", "c")
    client = await serve(there.serve)
    first, second = (reflector(client, PODS).changes() for _ in range(2))
    assert told(await anext(first)) == told(await anext(second)) == ("LISTED", ["a", "b", "c"])
    there.objects = {"a": "1", "b": "2", "d": "1"}
    there.forgotten()
    for user in (first, second):
        changes = [told(await anext(user)) for _ in range(3)]
        assert changes == [("DELETED", "c"), ("MODIFIED", "b"), ("ADDED", "d")]
    third = reflector(client, PODS).changes()  # who comes later has all at once
    assert told(await anext(third)) == ("LISTED", ["a", "b", "d"])
    assert there.lists == 2
    for user in (first, second, third):
        await user.aclose()


async def test_a_watch_ends_a_while_after_its_last_user(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Collection("a")
    client = await serve(there.serve)
    user = reflector(client, PODS).changes()
    await anext(user)
    await user.aclose()
    again = reflector(client, PODS).changes()
    assert told(await anext(again)) == ("LISTED", ["a"])
    assert there.lists == 1  # it was still there
    await asyncio.to_thread(wait_for, lambda: there.watching, timeout=10, what="the watch")
    monkeypatch.setattr(reflectors, "LINGER", 0.01)
    await again.aclose()

    await asyncio.to_thread(wait_for, lambda: not there.watching, timeout=10, what="the watch to end")
    anew = reflector(client, PODS).changes()
    assert told(await anext(anew)) == ("LISTED", ["a"])
    assert there.lists == 2
    await anew.aclose()


async def test_every_user_is_told_what_the_server_refuses_and_may_try_again(serve: Serve) -> None:
    there = Collection("a")
    allowed = False

    async def handler(request: web.Request) -> web.StreamResponse:
        return await there.serve(request) if allowed else status(403)

    client = await serve(handler)
    users = [reflector(client, PODS).changes() for _ in range(2)]
    told_both = await asyncio.gather(*(anext(user) for user in users), return_exceptions=True)
    assert [getattr(error, "status", None) for error in told_both] == [403, 403]
    allowed = True
    again = reflector(client, PODS).changes()
    assert told(await anext(again)) == ("LISTED", ["a"])
    await again.aclose()

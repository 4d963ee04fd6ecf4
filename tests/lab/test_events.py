"""The socket by which pages follow jobs: of real jobs, and against what a page should never send."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from tornado.httpclient import HTTPClientError

from kfnb.labserver import events
from tests.local.jobs import detached

PRINTS = "import time\nfor i in range(50):\n    print('line', i, flush=True)\ntime.sleep(600)\n"
QUICK = "print('done')\n"


async def test_a_foreign_page_is_refused_though_it_has_a_token(jp_ws_fetch):
    with pytest.raises(HTTPClientError) as refused:
        await jp_ws_fetch("kfnb", "api", "events", headers={"Origin": "https://evil.example"})
    assert refused.value.code == 403


async def test_a_page_of_this_server_is_served(jp_ws_fetch, jp_http_port):
    socket = await jp_ws_fetch("kfnb", "api", "events", headers={"Origin": f"http://localhost:{jp_http_port}"})
    socket.close()


async def test_a_job_is_followed_and_stopped(open_page):
    job = await asyncio.to_thread(detached, PRINTS, framework="python")
    page = await open_page()
    await page.hello("1", job.id)
    _, message, buffers = await page.until("snapshot", "1")
    assert (message["to"], message["head"]["id"]) == ("page", job.id)
    texts = buffers[0].decode().split("\n") if message["log"]["count"] else []
    while "line 49" not in texts:
        _, message, buffers = await page.until("batch", "1")
        await page.send(channel="1", message={"type": "ack", "n": message["n"]})
        texts += buffers[0].decode().split("\n") if "log" in message else []
    assert [text for text in texts if text.startswith("line")] == [f"line {i}" for i in range(50)]

    # a second view of the page, and of another page
    await page.hello("2", job.id, "other")
    assert (await page.until("snapshot", "2"))[1]["to"] == "other"
    elsewhere = await open_page()
    await elsewhere.hello("1", job.id)
    await elsewhere.until("snapshot")
    await page.send(channel="2", message={"type": "bye", "client": "other"})

    _, reply, _ = await page.call("1", "stop")
    assert reply["ok"]
    for view in (page, elsewhere):
        phase = ""
        while phase != "Stopped":
            name, message, _ = await view.until("batch")
            assert name == "1"
            await view.send(channel=name, message={"type": "ack", "n": message["n"]})
            phase = message.get("head", {}).get("phase", phase)
        view.socket.close()


@pytest.mark.parametrize("id", ["unknown-abcde", "../../etc", None, 7, {"a": 1}, "\ud800", ""])
async def test_an_unknown_job_is_gone(open_page, id):
    page = await open_page()
    await page.hello("1", id)
    name, message, _ = await page.until("gone")
    assert (name, set(message)) == ("1", {"type", "what", "why", "fix"})
    page.socket.close()


HOSTILE = [
    "",
    "not json",
    "[]",
    "7",
    "null",
    "{}",
    "[" * 100_000,
    b"\x00\x01binary",
    json.dumps({"channel": "1"}),
    json.dumps({"channel": "1", "message": []}),
    json.dumps({"channel": 7, "message": {"type": "hello"}}),
    json.dumps({"channel": "x" * 1_000, "message": {"type": "hello"}}),
    json.dumps({"channel": "\ud800", "message": {"type": "hello"}}),
    json.dumps({"channel": "unopened", "message": {"type": "ack", "n": 1}}),
    json.dumps({"channel": "unopened", "message": {"type": ["hello"]}}),
    json.dumps({"channel": "open", "message": {"type": {}}}),
    json.dumps({"channel": "open", "message": {"type": "ack", "n": float("nan")}}),
    json.dumps({"channel": "open", "message": {"type": "hello", "client": 5, "version": []}}),
    json.dumps({"channel": "open", "message": {"type": "call", "id": [], "client": {}, "method": 1}}),
    json.dumps({"channel": "open", "job": "another-abcde", "message": {"type": "resend", "from": -1, "to": 1e308}}),
]


async def test_whatever_comes_the_socket_serves_on(open_page, caplog):
    job = await asyncio.to_thread(detached, QUICK, framework="python")
    page = await open_page()
    await page.hello("open", job.id)
    await page.until("snapshot")
    with caplog.at_level(logging.WARNING):
        for frame in HOSTILE:
            await page.socket.write_message(frame, binary=isinstance(frame, bytes))
        _, reply, _ = await page.call("open", "no such method")
        assert not reply["ok"]
        assert set(reply["error"]) == {"what", "why", "fix"}
        _, reply, _ = await page.call("open", "script")
        assert "print('done')" in reply["result"]["text"]
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    page.socket.close()


async def test_what_cannot_be_used_is_said(open_page):
    page = await open_page()
    await page.socket.write_message("nonsense")
    assert (await page.read())[:2] == (
        "",
        {"type": "error", "what": "What the page sent cannot be used.", "why": "", "fix": "Reload the page."},
    )
    page.socket.close()


async def test_a_page_follows_so_many_jobs_and_no_more(open_page, monkeypatch):
    monkeypatch.setattr(events, "CHANNELS", 2)
    job = await asyncio.to_thread(detached, QUICK, framework="python")
    page = await open_page()
    for name in "12":
        await page.hello(name, job.id)
        await page.until("snapshot", name)
    await page.hello("3", job.id)
    assert "no more" in (await page.until("gone", "3"))[1]["why"]
    await page.send(channel="1", message={"type": "bye"})
    await page.hello("3", job.id)
    await page.until("snapshot", "3")
    page.socket.close()


async def test_a_message_that_is_too_long_ends_the_socket(open_page):
    page = await open_page()
    await page.socket.write_message(json.dumps({"channel": "1", "message": {"type": "x" * events.MESSAGE}}))
    assert await page.closed() == 1009


async def test_a_page_that_does_not_read_is_left(open_page, monkeypatch):
    monkeypatch.setattr(events, "WAITING", -1)
    page = await open_page()
    await page.socket.write_message("nonsense")
    assert await page.closed() == 1008


@pytest.fixture
def reader_only(jp_server_config):
    from jupyter_server.auth import Authorizer

    class ReadersOnly(Authorizer):
        def is_authorized(self, handler, user, action, resource):
            return action == "read"

    jp_server_config.ServerApp.authorizer_class = ReadersOnly


async def test_who_may_only_read_can_look_and_not_stop(reader_only, open_page, jp_fetch):
    job = await asyncio.to_thread(detached, QUICK, framework="python")
    page = await open_page()
    await page.hello("1", job.id)
    await page.until("snapshot")
    for method in ("stop", "again"):
        _, reply, _ = await page.call("1", method)
        assert "not allowed" in reply["error"]["what"]
    page.socket.close()
    with pytest.raises(HTTPClientError) as refused:
        await jp_fetch("kfnb", "api", "jobs", job.id, "stop", method="POST", body="")
    assert refused.value.code == 403

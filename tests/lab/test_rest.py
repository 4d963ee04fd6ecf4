"""Who may ask the server about jobs, and what it answers."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys

import pytest
from tornado.httpclient import HTTPClientError

from kfnb import portal
from kfnb.events import Phase
from tests.local.jobs import detached

ROUTES = [
    ("GET", "status"),
    ("GET", "jobs/some-abcde"),
    ("POST", "jobs/some-abcde/stop"),
    ("GET", "events"),
]
SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_credentials_are_asked_for(jp_fetch, method, path):
    body = "" if method == "POST" else None
    with pytest.raises(HTTPClientError) as refused:
        await jp_fetch("kfnb", "api", *path.split("/"), method=method, body=body, headers={"Authorization": "none"})
    assert refused.value.code == 403


async def test_status(jp_fetch):
    answer = json.loads((await jp_fetch("kfnb", "api", "status")).body)
    assert list(answer) == ["version"]
    assert answer["version"] is None or re.fullmatch(r"\d+\.\d+\.\d+.*", answer["version"])


@pytest.mark.parametrize("id", ["unknown-abcde", "%2e%2e", "..%2F..%2Fetc", "A" * 200, "%00"])
@pytest.mark.parametrize("stop", [False, True])
async def test_an_unknown_job_is_told_in_three_parts(
    jp_serverapp, http_server_client, jp_base_url, jp_auth_header, id, stop
):
    # not by jp_fetch, which escapes once more
    url = f"{jp_base_url}kfnb/api/jobs/{id}" + ("/stop" if stop else "")
    options = {"method": "POST", "body": ""} if stop else {}
    with pytest.raises(HTTPClientError) as refused:
        await http_server_client.fetch(url, headers=jp_auth_header, **options)
    assert refused.value.code == 404
    answer = json.loads(refused.value.response.body)
    assert set(answer) == {"message", "what", "why", "fix"}
    assert "no" in answer["what"]


async def test_a_job_is_told_and_stopped(jp_fetch):
    job = await asyncio.to_thread(detached, SLEEP, framework="python")
    answer = json.loads((await jp_fetch("kfnb", "api", "jobs", job.id)).body)
    assert (answer["id"], answer["procs"]) == (job.id, 1)
    answer = json.loads((await jp_fetch("kfnb", "api", "jobs", job.id, "stop", method="POST", body="")).body)
    assert answer["phase"] in {str(phase) for phase in Phase}
    with pytest.raises(Exception, match="stopped"):
        await portal.wait(job.await_end(60))
    assert (await portal.wait(job.ainfo())).phase is Phase.STOPPED


async def test_a_cookie_alone_stops_nothing(jp_serverapp, jp_fetch, jp_auth_header):
    """As another site's form would send it: with the cookies, and without the header that only our pages set."""
    signed_in = await jp_fetch("api", "me")
    cookies = [cookie.split(";")[0] for cookie in signed_in.headers.get_list("Set-Cookie")]
    assert any(cookie.startswith("username-") for cookie in cookies)
    headers = {"Authorization": "none", "Cookie": "; ".join(cookies)}
    assert (await jp_fetch("kfnb", "api", "status", headers=dict(headers))).code == 200
    with pytest.raises(HTTPClientError) as refused:
        await jp_fetch("kfnb", "api", "jobs", "some-abcde", "stop", method="POST", body="", headers=headers)
    assert refused.value.code == 403
    assert "_xsrf" in refused.value.response.body.decode()


def test_loading_it_imports_nothing_heavy():
    program = (
        "import sys, kfnb.labserver\n"
        "print([name for name in ('numpy', 'pydantic', 'torch', 'IPython', 'anywidget', 'matplotlib', 'kfnb.views')"
        " if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"

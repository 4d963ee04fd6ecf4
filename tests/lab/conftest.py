"""A Jupyter server in this process, with kfnb's part of it and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pytest_jupyter import jupyter_server
from traitlets.config import Config

from tests.lab.page import Page
from tests.local.conftest import no_orphans  # noqa: F401

# Its fixtures and not the plugin as a whole, which would run every coroutine test of the suite in its own way.
globals().update(
    {name: value for name, value in vars(jupyter_server).items() if name.startswith(("jp_", "http_", "echo_"))}
)


@pytest.fixture
async def jp_asyncio_loop() -> asyncio.AbstractEventLoop:
    """The server runs on the test's own loop."""
    return asyncio.get_running_loop()


@pytest.fixture
def jp_server_config() -> Config:
    # as a careful administrator has it: what forgets to ask for credentials is refused
    server = {"jpserver_extensions": {"kfnb.labserver": True}, "allow_unauthenticated_access": False}
    return Config({"ServerApp": server})


@pytest.fixture
def open_page(jp_ws_fetch: Callable[..., Awaitable[Any]]) -> Callable[[], Awaitable[Page]]:
    async def connect() -> Page:
        return Page(await jp_ws_fetch("kfnb", "api", "events"))

    return connect

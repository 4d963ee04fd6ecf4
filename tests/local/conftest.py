"""Tests with real processes: none may be left when a test ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.local.kernels import Kernel
from tests.processes import processes_of
from tests.waiting import wait_for


@pytest.fixture(autouse=True)
def no_orphans(home: Path) -> Iterator[None]:
    """Fails a test that leaves a process behind, once it had time to end, and ends what is left."""
    yield
    try:
        wait_for(lambda: not processes_of(home), timeout=30, what="this test's processes to end")
    except AssertionError:
        names = []
        for process in processes_of(home):
            with contextlib.suppress(psutil.NoSuchProcess):
                names.append(f"  {process.pid} {' '.join(process.cmdline())[:200]}")
                process.kill()
        pytest.fail("\n".join(["processes left behind:", *names]), pytrace=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a module's own kernel lives."""
    return tmp_path_factory.mktemp("kernel")


@pytest.fixture(scope="module")
def kernel(folder: Path) -> Iterator[Kernel]:
    """One kernel for most tests of a module."""
    kernel = Kernel(folder / "home", folder)
    try:
        kernel.ok("%load_ext kfnb")
        yield kernel
    finally:
        kernel.close()
    wait_for(lambda: not processes_of(folder / "home"), timeout=60, what="the kernel's jobs to end")


@pytest.fixture
def start_kernel(home: Path, tmp_path: Path) -> Iterator[Callable[..., Kernel]]:
    """Kernels of this test alone."""
    kernels: list[Kernel] = []

    def start(**options: bool) -> Kernel:
        kernels.append(Kernel(home, tmp_path, **options))
        kernels[-1].ok("%load_ext kfnb")
        return kernels[-1]

    yield start
    for kernel in kernels:
        kernel.close()

"""What all tests share: a home of their own, and skips that CI can forbid."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

NO_SKIP = os.environ.get("KFNB_TEST_NO_SKIP") == "1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$KFNB_HOME of this test alone, and no KFNB_* setting of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith("KFNB_") and not name.startswith("KFNB_TEST_"):
            monkeypatch.delenv(name)
    path = tmp_path / "kfnb-home"
    monkeypatch.setenv("KFNB_HOME", str(path))
    return path


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, which KFNB_TEST_NO_SKIP=1 forbids: {why}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    _forbid_skip(report)
    return report

"""Jobs of a test: started, waited for, and gone without a trace."""

from __future__ import annotations

import os

import psutil

import kfnb
from tests.waiting import wait_for


def processes_of(job_id: str) -> list[psutil.Process]:
    """Everything alive that belongs to the job: its supervisor and workers by argument, its ranks by environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            if job_id in " ".join(process.cmdline()) or process.environ().get("KFNB_JOB") == job_id:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def assert_nothing_runs(job_id: str, timeout: float = 30) -> None:
    wait_for(lambda: not processes_of(job_id), timeout=timeout, what=f"no process of {job_id}")


def detached(code: str, **options: object) -> kfnb.Job:
    return kfnb.train(code, detach=True, **options)


def wait_for_line(job: kfnb.Job, text: str, timeout: float = 60) -> None:
    wait_for(
        lambda: any(text in line.text for line in job.logs()) or job.phase.terminal,
        timeout=timeout,
        what=f"the line {text!r}",
    )
    assert any(text in line.text for line in job.logs()), f"{job.id} is {job.info}; its log has no {text!r}"

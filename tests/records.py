"""A record as a submission stores it, for tests that make a run directory by hand."""

from __future__ import annotations

from kfnb.backends.local.rundir import RunDir, write_atomic
from kfnb.record import Record
from kfnb.spec import TrainSpec


def write_record(run: RunDir, *, first_line: int = 1) -> None:
    record = Record(
        id=run.id,
        spec=TrainSpec(name="job"),
        created=1.0,
        owner="user",
        host="host",
        workdir="/",
        bundle_sha256="",
        code="",
        first_line=first_line,
    )
    write_atomic(run.record, record.model_dump_json().encode())

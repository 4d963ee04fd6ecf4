"""A submission as the magics make it, for tests of what becomes of it."""

from __future__ import annotations

from typing import Any

from kfnb.backends.base import Submission
from kfnb.record import Record
from kfnb.source import Bundle, cell_source
from kfnb.spec import TrainSpec


def submission(
    id: str, body: str = "print('hello')\n", *, secret: dict[str, str] | None = None, **options: Any
) -> Submission:
    """``options`` are those of ``TrainSpec``."""
    spec = TrainSpec(name=id.rpartition("-")[0], **options)
    bundle: Bundle = cell_source(
        body, first_line=2, namespace=None, use=(), out=spec.out, modules=(), pip=spec.pip, cwd=None
    )
    record = Record(
        id=id,
        spec=spec,
        created=1_790_000_000.0,
        owner="alice smith@example.org",
        host="laptop",
        workdir="/home/alice",
        bundle_sha256=bundle.sha256,
        code=bundle.main,
        first_line=2,
    )
    return Submission(record, bundle, secret or {})

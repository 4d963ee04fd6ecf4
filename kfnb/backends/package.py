"""The worker as one zip, the same bytes from the same sources."""

from __future__ import annotations

import io
import zipfile
from functools import lru_cache
from importlib import resources


@lru_cache(maxsize=1)
def worker_zip() -> bytes:
    """``kfnb_worker`` as a zip that Python runs: ``python worker.zip PLAN --node K``, and ``--pod`` in a pod."""
    files = {}
    for entry in resources.files("kfnb_worker").iterdir():
        if entry.name.endswith(".py"):
            files[f"kfnb_worker/{entry.name}"] = entry.read_bytes()
    files["__main__.py"] = files["kfnb_worker/__main__.py"]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[name])
    return out.getvalue()

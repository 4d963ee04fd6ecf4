"""The worker as one zip, the same bytes from the same sources."""

from __future__ import annotations

import io
import zipfile
from functools import lru_cache
from importlib import resources

_MAIN = b"import sys\n\nfrom kfnb_worker.launcher import main\n\nsys.exit(main(sys.argv[1:]))\n"


@lru_cache(maxsize=1)
def worker_zip() -> bytes:
    """``kfnb_worker`` as a zip that Python runs: ``python worker.zip PLAN --node K``."""
    files = {"__main__.py": _MAIN}
    for entry in resources.files("kfnb_worker").iterdir():
        if entry.name.endswith(".py"):
            files[f"kfnb_worker/{entry.name}"] = entry.read_bytes()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[name])
    return out.getvalue()

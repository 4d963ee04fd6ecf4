"""``$KFNB_HOME``: where this user's jobs, environments and trusted files are kept. Nothing else is imported for it."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """``$KFNB_HOME`` as an absolute path, by default kfnb's folder among the user's data. It need not exist yet."""
    given = os.environ.get("KFNB_HOME")
    return Path(os.path.abspath(os.path.expanduser(given))) if given else Path.home() / ".local" / "share" / "kfnb"

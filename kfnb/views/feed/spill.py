"""An unnamed file that grows by blocks and is read in any order, from any thread."""

from __future__ import annotations

import os
import tempfile
import threading
from typing import IO


class Spill:
    """The file is made at the first block and is gone once it is closed, or its process is."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0
        self._lock = threading.Lock()  # a descriptor that is closed may be another file's the next moment

    def add(self, content: bytes) -> int:
        """Where the block lies now. Raises ``OSError``: a full disk; a later block may find room again."""
        with self._lock:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (it is open as long as the log is)
            start, written = self._end, 0
            while written < len(content):
                written += os.pwrite(self._file.fileno(), content[written:], start + written)
            self._end += len(content)
            return start

    def read(self, start: int, size: int) -> bytes:
        """A block, or a part of it. Raises ``OSError``, also once the file is closed."""
        with self._lock:
            if self._file is None:
                raise OSError("the lines are no longer kept")
            parts = []
            while size:
                part = os.pread(self._file.fileno(), size, start)
                if not part:
                    raise OSError("the file of kept lines ends too early")
                parts.append(part)
                start, size = start + len(part), size - len(part)
            return b"".join(parts)

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

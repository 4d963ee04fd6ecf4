"""Results as records of the log, where nothing else leads from the job to who asked for them."""

from __future__ import annotations

import os
from binascii import b2a_base64
from typing import Any, Dict, Iterator

#: Bytes of all results together, and of one record's piece of them.
LIMIT = 1 << 20
PIECE = 6_000


def records(directory: str) -> Iterator[Dict[str, Any]]:
    """The files below ``directory`` as ``file`` records, or a note that says why they stay where they are."""
    found = (os.path.join(folder, name) for folder, _, files in os.walk(directory) for name in files)
    names = sorted(os.path.relpath(path, directory) for path in found)
    size = sum(os.path.getsize(os.path.join(directory, name)) for name in names)
    if size > LIMIT:
        text = "the results take %d bytes, and no more than %d travel by the log: they are lost with the pod"
        yield {"e": "note", "level": "warning", "text": text % (size, LIMIT)}
        return
    for name in names:
        with open(os.path.join(directory, name), "rb") as source:
            content = source.read()
        count = max(1, -(-len(content) // PIECE))
        for index in range(count):
            piece = b2a_base64(content[index * PIECE : (index + 1) * PIECE], newline=False).decode("ascii")
            yield {"e": "file", "name": name, "i": index, "n": count, "data": piece}

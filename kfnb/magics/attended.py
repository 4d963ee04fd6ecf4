"""Whether somebody sits at this kernel who could attach to a job again, and what is known of the notebook."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Any

import psutil

#: Programs that run a notebook from its first cell to its last.
_RUNNERS = frozenset(
    [
        "papermill",
        "nbconvert",
        "nbclient",
        "jupyter-nbconvert",
        "jupyter-execute",
        "jupyter-run",
        "execute",
        "run",
        "pytest",
        "nbval",
    ]
)

#: Programs that somebody sits before, and that are Python themselves.
_FRONT_ENDS = frozenset(
    [
        "jupyter-lab",
        "jupyterlab",
        "lab",
        "jupyter-labhub",
        "jupyter-notebook",
        "notebook",
        "nbclassic",
        "jupyter-server",
        "jupyter_server",
        "server",
        "jupyterhub-singleuser",
        "jupyter-console",
        "jupyter_console",
        "console",
        "jupyter-qtconsole",
        "qtconsole",
        "spyder",
    ]
)


def until() -> tuple[int, float] | None:
    """(pid, start time) of this kernel where nobody attends it: its job is stopped when it ends. Else None.

    ``KFNB_ATTENDED`` (0 or 1) says so itself.
    """
    said = os.environ.get("KFNB_ATTENDED")
    attended = said not in ("0", "false", "no") if said else not _run_by_a_program()
    return None if attended else (os.getpid(), psutil.Process().create_time())


def _run_by_a_program() -> bool:
    if "PYTEST_CURRENT_TEST" in os.environ:
        return True
    try:
        parent = psutil.Process(int(os.environ.get("JPY_PARENT_PID") or os.getppid()))
        words = parent.cmdline()
    except (psutil.Error, ValueError):
        return False
    # python -m papermill ..., /usr/bin/papermill ..., python /usr/bin/jupyter nbconvert ...
    names = [PurePath(word).name.removesuffix(".exe").removesuffix(".py") for word in words[:4]]
    if _RUNNERS & set(names):
        return True
    if _FRONT_ENDS & set(names) or not names or not names[0].startswith(("python", "pypy")):
        return False
    # somebody's own script that runs notebooks (a flow, a scheduled task), unless a server says that it is one
    return "JPY_SESSION_NAME" not in os.environ


def notebook_path(shell: Any) -> str | None:
    """The notebook's path where the server, the editor or papermill says it."""
    known = shell.user_ns
    for path in (
        os.environ.get("JPY_SESSION_NAME"),
        known.get("__vsc_ipynb_file__"),
        known.get("PAPERMILL_INPUT_PATH"),
    ):
        if isinstance(path, str) and path:
            return path
    return None


def cell_id(shell: Any) -> str | None:
    """The id of the cell that runs now, where the front end sends it."""
    if not hasattr(shell, "get_parent"):
        return None
    metadata = (shell.get_parent() or {}).get("metadata") or {}
    found = metadata.get("cellId")
    return found if isinstance(found, str) else None

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

#: Programs that somebody sits before and that are Python themselves: those with pages, and those that are terminals.
_PAGES = frozenset(
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
    ]
)
_TERMINALS = frozenset(
    [
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


def in_terminal() -> bool:
    """Whether what this kernel shows appears in a terminal, where an output cannot be renewed."""
    return bool(_TERMINALS & set(_started_by()))


def _run_by_a_program() -> bool:
    if "PYTEST_CURRENT_TEST" in os.environ:
        return True
    names = _started_by()
    if _RUNNERS & set(names):
        return True
    if (_PAGES | _TERMINALS) & set(names) or not names or not names[0].startswith(("python", "pypy")):
        return False
    # somebody's own script that runs notebooks (a flow, a scheduled task), unless a server says that it is one
    return "JPY_SESSION_NAME" not in os.environ


def _started_by() -> list[str]:
    """What the program that started this kernel is called: python -m papermill ..., python /usr/bin/jupyter lab ..."""
    try:
        parent = psutil.Process(int(os.environ.get("JPY_PARENT_PID") or os.getppid()))
        words = parent.cmdline()
    except (psutil.Error, ValueError):
        return []
    return [PurePath(word).name.removesuffix(".exe").removesuffix(".py") for word in words[:4]]


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

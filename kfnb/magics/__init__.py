"""The magics: ``%load_ext kfnb`` registers them and imports next to nothing; the rest is imported at first use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from kfnb.magics.cells import AWAITED, CellTransformer, line_transformer

#: Magic -> the first line of its help. What it does is ``kfnb.magics.commands.NAME``.
LINE_MAGICS = {
    "kfjobs": "All your jobs, newest first",
    "kfattach": "Show a job from its beginning, wait for it, and bring its results",
    "kflogs": "What the ranks of a job printed",
    "kfstop": "Stop a job",
    "kfdelete": "Remove an ended job and all that it left",
    "kfrun": "Run a job again from its record, with changes",
    "kfcompare": "Compare jobs: what differs, and each series' last and best value",
    "kfstacks": "The Python stacks of all ranks of a job, now",
    "kfconfig": "The options that hold here, and where each comes from",
}

#: Seconds after loading when the heavy modules are imported: neither the load nor the first cell then waits for them.
_WARM_UP = 0.5


def load_ipython_extension(shell: Any) -> None:
    """Called by ``%load_ext kfnb``."""
    manager = shell.input_transformer_manager
    _remove_transformers(manager)
    manager.cleanup_transforms.insert(0, CellTransformer(shell))
    manager.token_transformers.append(line_transformer(shell))
    _register(shell, "cell", "kftrain", "train", "kftrain")
    _register(shell, "cell", AWAITED + "kftrain", "train", "kftrain_awaiting")
    for name in ("kftrain", "%kftrain"):  # the second is what IPython looks for below a comment
        _register(shell, "line", name, "train", "kftrain_misplaced")
    for name, summary in LINE_MAGICS.items():
        _register(shell, "line", name, "commands", name, summary)
    for name in ("kfattach", "kflogs", "kfrun"):
        _register(shell, "line", AWAITED + name, "commands", f"{name}_awaiting")
    if not any(getattr(known, "matcher_identifier", "") == _ID for known in shell.Completer.custom_matchers):
        shell.Completer.custom_matchers.append(_matcher(shell))
    timer = threading.Timer(_WARM_UP, _import_heavy)
    timer.daemon = True
    timer.start()


def unload_ipython_extension(shell: Any) -> None:
    """Called by ``%unload_ext kfnb``. Jobs go on."""
    _remove_transformers(shell.input_transformer_manager)
    for names in shell.magics_manager.magics.values():
        for name in [name for name in names if getattr(names[name], "kfnb", False)]:
            del names[name]
    matchers = shell.Completer.custom_matchers
    matchers[:] = [known for known in matchers if getattr(known, "matcher_identifier", "") != _ID]


def _remove_transformers(manager: Any) -> None:
    for known in (manager.cleanup_transforms, manager.token_transformers):
        known[:] = [transform for transform in known if not getattr(transform, "kfnb", False)]


def _register(shell: Any, kind: str, name: str, module: str, function: str, summary: str = "") -> None:
    """Register ``kfnb.magics.MODULE.FUNCTION(shell, line[, cell])`` as a magic, imported when it is first called."""

    def magic(*arguments: str) -> Any:
        return getattr(import_module(f"kfnb.magics.{module}"), function)(shell, *arguments)

    def getdoc() -> str:
        """What ``%%name?`` shows: made when it is asked for."""
        text: str = import_module("kfnb.magics.help").text(kind, name)
        return text

    magic.__name__ = magic.__qualname__ = name
    magic.__doc__ = summary
    attributes: dict[str, Any] = {"getdoc": getdoc, "kfnb": True, "_ipython_magic_no_var_expand": True}
    magic.__dict__.update(attributes)
    shell.register_magic_function(magic, magic_kind=kind, magic_name=name)


_ID = "kfnb"


def _matcher(shell: Any) -> Callable[[Any], dict[str, Any]]:
    """IPython's completion, on the lines of our magics only (its API of version 2)."""

    def match(context: Any) -> dict[str, Any]:
        lines = context.full_text.split("\n")
        before, below = lines[: context.cursor_line + 1], lines[context.cursor_line + 1 :]
        before[-1] = before[-1][: context.cursor_position]
        line = CellTransformer.magic_line(before)
        if line is None:
            return {"completions": []}
        found: dict[str, Any] = import_module("kfnb.magics.complete").match(shell, line, "\n".join(below))
        return found

    attributes = {"matcher_identifier": _ID, "matcher_priority": 100, "matcher_api_version": 2}
    match.__dict__.update(attributes)
    return match


def _import_heavy() -> None:
    for name in ("kfnb.api", "kfnb.magics.train", "kfnb.magics.commands", "kfnb.views.notebook"):
        import_module(name)

"""Errors as kfnb tells them: what happened, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class KfnbError(Exception):
    """An error with three parts.

    ``what`` is one sentence, ``why`` says the cause as far as it is known, ``fix`` what the reader can do. In a
    notebook it shows as text, without the frames of kfnb.
    """

    #: Exit status of the command line for this kind of error.
    exit_code = 1

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what, why, fix)
        self.what, self.why, self.fix = what, why, fix

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"Why: {self.why}")
        if self.fix:
            parts.append(f"What to do: {self.fix}")
        return "\n".join(parts)

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: what a notebook shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(KfnbError):
    """The request itself is wrong: an unknown option, a value outside its limits, a name that is not defined."""

    exit_code = 2


class SourceError(UsageError):
    """The code cannot be shipped as it is: unresolved names, unsupported magics, too large, not valid Python."""


class ConfigError(UsageError):
    """A configuration file or variable cannot be used, or has not been trusted yet."""


class NotFound(KfnbError):
    """There is no such job."""

    exit_code = 3


class BackendError(KfnbError):
    """The place where the job should run refused or failed: no such GPUs, a disk that is full, a lost supervisor."""

    exit_code = 4


class JobFailed(KfnbError):
    """The job ended without success.

    ``failure`` is the first failing rank's record (see ``kfnb.events.Failure``) where there is one, ``job`` the handle.
    """

    exit_code = 5

    def __init__(self, what: str, why: str = "", fix: str = "", *, job: Any = None, failure: Any = None) -> None:
        super().__init__(what, why, fix)
        self.job, self.failure = job, failure

    def _render_traceback_(self) -> list[str]:
        from kfnb.failures import cell_traceback

        lines = super()._render_traceback_()
        if self.failure is not None and self.failure.traceback:
            lines += ["", cell_traceback(self.failure)]
        return lines


class JobStopped(JobFailed):
    """Somebody stopped the job before its end."""

    exit_code = 6


class JobLost(JobFailed):
    """What ran the job is gone (killed, or the machine restarted), so that nobody knows how it would have ended."""

    exit_code = 7


def from_validation(error: Any, sources: Mapping[str, str] | None = None) -> UsageError:
    """A pydantic ``ValidationError`` in the words of the option concerned, and where its value came from.

    ``sources`` is that of each field of a layer below what was given (a file, a variable).
    """
    parts = []
    for item in error.errors():
        context: Mapping[str, Any] = item.get("ctx") or {}
        field = str(item["loc"][0]) if item["loc"] else ""
        text = str(context.get("error") or item["msg"])
        if "error" not in context and isinstance(item.get("input"), (str, int, float)):
            text = f"{item['input']!r}: {text}"
        name = f"--{field.replace('_', '-')}" + (f" (from {sources[field]})" if sources and field in sources else "")
        parts.append(f"{name}: {text}" if field else text)
    return UsageError("; ".join(parts), fix="`%%kftrain?` (or `kfnb train --help`) lists every option with its limits.")

"""What a submission stored, read back: checked in one place, since anything may lie in a run directory by now."""

from __future__ import annotations

from pydantic import ValidationError

from kfnb.backends.local import rundir
from kfnb.backends.local.rundir import RunDir
from kfnb.errors import BackendError, KfnbError, NotFound
from kfnb.record import Record
from kfnb.source import Bundle


def record(run: RunDir) -> Record:
    """The job's record. Raises ``BackendError`` for one that is damaged or of a newer version, ``NotFound``."""
    try:
        content = rundir.read_bytes(run.record)
        found = Record.model_validate_json(content)
    except FileNotFoundError:
        raise NotFound(f"There is no job {run.id} on this machine.") from None
    except OSError as error:
        raise _unreadable(run, "record", f"{run.record}: {error.strerror or error}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or run.record.name
        why = f"{where}: {first['msg']}. It is damaged, or of another version of kfnb."
        raise _unreadable(run, "record", why) from None
    if found.version != _VERSION:
        raise _unreadable(run, "record", f"It is of version {found.version}, and this kfnb knows version {_VERSION}.")
    if not rundir.is_time(found.created) or found.first_line < 1 or "\0" in found.workdir:
        raise _unreadable(run, "record", "It holds values that no kfnb writes, and so was damaged.")
    return found


_VERSION = Record.model_fields["version"].default


def bundle(run: RunDir) -> Bundle:
    """The job's code. Raises ``KfnbError`` where it is missing or damaged."""
    try:
        return Bundle.from_bytes(rundir.read_bytes(run.bundle))
    except OSError as error:
        raise _unreadable(run, "code", f"{run.bundle}: {error.strerror or error}.") from None


def _unreadable(run: RunDir, what: str, why: str) -> KfnbError:
    fix = f"Submit the cell again from the notebook; `%kfdelete {run.id}` removes what is left of this job."
    return BackendError(f"{run.id}: its {what} cannot be read.", why, fix)

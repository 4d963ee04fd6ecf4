"""What a notebook's own syntax becomes in a job: the `get_ipython()` and `display` that a translated cell calls.

`kfnb.source.translate` writes the calls; each means what it means in a notebook, as far as that makes sense without
one.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import string
import subprocess
import sys
import time
import timeit
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple


class Lines(List[str]):
    """The output of `x = !command`, by lines; `.n` is the text, `.s` the text on one line."""

    @property
    def n(self) -> str:
        return "\n".join(self)

    @property
    def s(self) -> str:
        return " ".join(self)


class _Expansion(string.Formatter):
    """`{expression}` and `$name`, as IPython expands them in commands."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tuple[Any, str]:
        return eval(field_name, dict(self.names)), field_name  # noqa: S307 - the user's own code

    def parse(self, format_string: Any) -> Iterator[Tuple[str, Optional[str], Optional[str], Optional[str]]]:
        for text, field, spec, conversion in super().parse(format_string):
            yield self._dollars(text), field, spec, conversion

    def _dollars(self, text: str) -> str:
        head, *parts = text.split("$")
        done = head
        while parts:
            part = parts.pop(0)
            if not part and parts:  # $$ is a dollar
                done += "$" + parts.pop(0)
                continue
            end = 0
            while part[: end + 1].isidentifier() and end < len(part):
                end += 1
            name = part[:end]
            done += str(self.names[name]) + part[end:] if name in self.names else "$" + part
        return done


def expand(command: str, names: Mapping[str, Any]) -> str:
    """The command with the cell's values in it; as it is where that fails, since `awk '{print $1}'` is none of ours."""
    try:
        return _Expansion(names).vformat(command, (), {})
    except Exception:
        return command


def _caller() -> Dict[str, Any]:
    """The names that the calling line of the cell sees."""
    frame = sys._getframe(2)
    return {**frame.f_globals, **frame.f_locals}


class Shell:
    """`get_ipython()` in a job."""

    def __init__(self, namespace: Dict[str, Any]) -> None:
        self.user_ns = namespace
        self._began = _now()

    def system(self, command: str) -> None:
        """`!command`: its output is the rank's; its exit code is `_exit_code`, as in a notebook."""
        self._run(_sh(expand(command, _caller())))

    def getoutput(self, command: str) -> Lines:
        """`x = !command`: the lines of its stdout and stderr."""
        done = self._run(_sh(expand(command, _caller())), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return Lines(done.stdout.decode(errors="replace").splitlines())

    def _run(self, command: List[str], **where: int) -> subprocess.CompletedProcess[bytes]:
        sys.stdout.flush()  # what the cell printed comes before what its command prints
        sys.stderr.flush()
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, **where)  # type: ignore[call-overload]
        self.user_ns["_exit_code"] = done.returncode
        return done  # type: ignore[no-any-return]

    def run_line_magic(self, name: str, line: str) -> Any:
        """`%name line`, for those of LINE_MAGICS."""
        if name not in LINE_MAGICS:
            raise NotImplementedError(
                "%%%s has no meaning in a job; it knows %s" % (name, ", ".join(sorted(LINE_MAGICS)))
            )
        return LINE_MAGICS[name](self, expand(line, _caller()).strip())

    def _env(self, line: str) -> Any:
        if not line:
            return dict(os.environ)
        if "=" not in line and len(line.split()) == 1:
            return os.environ.get(line)
        return self._set_env(line)

    def _set_env(self, line: str) -> None:
        name, _, value = line.partition("=") if "=" in line else line.partition(" ")
        os.environ[name.strip()] = value.strip()
        print("env: %s=%s" % (name.strip(), value.strip()))

    def _cd(self, line: str) -> None:
        os.chdir(os.path.expanduser(line.strip("'\"") or "~"))

    def _pip(self, line: str) -> None:
        self._run([sys.executable, "-m", "pip", *shlex.split(line)])

    @contextlib.contextmanager
    def time(self) -> Iterator[None]:
        """`%time statement`, which stands in the body of the `with`."""
        began = _now()
        yield
        _report(began)

    def timed(self, expression: Callable[[], Any]) -> Any:
        """`x = %time expression`."""
        began = _now()
        value = expression()
        _report(began)
        return value

    def timeit(self, expression: Callable[[], Any], number: int = 0, repeat: int = 7) -> None:
        """`%timeit expression`; number 0: as many as take 0.2 s."""
        timer = timeit.Timer(expression)
        count = number or timer.autorange()[0]
        runs = [seconds / count for seconds in timer.repeat(repeat, count)]
        mean = sum(runs) / len(runs)
        spread = (sum((run - mean) ** 2 for run in runs) / len(runs)) ** 0.5
        print(
            "%s ± %s per loop (mean ± std. dev. of %d runs, %d loops each)"
            % (_span(mean), _span(spread), repeat, count)
        )

    def cell_time(self) -> None:
        """`%%time`: called at the end of the cell."""
        _report(self._began)


LINE_MAGICS: Dict[str, Callable[[Shell, str], Any]] = {
    "env": Shell._env,
    "set_env": Shell._set_env,
    "cd": Shell._cd,
    "pwd": lambda shell, line: os.getcwd(),
    "pip": Shell._pip,
    "matplotlib": lambda shell, line: None,
}


def display(*values: object, **options: object) -> None:
    """`display(x)` of a notebook: in a job, the text form."""
    for value in values:
        print(repr(value))


def names(namespace: Dict[str, Any]) -> Dict[str, Any]:
    """What a translated cell needs in its globals."""
    shell = Shell(namespace)
    return {"get_ipython": lambda: shell, "display": display}


def _sh(command: str) -> List[str]:
    return ["/bin/sh", "-c", command]


def _now() -> Tuple[float, float, float]:
    times = os.times()
    return time.perf_counter(), times.user, times.system


def _report(began: Tuple[float, float, float]) -> None:
    wall, user, system = (now - then for now, then in zip(_now(), began))
    print("CPU times: user %s, sys: %s, total: %s" % (_span(user), _span(system), _span(user + system)))
    print("Wall time: %s" % _span(wall))


def _span(seconds: float) -> str:
    if seconds >= 60:
        minutes, rest = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        return ("%dh %dmin %ds" % (hours, minutes, rest)) if hours else "%dmin %ds" % (minutes, rest)
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return "%.3g %s" % (seconds / size, unit)
    return "%.3g ns" % (seconds / 1e-9)

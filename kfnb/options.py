"""The options of the magic and the command line, made from ``TrainSpec``:

parsing, completion, and the README's table.
"""

from __future__ import annotations

import argparse
import difflib
import shlex
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from kfnb.errors import UsageError, from_validation
from kfnb.spec import TrainSpec, option_name

#: Fields that are not options: the format's version, and what follows ``--``.
_NOT_OPTIONS = frozenset({"version", "name", "args"})


@dataclass(frozen=True)
class Option:
    """One option: ``--flag METAVAR``. ``choices`` are its values where they are few, ``many`` where it takes a list."""

    field: str
    help: str
    metavar: str
    default: Any
    choices: tuple[str, ...] = ()
    flag: bool = False
    many: bool = False

    @property
    def name(self) -> str:
        return option_name(self.field)

    @property
    def default_text(self) -> str:
        if self.default is None or self.default is False or self.default == ():
            return ""
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def _describe(field: str, info: FieldInfo) -> Option:
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    choices = tuple(_literals(info.annotation))
    metavar = str(extra.get("metavar") or ("|".join(choices) if choices else ""))
    many = isinstance(info.default, tuple)
    return Option(field, info.description or "", metavar, info.default, choices, info.annotation is bool, many)


def _literals(annotation: Any) -> Iterable[str]:
    if get_origin(annotation) is Literal:
        yield from (str(value) for value in get_args(annotation))
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _literals(part)


OPTIONS: Mapping[str, Option] = {
    field: _describe(field, info) for field, info in TrainSpec.model_fields.items() if field not in _NOT_OPTIONS
}


#: The flags whose values are names or paths with commas between them.
_LISTS = frozenset(f"--{option.name}" for option in OPTIONS.values() if option.metavar.endswith(",..."))


class _Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` whose errors are ``UsageError``s: it is used inside a kernel, too."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", fix=" ".join(self._hints(message)))

    def _hints(self, message: str) -> Iterator[str]:
        _, unknown, words = message.partition("unrecognized arguments: ")
        if unknown:
            known = [flag for action in self._actions for flag in action.option_strings]
            near = [match for word in words.split() for match in difflib.get_close_matches(word, known, n=1)]
            if near:
                yield f"Did you mean {', '.join(dict.fromkeys(near))}?"
            yield "Several names are written a,b; arguments of the script itself go after `--`."
        yield f"`{self.prog} --help` lists the options."


def make_parser(prog: str, **kwargs: Any) -> argparse.ArgumentParser:
    return _Parser(prog=prog, allow_abbrev=False, **kwargs)


def add_options(parser: argparse.ArgumentParser, *, without: Iterable[str] = ()) -> None:
    """Give ``parser`` every option of the spec. What is not given stays out of the namespace, so that layers can
    merge.
    """
    group = parser.add_argument_group("job")
    for option in OPTIONS.values():
        if option.field in without:
            continue
        arguments: dict[str, Any] = {"dest": option.field, "default": argparse.SUPPRESS}
        default = option.default_text.replace("%", "%%")
        arguments["help"] = option.help.replace("%", "%%") + (f" (default: {default})" if default else "")
        if option.flag:
            arguments["action"] = argparse.BooleanOptionalAction
        else:
            arguments["metavar"] = option.metavar
            if option.many:
                arguments["action"] = "append"
        group.add_argument(f"--{option.name}", **arguments)


def split_line(line: str) -> tuple[list[str], tuple[str, ...]]:
    """A magic's line as words, and the script's own arguments after ``--``.

    Quotes as in a POSIX shell, nothing expanded.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"The line cannot be read: {error}.", fix='Close the quotes, as in --env "A=b c".') from None
    if "--" in words:
        cut = words.index("--")
        return words[:cut], tuple(words[cut + 1 :])
    return words, ()


def parse_train(line: str, prog: str = "%%kftrain") -> dict[str, Any]:
    """The options that a ``%%kftrain`` line gives, by field of the spec (unvalidated). Raises ``UsageError``."""
    words, args = split_line(line)
    words = _join_lists(words)
    parser = make_parser(prog, add_help=False)
    parser.add_argument("name", nargs="?", default=argparse.SUPPRESS)
    add_options(parser)
    given = vars(parser.parse_args(words))
    if args:
        given["args"] = args
    return given


def _join_lists(words: list[str]) -> list[str]:
    """``--use lr, epochs`` as ``--use lr,epochs``: a comma goes on with the list, on whichever side its space is."""
    joined: list[str] = []
    for word in words:
        goes_on = len(joined) > 1 and joined[-2] in _LISTS and (joined[-1].endswith(",") or word.startswith(","))
        if goes_on and not word.startswith("--"):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def make_spec(values: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> TrainSpec:
    """A validated spec. Raises ``UsageError`` in the words of the option concerned (see ``from_validation``)."""
    try:
        return TrainSpec(**values)
    except ValidationError as error:
        raise from_validation(error, sources) from None


def complete(words: list[str]) -> list[str]:
    """Completions of the last word of a ``%%kftrain`` line:

    options not yet given, or the values of the one before it.
    """
    last = words[-1] if words else ""
    before = words[-2] if len(words) > 1 else ""
    option = OPTIONS.get(before[2:].replace("-", "_")) if before.startswith("--") else None
    if option is not None and option.choices:
        return [choice for choice in option.choices if choice.startswith(last)]
    given = set(words[:-1])
    return [
        f"--{option.name}"
        for option in OPTIONS.values()
        if f"--{option.name}".startswith(last) and (option.many or f"--{option.name}" not in given)
    ]


def help_text(prog: str = "%%kftrain") -> str:
    """All options as plain text: the docstring behind ``%%kftrain?``."""
    rows = []
    for option in OPTIONS.values():
        head = f"--{option.name}" + (f" {option.metavar}" if not option.flag else "")
        default = f" (default: {option.default_text})" if option.default_text else ""
        rows.append(f"  {head}\n      {option.help}{default}")
    usage = f"{prog} [NAME] [options] [-- arguments of the script]"
    return "\n".join([usage, "", *rows])


def markdown_table() -> str:
    """The options as the README has them."""
    rows = [
        "| option | meaning | default |",
        "|---|---|---|",
        "| `NAME` | Name of the job; its id is NAME-xxxxx | train |",
    ]
    for option in OPTIONS.values():
        usage = f"--{option.name}" + ("" if option.flag else f" {option.metavar}")
        rows.append("| `{}` | {} | {} |".format(usage.replace("|", "\\|"), option.help, option.default_text))
    rows.append("| `-- ...` | Arguments of the script | |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(markdown_table() + "\n")

"""The arguments of the line magics, which are those of the command line's commands as well."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kfnb.errors import UsageError
from kfnb.magics import LINE_MAGICS
from kfnb.options import OPTIONS, add_options, make_parser

#: What a record's code has fixed, so that a repeat cannot change it.
FIXED = ("use", "out", "module", "pip")

#: ``lr=0.1,epochs=3`` is two values.
_SEVERAL = re.compile(r",(?=[A-Za-z_]\w*=)")

#: How literals begin that are no plain words.
_LITERAL = frozenset("[({'\"0123456789-+.")


def add_arguments(command: str, parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` the arguments of ``command`` ("jobs", "logs", ...)."""
    if command in ("attach", "logs", "stacks", "run", "export"):
        parser.add_argument("name", metavar="NAME", help="a job's id, or the name of which the newest job is meant")
    elif command in ("stop", "delete", "compare"):
        parser.add_argument("names", metavar="NAME", nargs="+", help="ids or names of jobs")
    if command == "logs":
        parser.add_argument("--rank", type=int, metavar="R", help="lines of this rank alone")
        parser.add_argument("--follow", action="store_true", help="go on until the job ends")
        parser.add_argument("--tail", type=int, metavar="N", help="the last N lines")
    elif command == "config":
        parser.add_argument(
            "--trust", action="store_true", help="from now on let this project's file set what it sets now"
        )
    elif command == "run":
        parser.add_argument(
            "--use",
            nargs="+",
            action="extend",
            default=[],
            metavar="NAME=VALUE",
            help="captured values to change; a VALUE that is no Python literal is a string",
        )
        add_options(parser, without=FIXED)


def magic_parser(magic: str) -> argparse.ArgumentParser:
    """The parser of a line magic; raises ``UsageError`` rather than end the process."""
    parser = make_parser(f"%{magic}", description=LINE_MAGICS[magic] + ".", add_help=False)
    add_arguments(magic.removeprefix("kf"), parser)
    return parser


def captured(items: Sequence[str], namespace: Mapping[str, object] | None = None) -> dict[str, object]:
    """The values of ``--use`` in a repeat: ``lr=0.1``, or ``lr`` alone for the notebook's present one.

    Raises ``UsageError`` for what is no name, or names nothing.
    """
    values: dict[str, object] = {}
    for item in (part for several in items for part in _SEVERAL.split(several)):
        name, given, text = item.partition("=")
        if not name.isidentifier():
            raise UsageError(f"--use {item}: {name!r} is no Python name.", fix="Write NAME=VALUE, as in lr=0.1.")
        if given:
            try:
                values[name] = ast.literal_eval(text)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                if text and text[0] in _LITERAL:
                    raise UsageError(
                        f"--use {item}: {text!r} begins like a Python literal and is none.",
                        "Quotes that are not quoted themselves are taken away, as in a shell.",
                        "Write it in quotes (--use 'names=[\"a\", \"b\"]'), and a space between several values.",
                    ) from None
                values[name] = text
        elif namespace is not None and name in namespace:
            values[name] = namespace[name]
        else:
            raise UsageError(f"--use {name}: there is no value for it here.", fix=f"Write {name}=VALUE.")
    return values


def spec_options(arguments: Mapping[str, Any], args: Sequence[str]) -> dict[str, Any]:
    """The options of the spec among parsed ``arguments``, and the script's own ``args``."""
    given = {field: value for field, value in arguments.items() if field in OPTIONS and field != "use"}
    return {**given, "args": tuple(args)} if args else given

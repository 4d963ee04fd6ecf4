"""What of the notebook travels with a cell, and which names the cell would lack in the job."""

from __future__ import annotations

import builtins
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfnb.errors import SourceError
from kfnb.source import bundle, modules
from kfnb.source.analysis import GIVEN, Names, Use, analyse
from kfnb.source.notebook import Definition, Notebook, describe
from kfnb.source.translate import parse
from kfnb_worker.encoding import a
from kfnb_worker.values import is_late

SHELL = {"get_ipython", "display", "_exit_code"}
_KERNEL = {"exit", "quit", "input", "open"}  # which IPython replaces by its own
_EXPANDED = re.compile(r"[{$]([^\W\d]\w*)")


@dataclass(frozen=True)
class Missing:
    """A name that the job would not have: where it is used first, what it is here, and the way out by kind.

    ``kind``: "use" (--use ships it), "import" (``text`` is the line to add), "module" (``text`` is for --module) or
    "unknown".
    """

    name: str
    place: str
    what: str
    kind: str
    text: str = ""


class Shipment:
    """Collects what travels with some code.

    ``main`` are the names of the code, ``where`` is what it is called, ``first_line`` the line that its first one is.
    """

    def __init__(
        self, main: Names, book: Notebook, use: Sequence[str], *, where: str = "the cell", first_line: int = 1
    ):
        self.main = main
        self.book = book
        self.use = set(use)
        self.where = where
        self.first_line = first_line
        self.definitions: dict[str, Definition] = {}  # in the order that they execute in
        self.values: dict[str, object] = {}
        self.missing: dict[str, Missing] = {}
        self.notes: list[str] = []
        self.value_modules: set[str] = set()  # that the classes of values are imported from
        self.shell = False
        self._begun: set[str] = set()
        for name in dict.fromkeys(use):
            self._take(name)

    # ---- names

    def resolve(self, *, automatic: bool) -> None:
        """Finds what the main code uses and does not define. ``automatic``: code of the notebook is shipped unasked."""
        names = dict(self.main.free)
        for text, line in self.main.commands:
            for name in _EXPANDED.findall(text):
                if name in self.book.namespace and name not in self.main.bound:
                    names.setdefault(name, Use(line, certain=True))
        for name, use in names.items():
            found = self.book.find(name) if automatic else None
            if found is not None:
                self._ship(found)
            else:
                self._need_in_main(name, use)
        for name, line in self.main.builtin.items():
            if self._is_hidden(name) and name not in self.main.bound | self.values.keys() | self.definitions.keys():
                self._lack(name, f"line {line + self.first_line - 1}")
        for name in sorted(self.use & self.main.bound - self.main.guarded - self.main.free.keys()):
            self.notes.append(f"{name} is assigned by {self.where} itself: the value that --use ships is not used.")

    def _is_hidden(self, name: str) -> bool:
        """Whether the notebook has given a name of Python's own a meaning of its own."""
        own = getattr(builtins, name, None)
        return not name.startswith("__") and name not in _KERNEL and self.book.namespace.get(name, own) is not own

    def _need_in_main(self, name: str, use: Use) -> None:
        if name in self.values or name in self.definitions or name in GIVEN or self._is_shell(name):
            return
        if any(name in (public or ()) for public in map(_public_names, self.main.stars)):
            return
        place = f"line {use.line + self.first_line - 1}"
        here = name in self.book.namespace
        bound = name in self.main.bound
        if bound and not use.certain:
            return
        if here and not use.caught and not self._may_appear():
            self._lack(name, place)
        elif use.certain and not here and not self.main.dynamic and not self.main.stars:
            what = f"{self.where} assigns it further down only" if bound else "not defined anywhere"
            self.missing[name] = Missing(name, place, what, "unknown")
        else:
            self._note_unseen(name, place, self.where)

    def _may_appear(self) -> bool:
        """Whether the main code may get names that cannot be seen in it: by exec, or from a module that is not here."""
        return self.main.dynamic or any(_public_names(module) is None for module in self.main.stars)

    def _note_unseen(self, name: str, place: str, where: str) -> None:
        """For a name of which only Python will know whether it is missing: code that can run is not refused."""
        unshipped = ", and the notebook's is not shipped" if name in self.book.namespace else ""
        self.notes.append(f"{name} ({place}) is not defined in {where} as far as can be seen{unshipped}.")

    def _lack(self, name: str, place: str) -> None:
        """Notes a name that the notebook has and nobody ships."""
        if name in self.missing:
            return
        value = self.book.namespace[name]
        line = self.book.import_line(name)
        if line is not None:
            self.missing[name] = Missing(name, place, f"the {describe(value)}", "import", line)
            return
        self.missing[name] = Missing(name, place, f"{a(describe(value))} of the notebook", "use")
        try:
            found = self.book.find(name)
        except SourceError as problem:
            self.missing[name] = Missing(name, place, problem.what, "unknown")
            return
        if found is not None:
            self._ship(found)  # so that what it lacks in turn is said now

    def _is_shell(self, name: str) -> bool:
        self.shell = self.shell or name in SHELL
        return name in SHELL

    def _take(self, name: str) -> None:
        """Ships a name that was asked for: code as source, anything else as a value."""
        if name not in self.book.namespace:
            raise SourceError(
                f"--use {name}: the notebook has no {name}.",
                "",
                "Run the cell that defines it, or take it out of --use.",
            )
        definition = self.book.find(name)
        if definition is None:
            self.values[name] = self.book.namespace[name]
        else:
            self._ship(definition)

    def _ship(self, definition: Definition) -> None:
        """A definition after all that it needs."""
        if definition.name in self._begun:
            return
        self._begun.add(definition.name)
        for name, use in definition.names.free.items():
            self._need(name, use, definition)
        self.definitions[definition.name] = definition

    def _need(self, name: str, use: Use, user: Definition) -> None:
        if name in self.values or name in self._begun or self._is_shell(name):
            return
        if name in self.use:
            self._take(name)
            return
        if name in self.main.bound and not use.certain:
            return  # the main code may define it before it calls this
        found = self.book.find(name)
        place = f"line {use.line} of {user.name}"
        if found is not None:
            self._ship(found)
        elif user.names.dynamic or use.caught or (name not in self.book.namespace and not use.certain):
            self._note_unseen(name, place, user.name)
        elif name in self.book.namespace:
            self._lack(name, place)
        else:
            self.missing.setdefault(name, Missing(name, place, "not defined anywhere", "unknown"))

    # ---- values

    def pack(self) -> dict[str, bytes]:
        """The files of the captured values; ships the classes of the notebook that they are of. Raises SourceError."""
        entries, files = bundle.pack(self.values)
        for name, entry in entries.items():
            self._ship_classes(name, entry["classes"])
            if "pickle" in entry:
                kind, python = entry["pickle"]["type"], entry["pickle"]["python"]
                self.notes.append(
                    f"{name} ({a(kind)}) travels as a pickle of Python {python}: the job needs the same Python."
                )
        clash = sorted(self.values.keys() & self.definitions.keys())
        if clash:
            raise SourceError(
                f"{clash[0]} is both a value for the job and code that {self.where} uses.", "", "Rename one of them."
            )
        self._check_order({name for name, entry in entries.items() if is_late(entry)})
        return files

    def _check_order(self, late: set[str]) -> None:
        """Values of the notebook's own classes are made after all definitions, so none of these can need one."""
        for definition in self.definitions.values():
            for name, use in definition.names.free.items():
                if use.certain and name in late:
                    raise SourceError(
                        f"{definition.name} needs {name} at its definition, and {name} is of the notebook's own class.",
                        "A job makes such values after all definitions.",
                        f"Use {name} inside {definition.name} only, or make it in the cell.",
                    )

    def _ship_classes(self, value: str, classes: Iterable[str]) -> None:
        for full in classes:
            module, _, own = full.partition(":")
            name = own.partition(".")[0]
            self.value_modules.add(module)
            if module == "__main__" and name not in self._begun:
                found = self.book.find(name)
                if found is None:
                    raise SourceError(
                        f"The value {value} is made of {name}, which the notebook no longer has as code.",
                        "",
                        f"Run the cell that defines {name} again, make {value} again, and submit.",
                    )
                self._ship(found)

    # ---- local modules

    def check_modules(self, files: Mapping[str, bytes], folders: Sequence[Path], cwd: Path) -> None:
        """Finds local modules that something shipped imports and that are not among `files`."""
        shipped = modules.shipped_names(files)
        imports: dict[str, str] = {}
        needed = {name.partition(".")[0] for name in self.value_modules}

        def add(names: Names, of: str, before: int = 0) -> None:
            for name, line in names.modules.items():
                imports.setdefault(name, f"line {line + before}{of}")
            needed.update(name.partition(".")[0] for name in names.modules.keys() - names.tried)

        add(self.main, "", self.first_line - 1)
        for definition in self.definitions.values():
            add(definition.names, f" of {definition.name}")
        for name in sorted(self.value_modules):
            imports.setdefault(name, "for a value")
        for file, content in files.items():
            add(_names_of(file, content), f" of {file}")
        for name, path in modules.missing(imports, shipped, folders).items():
            text = str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)
            place = next(place for full, place in imports.items() if full.partition(".")[0] == name)
            what = "a package beside the notebook" if path.is_dir() else "a file beside the notebook"
            if name in needed:
                self.missing[f"module {name}"] = Missing(name, place, what, "module", text)
            else:
                self.notes.append(f"{name} ({place}) is {what}, and not shipped; --module {text} ships it.")


def _names_of(path: str, content: bytes) -> Names:
    if not path.endswith(".py"):
        return Names()
    try:
        return analyse(parse(importlib.util.decode_source(content)))
    except (SyntaxError, ValueError):
        return Names()


def _public_names(module: str) -> set[str] | None:
    """What `from module import *` gives; None where the module is not loaded here."""
    loaded = sys.modules.get(module)
    if loaded is None:
        return None
    listed: Any = getattr(loaded, "__all__", None)
    return set(listed) if listed is not None else {name for name in vars(loaded) if not name.startswith("_")}


def refusal(missing: Sequence[Missing], where: str, ship: str) -> SourceError:
    """The error for names that the job would lack. ``ship`` says how a value is shipped; `{}` is for the names."""
    names = ", ".join(item.name for item in missing)
    lines = [f"{item.name} ({item.place}): {item.what}" for item in missing]
    fixes = []
    by_kind = {kind: [item for item in missing if item.kind == kind] for kind in ("use", "import", "module", "unknown")}
    if by_kind["use"]:
        fixes.append(ship.format(",".join(item.name for item in by_kind["use"])))
    if by_kind["import"]:
        added = "\n    ".join(dict.fromkeys(item.text for item in by_kind["import"]))
        fixes.append(f"add to {where}:\n    {added}")
    if by_kind["module"]:
        fixes.append(" ".join(f"--module {item.text}" for item in by_kind["module"]) + " ships the local modules")
    if by_kind["unknown"]:
        fixes.append("define or correct " + ", ".join(item.name for item in by_kind["unknown"]))
    what = "a name" if len(missing) == 1 else f"{len(missing)} names"
    return SourceError(
        f"{where.replace('the cell', 'The cell')} uses {what} that the job would not have: {names}.",
        "\n  " + "\n  ".join(lines),
        "\n  " + "\n  ".join(fixes),
    )

"""Names that code uses and does not define: the scope rules of Python, each with the line of the first use."""

from __future__ import annotations

import builtins
import symtable
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfnb.source.analysis import analyse
from kfnb.source.translate import parse

CERTAIN, MAYBE = True, False

CASES = [
    ("x = 1\nprint(x)", {}),
    ("model = model.train()", {"model": (1, CERTAIN)}),
    ("count += 1", {"count": (1, CERTAIN)}),
    ("print(lr)\nlr = 3", {"lr": (1, CERTAIN)}),
    ("def f():\n  return lr\nlr = 1", {}),
    ("def f():\n  return lr", {"lr": (2, MAYBE)}),
    ("def f():\n  return lr\nprint(lr)", {"lr": (2, CERTAIN)}),
    ("class A:\n  lr = lr", {"lr": (2, CERTAIN)}),
    ("class A:\n  lr = 1\n  x = lr\n  def f(self): return lr", {"lr": (4, MAYBE)}),
    ("class A:\n  n = 3\n  y = [n for i in range(2)]", {"n": (3, MAYBE)}),
    ("class A:\n  n = 3\n  y = [i for i in range(n)]", {}),
    ("class A:\n  def f(self): return super().f(), __class__, A", {}),
    ("class A(Base, metaclass=Meta): pass", {"Base": (1, CERTAIN), "Meta": (1, CERTAIN)}),
    ("[y for x in z for y in x if y > low]", {"z": (1, CERTAIN), "low": (1, MAYBE)}),
    ("def f():\n  return [lr for _ in xs]", {"lr": (2, MAYBE), "xs": (2, MAYBE)}),
    ("if (n := 10) > 5: print(n)", {}),
    ("[last := i for i in range(3)]\nlast", {}),
    ("match q:\n  case {'a': b, **r}: print(b, r)\n  case [a, *c] as d: print(a, c, d)", {"q": (1, CERTAIN)}),
    ("match 1:\n  case K(x=v): print(v)", {"K": (2, MAYBE)}),
    ("try:\n  lr\nexcept NameError:\n  lr = 1\nprint(lr)", {}),
    ("try:\n  lr\nexcept (ValueError, NameError):\n  pass", {}),
    ("try:\n  lr\nexcept ValueError:\n  pass", {"lr": (2, MAYBE)}),
    ("try:\n  lr\nfinally:\n  x", {"lr": (2, MAYBE), "x": (4, CERTAIN)}),
    ("with contextlib.suppress(NameError):\n  del lr", {"contextlib": (1, CERTAIN)}),
    ("with a:\n  b", {"a": (1, CERTAIN), "b": (2, MAYBE)}),
    (
        "a or b\nc if d else e\nf < g < h\nassert i, j",
        {
            "a": (1, CERTAIN),
            "b": (1, MAYBE),
            "c": (2, MAYBE),
            "d": (2, CERTAIN),
            "e": (2, MAYBE),
            "f": (3, CERTAIN),
            "g": (3, CERTAIN),
            "h": (3, MAYBE),
            "i": (4, CERTAIN),
            "j": (4, MAYBE),
        },
    ),
    ("if a:\n  b\nb", {"a": (1, CERTAIN), "b": (2, CERTAIN)}),
    (
        "if False: a\nif 0:\n  b\nelse: c\nwhile not 1: d\ne if True else f",
        {
            "c": (4, MAYBE),
            "e": (6, MAYBE),
        },
    ),
    ("import sys\na\nif a: sys.exit()\nb", {"a": (2, CERTAIN), "b": (4, MAYBE)}),
    ("if t.TYPE_CHECKING: g\nif TYPE_CHECKING: h", {"t": (1, CERTAIN), "TYPE_CHECKING": (2, CERTAIN)}),
    ("x: x = 1", {}),
    ("{1: (n := 1), n: 2}\na[(i := 0)] += i", {"a": (2, CERTAIN)}),
    ("class A((B := list)): pass\nB", {}),
    ("try:\n  1\nexcept ValueError as e:\n  print(e)", {}),
    ("def f():\n  try:\n    return lr\n  except NameError:\n    return 0", {}),
    ("if 'lr' in globals():\n  print(lr)", {}),
    ("def f():\n  global g\n  g = 1\nf()\nprint(g)", {}),
    ("def f():\n  x = 1\n  def h():\n    nonlocal x\n    x += 1\n  return h", {}),
    ("del model", {"model": (1, CERTAIN)}),
    ("def f():\n  x = 1\n  del x", {}),
    ("import torch.nn.functional as F, os.path\nF, os\ntorch", {"torch": (3, CERTAIN)}),
    ("from a import b as c\nc\nb", {"b": (3, CERTAIN)}),
    ("@dec\ndef f(*args, **kw): return args, kw", {"dec": (1, CERTAIN)}),
    ("lambda x, y=z: x + w", {"z": (1, CERTAIN), "w": (1, MAYBE)}),
    ("from __future__ import annotations\ndef f(x: T = d) -> R: pass", {"d": (2, CERTAIN)}),
    ("def f():\n  x: Unknown = 1", {}),
    ("x: int\nprint(x)", {"x": (2, CERTAIN)}),
    ("print(__name__, __file__, open, exit, input, ValueError, __debug__)", {}),
    ("display(1)\nget_ipython()", {"display": (1, CERTAIN), "get_ipython": (2, CERTAIN)}),
    ("for i in range(3):\n  if i: print(prev)\n  prev = i", {"prev": (2, MAYBE)}),
    ("for i in range(3):\n  model = model.step()", {"model": (2, MAYBE)}),
    ("while x:\n  x = 0", {"x": (1, CERTAIN)}),
    ("while True:\n  try:\n    b = next(it)\n  except StopIteration: break", {"it": (3, MAYBE)}),
    ("with open('f') as g, q() as (a, b): a, b, g", {"q": (1, MAYBE)}),
    ("async def f():\n  async for x in y: x\nawait f()", {"y": (2, MAYBE)}),
    ("f'{x!r:>{w}}'", {"x": (1, CERTAIN), "w": (1, CERTAIN)}),
    ("a = b = 1\n(c, *d), e.f, g[h] = z", {"z": (2, CERTAIN), "e": (2, CERTAIN), "g": (2, CERTAIN), "h": (2, CERTAIN)}),
]
if sys.version_info < (3, 14):  # annotations are evaluated when somebody asks for them since
    CASES.append(("def f(x: T = d) -> R: pass", {"d": (1, CERTAIN), "T": (1, CERTAIN), "R": (1, CERTAIN)}))
if sys.version_info >= (3, 12):
    CASES.append(("def f[T](x: T) -> T: return x\nclass C[U]:\n  a: U\ntype X[V] = list[V]\nprint(X)", {}))
    CASES.append(("class A:\n  T = int\n  def f[U](self, x: T) -> U: pass", {}))


@pytest.mark.parametrize(("source", "free"), CASES)
def test_free_names(source: str, free: dict[str, tuple[int, bool]]) -> None:
    found = analyse(parse(source)).free
    assert {name: (use.line, use.certain) for name, use in found.items()} == free


def test_names_that_the_notebook_adds_to_builtins_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "execfile", lambda: None, raising=False)
    assert "execfile" in analyse(parse("execfile()")).free


def test_what_else_is_seen() -> None:
    names = analyse(
        parse("import a.b, c as d\nfrom e import f\nfrom g import *\nfrom . import h\ndef t():\n  m = 1\nexec('')")
    )
    assert names.modules == {"a.b": 1, "c": 1, "e": 2, "e.f": 2, "g": 3}
    assert names.stars == {"g": 3}
    assert names.inner == {"m": "t"}
    assert names.dynamic
    assert {"a", "d", "f", "h", "t"} <= names.bound


names = st.sampled_from(["a", "b", "c"])
# From 3.12 on, the symbol table has the names of inlined list comprehensions in the scope around.
COMPREHENSION = "list({} for {} in {})" if sys.version_info >= (3, 12) else "[{} for {} in {}]"
expressions = st.recursive(
    names,
    lambda e: (
        st.builds("({} + {})".format, e, e)
        | st.builds(COMPREHENSION.format, e, names, e)
        | st.builds("(lambda {}: {})".format, names, e)
    ),
    max_leaves=4,
)
blocks = st.recursive(
    st.builds("{} = {}".format, names, expressions) | st.builds("print({})".format, expressions),
    lambda b: (
        st.lists(b, min_size=1, max_size=3).map("\n".join)
        | st.builds(lambda n, p, body: f"def {n}({p}):\n{indent(body)}", names, names, b)
        | st.builds(lambda n, body: f"class {n}:\n{indent(body)}", names, b)
    ),
    max_leaves=6,
)


def indent(text: str) -> str:
    return "\n".join("  " + line for line in text.split("\n"))


@given(blocks)
def test_names_agree_with_the_compiler(source: str) -> None:
    """What Python's own symbol table resolves to a global that the module never binds is exactly what is free, or more
    where a name is used at module level before it is bound."""
    found = set(analyse(parse(source)).free)
    table = symtable.symtable(source, "<test>", "exec")
    bound = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}
    used: set[str] = set()

    def visit(scope: symtable.SymbolTable) -> None:
        for symbol in scope.get_symbols():
            is_global = symbol.is_global() or scope.get_type() == "module"
            if symbol.is_referenced() and is_global and not symbol.is_imported():
                used.add(symbol.get_name())
        for child in scope.get_children():
            visit(child)

    visit(table)
    certain = used - bound - {"print", "list"}
    assert certain <= found
    assert found <= used | {name for name in "abc" if f"class {name}" in source or "class" in source}

"""A cell, a function or a script as a Bundle: what exactly is shipped, and what it still lacks."""

from __future__ import annotations

from kfnb.source.build import cell_source, function_source, script_source
from kfnb.source.bundle import Bundle

__all__ = ["Bundle", "cell_source", "function_source", "script_source"]

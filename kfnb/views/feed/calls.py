"""What views can ask of a feed. Their parameters are untrusted; each call gives a result (JSON) and buffers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from kfnb.api import prepare_again
from kfnb.errors import KfnbError, UsageError
from kfnb.events import Phase
from kfnb.views.feed.curves import thin
from kfnb.views.feed.store import SHOWN, WHOLE

if TYPE_CHECKING:
    from kfnb.views.feed.feed import Feed

Answer = tuple[dict[str, Any], list[bytes]]

#: Lines of one answer, and of one with whole lines.
LINES, WHOLE_LINES = 2_000, 50

#: Characters of a search, and ranks that it is limited to.
SEARCH, RANKS = 1_000, 10_000

#: Most points of one answer.
POINTS = 20_000


async def answer(feed: Feed, method: str, params: Mapping[str, Any]) -> Answer:
    """Raises ``KfnbError``: ``UsageError`` for what cannot be asked."""
    ask = _METHODS.get(method)
    if ask is None:
        raise UsageError(f"There is no {method!r} to ask of a job.", fix="Reload the page.")
    return await ask(feed, params)


async def _lines(feed: Feed, params: Mapping[str, Any]) -> Answer:
    view = (await feed.read()).log.view()
    if "indices" not in params:
        first, count = _whole(params, "first"), min(_whole(params, "count"), LINES)
        lines = await asyncio.to_thread(view.range, first, count)
        return {"first": first, "count": lines.count}, lines.buffers
    whole = params.get("whole") is True
    indices = _numbers(params, "indices", WHOLE_LINES if whole else LINES)
    places = sorted({index for index in indices if 0 <= index < view.total})
    lines = await asyncio.to_thread(view.pick, places, limit=WHOLE if whole else SHOWN)
    return {"indices": places, "first": places[0] if places else 0, "count": lines.count}, lines.buffers


async def _scan(feed: Feed, params: Mapping[str, Any]) -> Answer:
    text, since = params.get("text", ""), _whole(params, "since")
    if not isinstance(text, str) or len(text) > SEARCH:
        raise _unusable("text")
    ranks = None if params.get("ranks") is None else _numbers(params, "ranks", RANKS)
    if ranks is not None:
        ranks = [rank for rank in ranks if -(1 << 31) <= rank < 1 << 31]
    view = (await feed.read()).log.view()
    async with feed.searches:
        found = await asyncio.to_thread(view.scan, text, ranks, since)
    result = {"count": len(found.indices), "truncated": found.truncated, "upto": found.upto}
    return result, [found.indices.tobytes()]


async def _curve(feed: Feed, params: Mapping[str, Any]) -> Answer:
    import numpy as np

    first, last, points = _real(params, "from", -math.inf), _real(params, "to", math.inf), _whole(params, "points")
    x = params.get("x", "step")
    if x not in ("step", "time"):
        raise _unusable("x")
    source = await feed.read()
    with feed.lock:
        key = source.series(str(params.get("sid")))
        series = None if key is None else source.state.series[key]
    if series is None:
        raise UsageError("There is no such curve.", fix="Reload the page.")
    xs = series.step if x == "step" else series.wall_time
    within = np.flatnonzero((xs >= first) & (xs <= last))
    kept = within[thin(series.value[within], min(points, POINTS))]
    columns = [column[kept].astype(np.float64).tobytes() for column in (series.step, series.wall_time, series.value)]
    return {"count": len(kept), "total": len(within)}, columns


async def _stacks(feed: Feed, params: Mapping[str, Any]) -> Answer:
    return {"stacks": {str(rank): text for rank, text in (await feed.job.astacks()).items()}}, []


async def _stop(feed: Feed, params: Mapping[str, Any]) -> Answer:
    await feed.job.astop(wait=False)
    phase = (await feed.job.ainfo()).phase
    return {"phase": str(phase if phase.terminal else Phase.STOPPING)}, []  # it has been asked, and soon says so


async def _again(feed: Feed, params: Mapping[str, Any]) -> Answer:
    prepared = await prepare_again(feed.job.id, {})
    return {"id": (await prepared.submit()).id}, []


async def _script(feed: Feed, params: Mapping[str, Any]) -> Answer:
    from kfnb.views.script import as_script, filename

    job = feed.job
    record, bundle = await job.arecord(), await job._backend.bundle(job.id)
    return {"text": await asyncio.to_thread(as_script, record, bundle), "filename": filename(record)}, []


_METHODS: dict[str, Callable[[Feed, Mapping[str, Any]], Awaitable[Answer]]] = {
    "lines": _lines,
    "scan": _scan,
    "curve": _curve,
    "stacks": _stacks,
    "stop": _stop,
    "again": _again,
    "script": _script,
}


def _unusable(name: str) -> KfnbError:
    return UsageError(f"What a view asked cannot be used: {name}.", fix="Reload the page.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(params: Mapping[str, Any], name: str) -> int:
    value = params.get(name, 0)
    if not _is_number(value) or not 0 <= value < 1 << 53:
        raise _unusable(name)
    return int(value)


def _real(params: Mapping[str, Any], name: str, default: float) -> float:
    value = params.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise _unusable(name)
    return min(max(value, -1e308), 1e308)


def _numbers(params: Mapping[str, Any], name: str, most: int) -> list[int]:
    values = params.get(name)
    if not isinstance(values, (list, tuple)) or len(values) > most or not all(map(_is_number, values)):
        raise _unusable(name)
    return list(values)

"""Curves thinned to what a plot can show: the least and the greatest point of each stretch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

#: Fewest points that a curve is thinned to.
FEWEST = 8


def thin(values: np.ndarray[Any, Any], points: int) -> np.ndarray[Any, Any]:
    """The places of about ``points`` of the values, and never more than that (or ``FEWEST``): ascending indices.

    The first and the last value are among them, and of equal stretches the least and the greatest. Non-finite values
    are as long as they are few (a quarter); else the first and the last one of each stretch.
    """
    import numpy as np

    count, points = len(values), max(points, FEWEST)
    if count <= points:
        return np.arange(count)
    finite = np.isfinite(values)
    strange = np.flatnonzero(~finite)
    few = len(strange) <= points // 4
    room = points - 2 - (len(strange) if few else 0)
    stretch = -(-count // (room // (2 if few else 4)))
    kept = [np.array([0, count - 1]), strange if few else _ends(strange, stretch)]
    if len(strange) < count:
        kept += _extremes(values, finite, stretch)
    return np.unique(np.concatenate(kept))


def _extremes(values: np.ndarray[Any, Any], finite: np.ndarray[Any, Any], stretch: int) -> list[np.ndarray[Any, Any]]:
    """Where the least and the greatest finite value of each stretch is."""
    import numpy as np

    found = []
    stretches = -(-len(values) // stretch)
    starts = np.arange(stretches) * stretch
    for fill, choose in ((np.inf, np.argmin), (-np.inf, np.argmax)):
        padded = np.full(stretches * stretch, fill)
        np.copyto(padded[: len(values)], values, where=finite)
        places = starts + choose(padded.reshape(stretches, stretch), axis=1)
        places = places[places < len(values)]
        found.append(places[finite[places]])
    return found


def _ends(places: np.ndarray[Any, Any], stretch: int) -> np.ndarray[Any, Any]:
    """The first and the last place in each stretch."""
    import numpy as np

    of = places // stretch
    changes = np.flatnonzero(np.diff(of))
    kept: np.ndarray[Any, Any] = places[np.concatenate([[0], changes, changes + 1, [len(places) - 1]])]
    return kept

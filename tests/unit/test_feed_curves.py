"""Thinned curves show what matters of the whole ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from kfnb.views.feed.curves import FEWEST, thin

VALUES = st_numpy.arrays(
    np.float64,
    st.integers(0, 400),
    elements=st.floats(-1e6, 1e6) | st.sampled_from([np.nan, np.inf, -np.inf]),
    fill=st.floats(-1e6, 1e6),
)


@given(VALUES, st.integers(0, 100))
def test_the_ends_and_the_extremes_are_kept_in_order(values: np.ndarray, points: int) -> None:
    kept = thin(values, points)
    assert len(kept) <= max(points, FEWEST)
    assert (np.diff(kept) > 0).all()
    if not len(values):
        return
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    finite, shown = values[np.isfinite(values)], values[kept]
    if len(finite):
        assert np.nanmin(shown[np.isfinite(shown)]) == finite.min()
        assert np.nanmax(shown[np.isfinite(shown)]) == finite.max()
    strange = np.flatnonzero(~np.isfinite(values))
    if len(strange) <= max(points, FEWEST) // 4:
        assert set(strange) <= set(kept)
    elif len(strange):
        assert {strange[0], strange[-1]} <= set(kept)


@given(VALUES)
def test_a_curve_with_room_stays_whole(values: np.ndarray) -> None:
    assert thin(values, max(len(values), FEWEST)).tolist() == list(range(len(values)))


def test_every_stretch_has_its_peak() -> None:
    values = np.zeros(100_000)
    values[::1_000] = 1.0
    assert thin(values, 1_000).tolist().count(0) == 1
    assert np.isin(np.arange(0, 100_000, 1_000), thin(values, 1_000)).all()


def test_a_curve_that_diverged_stays_bounded() -> None:
    values = np.concatenate([np.arange(1_000.0), np.full(100_000, np.nan)])
    kept = thin(values, 400)
    assert 999 in kept
    assert 1_000 in kept
    assert np.isnan(values[kept]).sum() > 100
    assert len(kept) <= 400

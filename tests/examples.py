"""The number of examples of a property test, which grows with the profile of hypothesis; and any JSON."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st


def examples(count: int, **options: int) -> settings:
    """Set the examples of a property test, of 100 by default; the profile `long` tries 20 times as many."""
    return settings(max_examples=count * settings.default.max_examples // 100, **options)


def json_values(*keys: str) -> st.SearchStrategy[Any]:
    """Strategy for JSON values, including NaN and infinities; objects have some of these keys."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(keys), inner, max_size=5),
        max_leaves=20,
    )

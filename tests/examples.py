"""The number of examples of a property test, which grows with the profile of hypothesis."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int, **options: int) -> settings:
    """Set the examples of a property test, of 100 by default; the profile `long` tries 20 times as many."""
    return settings(max_examples=count * settings.default.max_examples // 100, **options)

"""Wrong usage of a command: the error quotes the given value."""

from __future__ import annotations

from typing import Any, Final

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from model.domain import printable

MOST_SHOWN: Final = 64
"""Characters of a value in an error."""


class QuotingGroup(TyperGroup):
    """Commands that quote options and arguments that cannot be parsed."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401, D102 inherited
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                got = printable(repr(cause.errors()[0]["input"]), MOST_SHOWN)
                error.message += "" if got in error.message else f", got {got}"
            raise

"""Bodies that are read by their plan: the head is their JSON without the numbers.

Where numbers stand behind the JSON, that is all of it; else it is what stands around the lists of `data`.
What has no plan is read with care: a head that comes for the first time, a long one, some numbers here and
some there. This module must not know paths or statuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from service.core.predictor import LoadedModel
from service.http.oip_body import Asked, decoded, encoded, json_size
from service.http.oip_text import TextPlan, is_head, parted
from service.oip.inference import Inference, InferQuery, InferReply
from service.oip.plan import Plan, Plans, placed
from service.oip.rows import Form, RowForm, TextForm, blank
from service.oip.tensors import TensorSpec
from service.oip.windows import Group

Read = tuple[Asked, Group, Form | None]
"""What a body asks, its windows, and how their answer is written; None: with care."""

_ENCODE: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode


class Bodies:
    """Reads bodies, by a plan where there is one."""

    def __init__(self, inference: Inference) -> None:
        self._inference: Final = inference
        # By the model's name and the JSON, or what of it stands around the numbers.
        self.plans: Final[Plans[tuple[str, bytes], Plan[Asked]]] = Plans()
        self.text_plans: Final[Plans[tuple[str, tuple[bytes, ...]], TextPlan[Asked]]] = Plans()

    def read(self, model: LoadedModel, body: bytes, header_length: bytes) -> Read:
        """Read a body and check its windows.

        Raises:
            MalformedBody, InvalidTensor, TooLarge: as `decoded` and `Inference.read` say.
        """
        size = json_size(body, header_length)
        return self._read_text(model, body) if size == len(body) else self._read_raw(model, body, size)

    def _read_raw(self, model: LoadedModel, body: bytes, size: int) -> Read:
        head = (model.name.name, body[:size])
        plan = self.plans.get(head)
        group = None if plan is None else plan.read(body)
        if plan is not None and group is not None:
            return plan.asked, group, plan.form
        asked, group = self._with_care(model, body, size)
        raw = all(isinstance(given.contents, memoryview) for given in asked.query.inputs)
        if not raw or not self.plans.due(head, size=size):
            return asked, group, None
        plan = self._planned(model, asked, group, start=size)
        self.plans.keep(head, plan)
        return asked, group, plan.form

    def _read_text(self, model: LoadedModel, body: bytes) -> Read:
        around, texts = parted(body)
        head = (model.name.name, around)
        known = self.text_plans.get(head)
        group = None if known is None else known.read(texts)
        if known is not None and group is not None:
            return known.plan.asked, group, known.plan.form
        asked, group = self._with_care(model, body, len(body))
        if known is not None:
            return asked, group, known.plan.form
        due = self.text_plans.due(head, size=sum(map(len, around)))
        if not due or not is_head(around, inputs=len(asked.query.inputs)):
            return asked, group, None
        plan = self._planned(model, asked, group, start=0)
        self.text_plans.keep(head, TextPlan(plan))
        return asked, group, plan.form

    def _with_care(self, model: LoadedModel, body: bytes, size: int) -> tuple[Asked, Group]:
        asked = decoded(body, b"%d" % size)
        return asked, self._inference.read(model, asked.query)

    def _planned(self, model: LoadedModel, asked: Asked, group: Group, *, start: int) -> Plan[Asked]:
        """The plan of a body that was let in, whose numbers, once packed, begin at `start`."""
        query = asked.query
        inputs, size = placed(query.inputs, start)
        kept = Asked(  # without the numbers
            InferQuery((), query.outputs, query.id, query.timeout_seconds), asked.binary, asked.binary_by_name
        )
        wanted = self._inference.signature(model).wanted(query.outputs)
        return Plan(model, kept, inputs, size=size, form=_form(model, kept, wanted, group.cycles))


def _form(model: LoadedModel, asked: Asked, wanted: Sequence[TensorSpec], cycles: int) -> Form | None:
    """How the answer to one window is written; None where it is part JSON, part binary."""
    body, size = encoded(InferReply(model.name, asked.query.id, blank(wanted, cycles=cycles)), asked)
    binary = [asked.binary_by_name.get(spec.name, asked.binary) for spec in wanted]
    if size is not None:
        return RowForm(body[:size], wanted, [b""] * len(wanted), cycles=cycles) if all(binary) else None
    around, _ = parted(body)
    return TextForm(around, wanted, cycles=cycles, encode=_ENCODE)

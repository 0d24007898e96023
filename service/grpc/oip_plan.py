"""Messages that are read by their plan, without protobuf: the head is what stands before the raw contents.

What has no plan is read with care: a head that comes for the first time, a long one, typed contents, fields
in another order than that of their numbers.
"""

from __future__ import annotations

from typing import Final

import msgspec

from service.core.predictor import LoadedModel
from service.errors import MalformedBody
from service.grpc.call import parsed
from service.grpc.messages import tag
from service.grpc.oip_messages import query_of, response_of
from service.oip.inference import Inference, InferQuery, InferReply
from service.oip.plan import Kept, Placed, Plan, Plans
from service.oip.rows import Form, RowForm, blank
from service.oip.windows import Group
from service.proto import open_inference_pb2 as pb

RAW_INPUT: Final = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
RAW_OUTPUT: Final = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER


class Asked(msgspec.Struct, frozen=True, eq=False):
    """A query, of which model, and whether its contents and those of its answer are raw."""

    model: LoadedModel
    query: InferQuery
    raw: bool


Read = tuple[Asked, Group, Form | None]
"""What a message asks, its windows, and how their answer is written; None: with care."""


class Messages:
    """Reads messages, by a plan where there is one."""

    def __init__(self, inference: Inference) -> None:
        self._inference: Final = inference
        self.plans: Final[Plans[bytes, Plan[Asked]]] = Plans()
        self._sizes: Final[Kept[int, int]] = Kept()
        """Of the last message of so many bytes, how many were its head."""

    def read(self, message: bytes) -> Read:
        """Read a message and check its windows.

        Raises:
            UnknownModel, MalformedBody, InvalidTensor, TooLarge: as `query_of` and `Inference` say.
        """
        size = self._sizes.get(len(message))
        plan = None if size is None else self.plans.get(message[:size])
        group = None if plan is None else plan.read(message)
        if plan is not None and group is not None:
            return plan.asked, group, plan.form
        request = parsed(pb.ModelInferRequest, message)
        model = self._inference.model(request.model_name, request.model_version)
        query = query_of(request)
        group = self._inference.read(model, query)
        asked = Asked(model, query, bool(request.raw_input_contents))
        plan = self._planned(asked, group, message) if asked.raw else None
        return asked, group, None if plan is None else plan.form

    def _planned(self, asked: Asked, group: Group, message: bytes) -> Plan[Asked] | None:
        """The plan of a message that was let in, which is kept; None where its contents are not its end."""
        query, model = asked.query, asked.model
        before = [tag(RAW_INPUT, len(given.contents)) for given in query.inputs]
        behind = sum(
            len(each) + len(given.contents) for each, given in zip(before, query.inputs, strict=True)
        )
        head = message[: len(message) - behind]
        if not self.plans.due(head, size=len(head)) or not _is_head(head):
            return None
        fixed: list[tuple[int, bytes]] = []
        places: list[Placed] = []
        stop = len(head)
        for each, (name, datatype, shape, contents) in zip(before, query.inputs, strict=True):
            fixed.append((stop, each))
            start = stop + len(each)
            stop = start + len(contents)
            places.append(Placed(name, datatype, tuple(shape), start, stop))
        asked = Asked(model, InferQuery((), query.outputs, query.id, query.timeout_seconds), asked.raw)
        form = self._form(asked, group.cycles)
        plan = Plan(model, asked, places, size=len(message), fixed=fixed, form=form)
        self._sizes.keep(len(message), len(head))
        self.plans.keep(head, plan)
        return plan

    def _form(self, asked: Asked, cycles: int) -> RowForm:
        wanted = self._inference.signature(asked.model).wanted(asked.query.outputs)
        tensors = blank(wanted, cycles=cycles)
        response = response_of(InferReply(asked.model.name, asked.query.id, tensors), raw=True)
        response.ClearField("raw_output_contents")
        before = [tag(RAW_OUTPUT, tensor.values.nbytes) for tensor in tensors]
        return RowForm(response.SerializeToString(), wanted, before, cycles=cycles)


def _is_head(start: bytes) -> bool:
    """Whether fields end where the start of a message does, and raw contents are none of them.

    What is left has room for nothing but these.
    """
    try:
        return not parsed(pb.ModelInferRequest, start).raw_input_contents
    except MalformedBody:
        return False

"""A request that is read by its plan is answered, or refused, to the byte as one that is read with care."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from service.grpc.oip_messages import query_of, response_of
from service.grpc.oip_plan import Messages
from service.http.oip_plan import Bodies
from service.oip.plan import MAX_HEAD_BYTES, MAX_HEADS, Kept

from service.core.answers import Answers, WindowOutputs
from service.core.batcher import stacked
from service.core.predictor import LoadedModel, Predictor
from service.core.window import Window
from service.errors import InvalidTensor, ServiceError
from service.grpc.call import parsed
from service.http.oip_body import decoded, encoded
from service.oip.inference import Inference
from service.proto import open_inference_pb2 as pb
from tests.fakes import COLUMNS, FakeRuntime, fake_outputs, make_manifest
from tests.oip import NAMES, binary_request, json_request

CONTEXT = 4
MANIFEST = make_manifest(context=CONTEXT, heads=2)
MODEL = LoadedModel.of(FakeRuntime(MANIFEST), SimpleNamespace(), max_window_cycles=6)
PREDICTOR = Predictor({"fake": MODEL}, max_request_windows=3, explain_timer=SimpleNamespace())
INFERENCE = Inference(SimpleNamespace(predictor=PREDICTOR))
OUTPUTS = [spec.name for spec in INFERENCE.signature(MODEL).outputs]

READINGS = st.sampled_from([1.0, 1.0, 50.0, -3.5, 3.4e38, np.nan, np.inf, -np.inf])
CYCLES = st.sampled_from([9.0, 9.0, 3.0, 0.0, -1.0, 1.5, 2.0**24, 2.0**25, np.nan, np.inf])
NAMED = st.lists(st.sampled_from(OUTPUTS), unique=True, max_size=4)


@st.composite
def given_arrays(draw, shapes):
    """Inputs of these shapes; mostly right."""
    contents = {
        "readings": lambda shape: arrays.arrays(np.float32, shape, elements=READINGS, fill=st.just(1.0)),
        "lengths": lambda shape: arrays.arrays(np.int64, shape, elements=st.integers(0, CONTEXT + 1)),
        "last_cycle": lambda shape: arrays.arrays(np.float32, shape, elements=CYCLES),
    }
    usual = draw(st.booleans())
    made = {name: draw(contents[name](shape)) for name, shape in shapes.items()}
    if usual:
        made["readings"] = np.linspace(1, draw(st.integers(1, 90)), made["readings"].size, dtype="f4")
        made["readings"] = made["readings"].reshape(shapes["readings"])
        if "lengths" in made:
            made["lengths"][:] = shapes["readings"][1]
        if "last_cycle" in made:
            made["last_cycle"][:] = draw(st.sampled_from([np.nan, 100.0]))
    return made


@st.composite
def requests(draw):
    """Two sets of inputs of the same shapes, and what is asked of both."""
    count = draw(st.sampled_from([1, 1, 1, 2, 4]))
    cycles = draw(st.sampled_from([CONTEXT, CONTEXT, 1, 3, 5, 7]))
    shapes = {"readings": (count, cycles, len(COLUMNS))}
    for name in draw(st.sets(st.sampled_from(["lengths", "last_cycle"]))):
        shapes[name] = (count,)
    shapes = dict(draw(st.permutations(list(shapes.items()))))
    options = SimpleNamespace(
        outputs=draw(NAMED),
        id=draw(st.sampled_from(["", "a", "b", 'c"', "é"])),
        timeout=draw(st.sampled_from([None, 0, 1500])),
        binary=draw(st.sampled_from([None, True, True, False])),
        flags=draw(st.dictionaries(st.sampled_from(OUTPUTS), st.booleans(), max_size=2)),
    )
    return [draw(given_arrays(shapes)) for _ in range(2)], options


def asked_by_http(options):
    """What a body asks beside its inputs."""
    outputs = [
        {"name": name, "parameters": {"binary_data": options.flags[name]}}
        if name in options.flags
        else {"name": name}
        for name in options.outputs
    ]
    parameters = {"binary_data_output": options.binary, "timeout": options.timeout}
    return {"id": options.id, "parameters": parameters} | ({"outputs": outputs} if outputs else {})


def by_http(inputs, options):
    """A body and the header that says how much of it is JSON."""
    body, size = binary_request(inputs, **asked_by_http(options))
    return body, str(size).encode()


def by_json(inputs, options, separators=None):
    """The same as JSON alone."""
    request = json_request(inputs, **asked_by_http(options))
    return json.dumps(request, separators=separators).encode(), b""


def by_grpc(inputs, options):
    """The same as a message, raw."""
    given = [
        pb.ModelInferRequest.InferInputTensor(name=name, datatype=NAMES[array.dtype], shape=array.shape)
        for name, array in inputs.items()
    ]
    outputs = [pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in options.outputs]
    request = pb.ModelInferRequest(
        model_name="fake",
        id=options.id,
        inputs=given,
        outputs=outputs,
        raw_input_contents=[array.tobytes() for array in inputs.values()],
    )
    if options.timeout is not None:
        request.parameters["timeout"].int64_param = options.timeout
    return request.SerializeToString()


def answered(windows, others):
    """Their answers, out of a batch that they share with other windows of so many cycles."""
    rest = [Window(None, np.ones((n, len(COLUMNS)), np.float32), 9.0, 1, 0.0, ()) for n in others]
    batch = [*rest, *windows]
    readings, lengths, last_cycle = stacked(batch)
    with np.errstate(over="ignore", invalid="ignore"):  # the stand-in adds up readings, however large
        outputs = fake_outputs(readings, lengths, MANIFEST)
    answers = Answers(outputs, lengths, MANIFEST, last_cycle=last_cycle)
    return [WindowOutputs(answers, row) for row in range(len(rest), len(batch))]


def outcome(read, write, others):
    """What is asked, the windows as they were let in and the answer, or the refusal."""
    try:
        query, group, form, how = read()
    except ServiceError as error:
        return type(error), str(error)
    outputs = answered(group.windows, others)
    written = form and form.written(outputs[0])
    if written is None:
        answer = write(INFERENCE.reply(MODEL, group, query, outputs), how)
    else:
        answer = b"".join(written), (len(written[0]) or None) if write is encoded else None
    seen = [(w.readings.tolist(), w.last_cycle, w.first_cycle, w.imputed_fraction) for w in group.windows]
    asked = (query.id, list(query.outputs), query.timeout_seconds)
    return repr((asked, seen, group.cycles, group.starts, group.stops)), answer


def http_outcomes(bodies, body, size, others):
    """By a plan where there is one, and with care."""

    def quick():
        asked, group, form = bodies.read(MODEL, body, size)
        return asked.query, group, form, asked

    def careful():
        asked = decoded(body, size)
        return asked.query, INFERENCE.read(MODEL, asked.query), None, asked

    return outcome(quick, encoded, others), outcome(careful, encoded, others)


def grpc_outcomes(messages, message, others):
    """The same of a message."""

    def quick():
        asked, group, form = messages.read(message)
        return asked.query, group, form, asked.raw

    def careful():
        request = parsed(pb.ModelInferRequest, message)
        model = INFERENCE.model(request.model_name, request.model_version)
        query = query_of(request)
        return query, INFERENCE.read(model, query), None, bool(request.raw_input_contents)

    def write(reply, raw):
        return response_of(reply, raw=raw).SerializeToString(), None

    return outcome(quick, write, others), outcome(careful, write, others)


def usual(**changed):
    """What is asked by most."""
    return SimpleNamespace(
        **{"outputs": [], "id": "", "timeout": None, "binary": True, "flags": {}, **changed}
    )


USUAL = usual()


def inputs(rul=40.0, *, cycles=CONTEXT):
    """A window that is answered with this RUL."""
    readings = np.zeros((1, cycles, len(COLUMNS)), np.float32)
    readings[:, :, 1] = rul
    return {"readings": readings, "last_cycle": np.array([100], np.float32)}


CONTENTS = (2 + 48) + (2 + 4)
"""Bytes of their raw contents in a message, each behind its tag and its length."""

WINDOW = Window(None, inputs()["readings"][0], 100.0, 97, 0.0, ())


def read_all(bodies, messages, options):
    """Ask for the same in every way; how the answers are to be written."""
    forms = [bodies.read(MODEL, *make(inputs(), options))[2] for make in (by_http, by_json)]
    return [*forms, messages.read(by_grpc(inputs(), options))[2]]


# One for all examples: what an earlier one left in it must not show.
BODIES, MESSAGES = Bodies(INFERENCE), Messages(INFERENCE)


@settings(max_examples=300)
@given(requests(), st.lists(st.integers(1, CONTEXT), max_size=2))
def test_bodies_are_answered_by_a_plan_as_with_care(asked, others):
    given_inputs, options = asked

    for each in (*given_inputs, *given_inputs):
        by_plan, with_care = http_outcomes(BODIES, *by_http(each, options), others)

        assert by_plan == with_care


@settings(max_examples=300)
@given(
    requests(),
    st.lists(st.integers(1, CONTEXT), max_size=2),
    st.sampled_from([None, (",", ":"), (",", " : ")]),
)
def test_json_is_answered_by_a_plan_as_with_care(asked, others, separators):
    given_inputs, options = asked

    for each in (*given_inputs, *given_inputs):
        by_plan, with_care = http_outcomes(BODIES, *by_json(each, options, separators), others)

        assert by_plan == with_care


@settings(max_examples=300)
@given(requests(), st.lists(st.integers(1, CONTEXT), max_size=2))
def test_messages_are_answered_by_a_plan_as_with_care(asked, others):
    given_inputs, options = asked

    for each in (*given_inputs, *given_inputs):
        by_plan, with_care = grpc_outcomes(MESSAGES, by_grpc(each, options), others)

        assert by_plan == with_care


@settings(max_examples=200)
@given(st.data())
def test_a_body_with_a_known_head_that_is_damaged_is_treated_as_with_care(data):
    body, size = data.draw(st.sampled_from([by_http, by_json]))(inputs(), USUAL)
    bodies = Bodies(INFERENCE)
    for _ in range(2):
        bodies.read(MODEL, body, size)

    cut = data.draw(st.integers(0, len(body)))
    damaged = body[:cut] + data.draw(st.binary(max_size=4)) + body[cut + data.draw(st.integers(0, 4)) :]
    by_plan, with_care = http_outcomes(bodies, damaged, size, [])

    assert by_plan == with_care


@settings(max_examples=200)
@given(st.data())
def test_a_message_with_a_known_head_that_is_damaged_is_treated_as_with_care(data):
    message = by_grpc(inputs(), USUAL)
    messages = Messages(INFERENCE)
    for _ in range(2):
        messages.read(message)

    place = data.draw(st.integers(0, len(message) - 1))
    damaged = message[:place] + data.draw(st.binary(min_size=1, max_size=1)) + message[place + 1 :]
    by_plan, with_care = grpc_outcomes(messages, damaged, [])

    assert by_plan == with_care


def test_the_third_request_with_a_head_is_read_and_answered_by_the_plan_of_the_second():
    by_body = lambda body: BODIES.read(MODEL, *body)  # noqa: E731
    for read, make in ((by_body, by_http), (by_body, by_json), (MESSAGES.read, by_grpc)):
        read(make(inputs(0.0), USUAL))
        _, _, planned = read(make(inputs(10.0), USUAL))

        _, group, form = read(make(inputs(20.0), USUAL))

        assert group.windows[0].readings[0].tolist() == [0, 20, 0]
        assert form is planned is not None


def test_what_a_batch_answered_is_laid_out_once_for_all_of_one_form():
    asked = [by_http(inputs(), usual(id=each)) for each in "ab"]
    forms = [[BODIES.read(MODEL, *each) for _ in range(2)][-1][2] for each in asked]
    outputs = answered([WINDOW] * 2, [])

    written = [form.written(output) for form, output in zip(forms, outputs, strict=True)]

    assert b'"id":"a"' in written[0][0]
    assert b'"id":"b"' in written[1][0]
    assert len(outputs[0].answers.kept) == 1


def test_only_so_many_heads_are_kept_and_the_last_ones():
    kept = Kept()

    for number in range(3 * MAX_HEADS):
        kept.keep(number, str(number))
        kept.keep(number, str(number))

    assert list(kept) == list(range(2 * MAX_HEADS, 3 * MAX_HEADS))


def test_only_so_many_plans_are_kept():
    bodies, messages = Bodies(INFERENCE), Messages(INFERENCE)

    for number in range(MAX_HEADS + 20):
        for _ in range(2):
            read_all(bodies, messages, usual(id=str(number)))

    assert len(bodies.plans) == len(bodies.text_plans) == len(messages.plans) == MAX_HEADS


def test_callers_who_number_their_requests_drive_out_no_plan():
    bodies, messages = Bodies(INFERENCE), Messages(INFERENCE)
    planned = [read_all(bodies, messages, USUAL) for _ in range(2)][-1]

    for number in range(2 * MAX_HEADS):
        read_all(bodies, messages, usual(id=str(number)))

    assert len(bodies.plans) == len(bodies.text_plans) == len(messages.plans) == 1
    assert None not in planned
    assert read_all(bodies, messages, USUAL) == planned


def test_a_long_head_is_not_kept():
    bodies, messages = Bodies(INFERENCE), Messages(INFERENCE)

    for _ in range(3):
        read_all(bodies, messages, usual(id="x" * MAX_HEAD_BYTES))

    assert len(bodies.plans) == len(bodies.text_plans) == len(messages.plans) == 0


def test_what_is_refused_leaves_no_plan():
    bodies = Bodies(INFERENCE)
    wrong = inputs() | {"readings": np.ones((1, 2, 5), np.float32)}

    for _ in range(2):
        with pytest.raises(InvalidTensor):
            bodies.read(MODEL, *by_http(wrong, USUAL))

    assert not len(bodies.plans)


def test_numbers_that_stand_in_the_head_are_read_with_care():
    readings = inputs()["readings"]
    head = {
        "inputs": [
            {
                "name": "readings",
                "datatype": "FP32",
                "shape": [1, 4, 3],
                "parameters": {"binary_data_size": 48},
            },
            {"name": "last_cycle", "datatype": "FP32", "shape": [1], "data": [17.0]},
        ]
    }
    text = json.dumps(head).encode()
    bodies = Bodies(INFERENCE)

    for _ in range(3):
        _, group, form = bodies.read(MODEL, text + readings.tobytes(), str(len(text)).encode())

        assert group.windows[0].last_cycle == 17
        assert form is None


def test_a_field_that_looks_like_contents_is_none():
    messages = Messages(INFERENCE)

    for rul in (10.0, 10.0, 20.0):
        tail = by_grpc(inputs(rul), USUAL)[-CONTENTS:]
        unknown = bytes((15 << 3 | 2, len(tail))) + tail  # a field that the protocol does not have
        _, group, _ = messages.read(by_grpc(inputs(30.0), USUAL) + unknown)

        assert group.windows[0].readings[0, 1] == 30


@pytest.mark.parametrize("wanted", ["rul", "novelty"])
def test_fields_in_another_order_are_read_with_care(wanted):
    messages = Messages(INFERENCE)
    whole = by_grpc(inputs(10.0), USUAL)
    head, tail = whole[:-CONTENTS], whole[-CONTENTS:]
    output = pb.ModelInferRequest.InferRequestedOutputTensor(name=wanted)
    last = pb.ModelInferRequest(outputs=[output]).SerializeToString()

    for message in (head + tail + last, head + tail + last, head + tail):
        by_plan, with_care = grpc_outcomes(messages, message, [])

        assert by_plan == with_care


def test_no_plan_holds_a_body():
    bodies = Bodies(INFERENCE)
    body, size = by_http(inputs(), USUAL)
    for _ in range(2):
        bodies.read(MODEL, body, size)

    asked, _, _ = bodies.read(MODEL, body, size)

    assert asked.query.inputs == ()


@pytest.mark.parametrize(
    "input_of",
    [
        lambda other: f'"data" : [1, 2, 3], "parameters": {{"data": {other}}}',
        lambda other: f'"parameters": {{"x\\"data": {other}}}, "data" : [1, 2, 3]',
        lambda other: f'"data": {other}, "data" : [1, 2, 3]',
        lambda other: f'"data": {other}, "data": [1, 2, 3]',
    ],
    ids=["a parameter", "a name that ends so", "twice, once seen", "twice"],
)
def test_a_list_that_is_no_data_is_not_read_for_it(input_of):
    bodies = Bodies(INFERENCE)

    for other in ("[1, 2, 3]", "[1, 2, 3]", "[4, 5, 6]"):
        readings = f'{{"name": "readings", "datatype": "FP32", "shape": [1, 1, 3], {input_of(other)}}}'
        by_plan, with_care = http_outcomes(bodies, f'{{"inputs": [{readings}]}}'.encode(), b"", [])

        assert by_plan == with_care


def test_windows_of_one_batch_may_be_asked_for_different_outputs():
    asked = [
        usual(outputs=names, binary=binary)
        for names in (["rul"], ["novelty"], [])
        for binary in (True, False)
    ]
    bodies, messages = Bodies(INFERENCE), Messages(INFERENCE)
    forms = [form for each in asked for form in [read_all(bodies, messages, each) for _ in range(2)][-1]]
    together = answered([WINDOW] * len(forms), [])

    for form, output in zip(forms, together, strict=True):
        (alone,) = answered([WINDOW], [])

        assert form.written(output) == form.written(alone)


def test_a_list_that_is_too_long_does_not_lend_to_the_next():
    body, size = by_json(inputs(), USUAL)
    bodies = Bodies(INFERENCE)
    for _ in range(2):
        bodies.read(MODEL, body, size)

    lent = body.replace(b", 0.0]", b", 0.0, 100.0]").replace(b"[100.0]", b"[]")
    by_plan, with_care = http_outcomes(bodies, lent, size, [])

    assert by_plan == with_care
    assert by_plan[0] is InvalidTensor

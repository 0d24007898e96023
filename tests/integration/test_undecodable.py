"""A path, query or header that is not UTF-8 is refused at once, behind each front end."""

import json
import socket
from http.client import HTTPResponse

import grpc
import pytest

from tests.integration.conftest import ANSWER_SECONDS

PATHS = [
    b"/%ff",
    b"/v1/units/%c0%80",
    b"/v1/units/%ed%a0%80", b"/v1/units/a%E2%28%A1", b"/v2/models/%f5/infer", b"/\xff",
    b"/v1/units?model=%ff", b"/v1/units?%ff=1", b"/livez?\xff", b"/livez?%zz", b"/100%",
]  # fmt: skip
DECODABLE = {b"/v1/units/%C3%A9%2F%F0%9F%92%A5": 404, b"/livez?a=%c3%a9": 200, b"/100%25": 404}


def asked(server, target: bytes, headers: bytes = b"", method: bytes = b"GET") -> tuple[int, str, bytes]:
    """Status, media type and body of the answer to a request that no client would send."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_SECONDS) as connection:
        head = b"host: localhost\r\nconnection: close\r\ncontent-length: 0\r\n"
        connection.sendall(b"%s %s HTTP/1.1\r\n%s%s\r\n" % (method, target, head, headers))
        response = HTTPResponse(connection)
        response.begin()
        return response.status, response.headers["content-type"], response.read()


def status(server, target: bytes, headers: bytes = b"", method: bytes = b"GET") -> int:
    return asked(server, target, headers, method)[0]


@pytest.mark.parametrize("target", PATHS)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_path_or_query_that_is_not_utf8_is_refused(server, target, method):
    assert status(server, target, method=method) == 400


@pytest.mark.parametrize("target", [b"/%ff", b"/v1/units/%FF", b"/v1/units?model=%ff", b"/v20/%ff"])
def test_the_refusal_of_a_path_is_a_problem_as_every_other(server, target):
    code, media_type, body = asked(server, target)

    problem = json.loads(body)
    assert (code, media_type) == (400, "application/problem+json")
    assert problem.pop("request_id")
    assert problem.pop("detail").startswith("expected a path and a query in UTF-8")
    assert problem == {
        "type": "urn:rulserve:problem:malformed_body", "title": "The body is malformed", "status": 400,
        "errors": [],
    }  # fmt: skip


@pytest.mark.parametrize("target", [b"/v2/models/%f5/infer", b"/v2?a=%ff"])
def test_the_open_inference_protocol_keeps_its_own_form_of_it(server, target):
    code, media_type, body = asked(server, target)

    assert (code, media_type) == (400, "application/json")
    assert json.loads(body)["error"].startswith("expected a path and a query in UTF-8")


@pytest.mark.parametrize("target", DECODABLE)
def test_a_path_or_query_in_utf8_is_served(server, target):
    assert status(server, target) == DECODABLE[target]


@pytest.mark.parametrize("path", [b"/readyz", b"/metrics", b"/nothing"])
@pytest.mark.parametrize("name", [b"accept", b"x-request-id", b"authorization", b"x-other"])
def test_a_header_that_is_not_utf8_is_refused(server, path, name):
    assert status(server, path, name + b": \xff\xfe\r\n") == 400


def test_a_header_in_utf8_is_read(server):
    assert status(server, b"/metrics", "accept: é, 💥\r\n".encode()) == 200


def test_a_path_of_grpc_that_is_not_utf8_is_refused(channel):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/nothing/%ff")(b"", timeout=ANSWER_SECONDS)

    assert caught.value.code() in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL}


@pytest.mark.parametrize(
    ("quoted", "name"), [(b"a%2Fexplanation", "a/explanation"), (b"%2E%2E", ".."), (b"a%0A", "a\n")]
)
def test_a_quoted_name_is_one_part_of_a_path(server, quoted, name):
    _, _, body = asked(server, b"/v1/units/" + quoted)

    assert json.loads(body)["detail"].startswith(f"no reading or prediction of unit {name!r} ")

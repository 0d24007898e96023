"""A path, query or header that is not UTF-8 is refused at once, behind each front end."""

import socket

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


def status(server, target: bytes, headers: bytes = b"", method: bytes = b"GET") -> int:
    """The status of a request that no client would send."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        head = b"host: localhost\r\nconnection: close\r\ncontent-length: 0\r\n"
        connection.sendall(b"%s %s HTTP/1.1\r\n%s%s\r\n" % (method, target, head, headers))
        return int(connection.makefile("rb").readline().split()[1])


@pytest.mark.parametrize("target", PATHS)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_path_or_query_that_is_not_utf8_is_refused(server, target, method):
    assert status(server, target, method=method) == 400


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

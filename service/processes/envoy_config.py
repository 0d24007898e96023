"""Changes of Envoy's configuration, one function per concern.

Each function changes the given configuration in place. Of the service behind Envoy, this module knows only
the form of errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from service.edge.asgi import DECODABLE, UNDECODABLE
from service.errors import MalformedBody
from service.http.problem import problem

Config = dict[str, Any]

HEADERS_SECONDS: Final = 10.0
"""Maximum seconds for the head of a request to arrive, from its first byte."""
BACKSTOP_SECONDS: Final = 5.0
"""Added to the service's own limit of a body, which should end first and give the answer."""
FLUSH_SECONDS: Final = 30.0
"""Maximum seconds without progress for a client to read an answer larger than its buffers."""
IDLE_SECONDS: Final = 300.0
"""Seconds that an idle connection stays open; fewer if there are many connections."""
CROWDED_IDLE_SECONDS: Final = 1.0
CROWDED: Final = {"scaling_threshold": 0.5, "saturation_threshold": 0.9}
"""Shares of the connections between which IDLE_SECONDS falls to CROWDED_IDLE_SECONDS."""
STREAMS_A_CONNECTION: Final = 1000
STREAM_WINDOW_BYTES: Final = 1 << 20
CONNECTION_WINDOW_BYTES: Final = 4 << 20

CONNECTIONS: Final = "envoy.resource_monitors.global_downstream_max_connections"
HEAP: Final = "envoy.resource_monitors.fixed_heap"
NO_LIMIT_BYTES: Final = 1 << 50
TYPES: Final = "type.googleapis.com/envoy"

_PATH: Final = {"name": ":path", "string_match": {"safe_regex": {"regex": DECODABLE}}}
_UNDECODABLE: Final = {"permissions": [{"not_rule": {"header": _PATH}}], "principals": [{"any": True}]}
ACCESS_CONTROL: Final = {
    "name": "envoy.filters.http.rbac",
    "typed_config": {
        "@type": f"{TYPES}.extensions.filters.http.rbac.v3.RBAC",
        "rules": {"action": "DENY", "policies": {"undecodable": _UNDECODABLE}},
    },
}
"""Envoy's filter that refuses requests by their headers."""
DENIED: Final = 403
"""Internal status of that filter; the answer has the service's own form."""
LIVENESS: Final = {
    "name": "envoy.filters.http.health_check",
    "typed_config": {
        "@type": f"{TYPES}.extensions.filters.http.health_check.v3.HealthCheck",
        "pass_through_mode": False,
        "headers": [
            {"name": ":method", "string_match": {"safe_regex": {"regex": "GET|HEAD"}}},
            {"name": ":path", "string_match": {"safe_regex": {"regex": r"/(livez|healthz)(\?.*)?"}}},
        ],
    },
}
"""Envoy's filter that answers 200; 503 after `/healthcheck/fail` of the admin interface."""
ALIVE: Final = {"body_format_override": {"json_format": {"status": "alive"}}}
"""Body of that filter's 200, to tell it from other answers."""


def accept_ipv4(config: Config) -> None:
    """Accept IPv4 too on an address of IPv6 that stands for all, as other servers do."""
    for listener in config["static_resources"]["listeners"]:
        address = listener["address"]["socket_address"]
        address["ipv4_compat"] = address["address"] == "::"


def hide_admin(config: Config, *, socket: Path) -> None:
    """Put the admin interface on a Unix socket.

    The interface needs no key and can stop the process, so the socket is in a folder that only the service's
    user can open.
    """
    config["admin"] = {"address": {"pipe": {"path": str(socket), "mode": 0o600}}}


def answer_old_proxies(config: Config) -> None:
    """Accept HTTP/1.0: nginx's default to servers behind it; HAProxy's for checks, without `Host`."""
    for http in _http_managers(config):
        http["http_protocol_options"] = {"accept_http_10": True, "default_host_for_http_10": "localhost"}


def limit_slow_clients(config: Config, *, body_seconds: float, silent_seconds: float) -> None:
    """Limit the time of heads, bodies, silent streams and connections, and the HTTP/2 streams."""
    for http in _http_managers(config):
        http["stream_idle_timeout"] = _seconds(silent_seconds)
        http["request_headers_timeout"] = _seconds(HEADERS_SECONDS)
        http["request_timeout"] = _seconds(body_seconds + BACKSTOP_SECONDS)
        http["stream_flush_timeout"] = _seconds(FLUSH_SECONDS)
        http["common_http_protocol_options"] = {"idle_timeout": _seconds(IDLE_SECONDS)}
        http["http2_protocol_options"] = {
            "max_concurrent_streams": STREAMS_A_CONNECTION,
            "initial_stream_window_size": STREAM_WINDOW_BYTES,
            "initial_connection_window_size": CONNECTION_WINDOW_BYTES,
        }


def limit_connections(config: Config, *, most: int) -> None:
    """Close connections above `most` at once, and idle ones sooner if there are many."""
    monitors = f"{TYPES}.extensions.resource_monitors"
    kind = f"{monitors}.downstream_connections.v3.DownstreamConnectionsConfig"
    count = {"@type": kind, "max_active_downstream_connections": most}
    heap = f"{monitors}.fixed_heap.v3.FixedHeapConfig"
    idle = {"timer": "HTTP_DOWNSTREAM_CONNECTION_IDLE", "min_timeout": _seconds(CROWDED_IDLE_SECONDS)}
    scaling = f"{TYPES}.config.overload.v3.ScaleTimersOverloadActionConfig"
    config["overload_manager"] = {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            {"name": CONNECTIONS, "typed_config": count},
            # Envoy checks the connections only if it also polls another resource.
            {"name": HEAP, "typed_config": {"@type": heap, "max_heap_size_bytes": NO_LIMIT_BYTES}},
        ],
        "actions": [
            {
                "name": "envoy.overload_actions.reduce_timeouts",
                "triggers": [{"name": CONNECTIONS, "scaled": CROWDED}],
                "typed_config": {"@type": scaling, "timer_scale_factors": [idle]},
            }
        ],
    }


def refuse_undecodable(config: Config) -> None:
    """Answer 400 to a path or query that is not UTF-8, in the service's own form.

    The application cannot do it: pyvoy fails to decode such a path and would leave the request unanswered.
    """
    plain = {"status_code": 400, "body": {"inline_string": UNDECODABLE}}  # becomes the gRPC message
    _answer_first(
        config,
        ACCESS_CONTROL,
        _answer(DENIED, plain, header="content-type", regex="application/grpc.*"),
        _answer(DENIED, _problem("/v2"), header=":path", regex=r"/v2([/?].*)?"),
        _answer(DENIED, _problem("/")),
    )


def answer_liveness(config: Config) -> None:
    """Answer `/livez` and `/healthz` in Envoy; on the event loop they would wait behind requests."""
    _answer_first(config, LIVENESS, _answer(200, ALIVE))


def _answer_first(config: Config, http_filter: Config, *answers: Config) -> None:
    """Put a filter before all others, and map its answers; the first mapper that matches applies."""
    for http in _http_managers(config):
        http["http_filters"].insert(0, http_filter)
        http.setdefault("local_reply_config", {"mappers": []})["mappers"].extend(answers)


def _answer(status: int, answer: Config, *, header: str = "", regex: str = "") -> Config:
    """Map Envoy's own answers with a status, for all requests or those with a header."""
    comparison = {"op": "EQ", "value": {"default_value": status, "runtime_key": "-"}}
    fits = {"status_code_filter": {"comparison": comparison}}
    if header:
        alike = {"header": {"name": header, "string_match": {"safe_regex": {"regex": regex}}}}
        fits = {"and_filter": {"filters": [fits, {"header_filter": alike}]}}
    return {"filter": fits, **answer}


def _problem(path: str) -> Config:
    """Make the refusal of an undecodable path in the form of the service below this prefix."""
    error = MalformedBody(UNDECODABLE.replace("%", "%%"))  # Envoy substitutes %NAME%
    status, media_type, _, body = problem(error, "%UNIQUE_ID%", path)
    form = {"json_format": json.loads(body), "content_type": media_type.decode()}
    return {"status_code": status, "body_format_override": form}


def _http_managers(config: Config) -> Iterator[Config]:
    for listener in config["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            for one in chain["filters"]:
                yield one["typed_config"]


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}s"

"""Who may ask, and for what."""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from unittest.mock import Mock

import grpc
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from service.edge.access import NOBODY, Credentials
from service.edge.hosts import Hosts
from service.edge.keys import GRANTABLE, InvalidKeys, KeyScope, add_key, read_keys, revoke_key
from service.errors import Forbidden, ForeignSite, Unauthenticated
from tests.in_process import ask_grpc, framed, in_process

KEYS = Credentials(["first", "zweiter-schlüssel"])


def basic(password: str, user: str = "anybody") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "keys.toml"


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [
        ("Bearer first", ""),
        ("bearer first", ""),
        ("", "first"),
        ("", "zweiter-schlüssel"),
        ("Basic other", "first"),
        ("Bearer of-a-proxy", "first"),
    ],
)
def test_a_right_key_in_either_header_is_enough(authorization, api_key):
    assert KEYS.check(KeyScope.PREDICT, authorization, api_key).name == "RUL_API_KEYS"


@pytest.mark.parametrize("authorization", ["", "Bearer ", "Basic first", "first", basic("first")])
def test_no_key_is_not_the_same_as_a_wrong_one(authorization):
    with pytest.raises(Unauthenticated, match="authorization: Bearer KEY"):
        KEYS.check(KeyScope.PREDICT, authorization, "")


@pytest.mark.parametrize(
    ("authorization", "api_key"), [("Bearer wrong", ""), ("", "firs"), ("", "first "), ("", "é")]
)
def test_a_wrong_key_is_refused_and_not_repeated(authorization, api_key):
    with pytest.raises(Unauthenticated, match="not valid") as caught:
        KEYS.check(KeyScope.PREDICT, authorization, api_key)

    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize(
    "host", [None, "localhost:3000", "127.0.0.1:3000", "[::1]:3000", "10.0.0.7", "rul.plant"]
)
def test_a_local_service_answers_under_its_names_and_any_address(host):
    Hosts(["rul.plant"], any_name=False).check({} if host is None else {b"host": host.encode()})


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:3000", "localhost.evil.example", "[", "127.0.0.1.x"]
)
def test_a_name_that_was_made_to_resolve_to_this_machine_is_refused(host):
    hosts = Hosts(["rul.plant"], any_name=False)

    with pytest.raises(ForeignSite, match="RUL_ALLOWED_HOSTS"):
        hosts.check({b"host": host.encode()})

    assert hosts.known == set()


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:8080", "http://["])
def test_a_page_of_another_site_is_refused(origin):
    with pytest.raises(ForeignSite, match="RUL_ALLOWED_HOSTS"):
        Hosts([], any_name=True).check({b"host": b"localhost:3000", b"origin": origin.encode()})


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://rul.plant", "https://rul.plant:8443"])
def test_the_pages_of_the_service_and_of_listed_sites_may_call_it(origin):
    Hosts(["rul.plant"], any_name=True).check({b"host": b"localhost:3000", b"origin": origin.encode()})


def test_a_service_of_the_network_answers_under_any_name():
    hosts = Hosts([], any_name=True)

    hosts.check({b"host": b"rulserve.plant:3000"})

    assert b"rulserve.plant:3000" in hosts.known


def test_a_browser_may_send_the_key_as_the_password_of_any_user_where_nothing_changes():
    assert KEYS.check(KeyScope.PAGES, basic("first"), "", basic=True) is not NOBODY
    assert KEYS.check(KeyScope.PAGES, basic("first", user=""), "", basic=True) is not NOBODY


@pytest.mark.parametrize("sent", ["Basic", "Basic !", "Basic /w==", basic(""), "Basic " + "A" * 7])
def test_a_basic_header_that_cannot_be_read_is_no_key(sent):
    with pytest.raises(Unauthenticated, match="got none") as caught:
        KEYS.check(KeyScope.PAGES, sent, "", basic=True, asks=True)

    assert caught.value.basic


def test_a_key_of_the_settings_does_everything_but_administer():
    for scope in set(KeyScope) - {KeyScope.ADMIN}:
        KEYS.check(scope, "", "first")

    with pytest.raises(Forbidden, match=r"expected an API key with scope `admin`, got one with `predict`"):
        KEYS.check(KeyScope.ADMIN, "", "first")


def test_without_keys_everyone_may_ask_for_everything_but_changes_of_the_service():
    assert {Credentials([]).check(s, "", "") for s in set(KeyScope) - {KeyScope.ADMIN}} == {NOBODY}

    with pytest.raises(Unauthenticated, match="RUL_KEYS_FILE"):
        Credentials([]).check(KeyScope.ADMIN, "", "")


def test_an_empty_key_file_refuses_everyone(file):
    file.touch()

    with pytest.raises(Unauthenticated):
        Credentials([], file).check(KeyScope.PREDICT, "", "")


def test_open_pages_opens_pages_and_metrics_and_nothing_else():
    keys = Credentials(["k"], open_pages=True)

    refused = set()
    for scope in KeyScope:
        try:
            keys.check(scope, "", "")
        except Unauthenticated:
            refused.add(scope)

    assert refused == set(KeyScope) - {KeyScope.OPEN, KeyScope.PAGES, KeyScope.METRICS}


# The key file


def look_twice(keys: Credentials) -> None:
    """Look as often as the service does in a second."""
    keys.look()
    keys.look()


def test_a_change_of_the_key_file_is_followed(file):
    first = add_key(file, "first", ["predict"])
    keys = Credentials([], file)
    changes = []
    keys.when_changed(lambda: changes.append(1))
    granted = keys.check(KeyScope.PREDICT, "", first)

    second = add_key(file, "second", ["admin"], "plant-a")
    revoke_key(file, "first")
    look_twice(keys)

    assert keys.check(KeyScope.ADMIN, "", second).tenant == "plant-a"
    assert changes == [1]
    assert not keys.holds(granted, KeyScope.PREDICT)
    with pytest.raises(Unauthenticated):
        keys.check(KeyScope.PREDICT, "", first)


def test_a_key_file_that_an_editor_is_writing_takes_no_key_away(file):
    key = add_key(file, "first", ["predict"])
    whole = file.read_text("utf-8")
    keys = Credentials([], file)
    changes = []
    keys.when_changed(lambda: changes.append(1))

    for written in ("", whole[:20], whole + "# the end\n"):
        file.write_text(written, encoding="utf-8")
        keys.look()
        keys.check(KeyScope.PREDICT, "", key)
    assert changes == []
    keys.look()

    keys.check(KeyScope.PREDICT, "", key)
    assert changes == [1]


@pytest.mark.parametrize(
    "text",
    [
        "[keys",
        "other = 1",
        '[keys.a]\nsha256 = "00"\nscopes = ["predict"]',
        f'[keys.a]\nsha256 = "{"0" * 64}"\nscopes = []',
        f'[keys.a]\nsha256 = "{"0" * 64}"\nscopes = ["any"]',
        f'[keys.a]\nsha256 = "{"0" * 64}"\nscopes = ["open"]',
        f'[keys.a]\nsha256 = "{"0" * 64}"\nscopes = ["predict"]\ntenant = "a b"',
        f'[keys."\\u001b"]\nsha256 = "{"0" * 64}"\nscopes = ["predict"]',
        f'[keys.a]\nsha256 = "{"0" * 64}"\nscopes = ["predict"]\nkey = "x"',
        "".join(f'[keys.{n}]\nsha256 = "{"0" * 64}"\nscopes = ["predict"]\n' for n in "ab"),
        "x = " + "[" * 5000,
        None,
    ],
)
def test_a_bad_key_file_keeps_the_old_keys_and_is_logged_once(file, text):
    key = add_key(file, "a", ["predict"])
    with structlog.testing.capture_logs() as events:
        keys = Credentials([], file, log=structlog.get_logger())
        if text is None:
            file.unlink()
        else:
            file.write_text(text, encoding="utf-8")
        look_twice(keys)
        look_twice(keys)

    keys.check(KeyScope.PREDICT, "", key)
    assert [event["event"] for event in events] == ["key file loaded", "key file refused"]
    assert key not in str(events)


def test_the_file_keeps_no_key_and_only_its_owner_reads_it(file):
    key = add_key(file, "a", ["predict", "predict"], "plant-a")

    assert key not in file.read_text(encoding="utf-8")
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_keys(file)["a"].scopes == ("predict",)
    assert len(key) == len("rul_") + 43  # 256 bits
    assert [*file.parent.iterdir()] == [file]


def test_a_file_that_the_group_of_the_service_reads_stays_readable_to_it(file):
    add_key(file, "a", ["predict"])
    add_key(file, "b", ["predict"])
    file.chmod(0o640)

    revoke_key(file, "a")

    assert file.stat().st_mode & 0o777 == 0o640


def test_a_key_is_not_revoked_in_a_file_that_its_owner_could_no_longer_read(file, monkeypatch):
    add_key(file, "a", ["predict"])
    monkeypatch.setattr("os.chown", Mock(side_effect=PermissionError(1, "Operation not permitted")))

    with pytest.raises(InvalidKeys, match="Operation not permitted"):
        revoke_key(file, "a")

    assert [*file.parent.iterdir()] == [file]
    assert [*read_keys(file)] == ["a"]


def test_a_key_that_cannot_be_written_leaves_no_part_of_a_file(file, monkeypatch):
    add_key(file, "a", ["predict"])
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))

    with pytest.raises(InvalidKeys, match="No space left"):
        add_key(file, "b", ["predict"])

    assert [*file.parent.iterdir()] == [file]
    assert [*read_keys(file)] == ["a"]


def test_a_refused_key_file_is_read_again_once_its_permissions_change(file, monkeypatch):
    key = add_key(file, "a", ["predict"])
    credentials = Credentials([], file)
    revoke_key(file, "a")
    with monkeypatch.context() as unreadable:
        unreadable.setattr(
            "service.edge.access.read_keys", Mock(side_effect=InvalidKeys("Permission denied"))
        )
        look_twice(credentials)

    file.chmod(0o640)
    look_twice(credentials)

    with pytest.raises(Unauthenticated, match="not valid"):
        credentials.check(KeyScope.PREDICT, "", key)


def test_keys_that_are_added_and_revoked_at_once_are_all_added_and_revoked(file):
    for name in "abcdefgh":
        add_key(file, name, ["predict"])

    with ThreadPoolExecutor(8) as pool:
        changes = [pool.submit(revoke_key, file, name) for name in "abcdefgh"]
        changes += [pool.submit(add_key, file, name, ["predict"]) for name in "ijklmnop"]

    assert [change.exception() for change in changes] == [None] * 16
    assert set(read_keys(file)) == set("ijklmnop")


@pytest.mark.parametrize(
    ("name", "scopes", "tenant"),
    [
        ("a", ["predict"], ""),
        ("b", [], ""),
        ("b", ["any"], ""),
        ("b\n", ["predict"], ""),
        ("b", ["admin"], "é"),
    ],
)
def test_a_key_that_makes_no_sense_leaves_the_file_as_it_is(file, name, scopes, tenant):
    add_key(file, "a", ["predict"])
    before = file.read_bytes()

    with pytest.raises(InvalidKeys):
        add_key(file, name, scopes, tenant)

    assert file.read_bytes() == before


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
        st.sets(st.sampled_from(GRANTABLE), min_size=1),
        max_size=5,
    )
)
@settings(max_examples=30)
def test_what_is_added_is_what_is_read(tmp_path_factory, wanted):
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.touch()
    made = {name: add_key(file, name, scopes) for name, scopes in wanted.items()}
    keys = Credentials([], file)

    granted = {name: keys.check(KeyScope.ANY, "", key) for name, key in made.items()}

    assert {name: grant.scopes for name, grant in granted.items()} == wanted


def test_a_key_among_ten_thousand_is_found_as_fast_as_among_ten(file):
    few, many = Credentials(map(str, range(10))), Credentials(map(str, range(10_000)))

    def seconds(keys: Credentials) -> float:
        start = perf_counter()
        for _ in range(1000):
            keys.check(KeyScope.PREDICT, "", "7")
        return perf_counter() - start

    assert min(seconds(many) for _ in range(5)) < 20 * min(seconds(few) for _ in range(5))


# Every route

ASKED = {
    **dict.fromkeys(["POST /v1/predict", "POST /v1/explain"], "predict"),
    **dict.fromkeys(["GET /v1/units", "GET /v1/units/a"], "predict"),
    **dict.fromkeys(["GET /v1/units/a/decision", "GET /v1/units/a/explanation", "GET /v1/events"], "predict"),
    "GET /v1/models/{m}/simulated": "predict",
    "GET /v1/models/{m}/monitoring": "metrics",
    "POST /v1/units/a/cycles": "ingest",
    **dict.fromkeys(
        ["POST /v1/units/a/outcomes", "POST /v1/units/a/rename", "DELETE /v1/units/a"], "outcomes"
    ),
    "GET /page/app.js": "open",
    **dict.fromkeys(["POST /v1/models", "POST /v1/models/{m}", "DELETE /v1/models/{m}"], "admin"),
    **dict.fromkeys(["POST /v1/models/{m}/shadow", "DELETE /v1/models/{m}/shadow"], "admin"),
    **dict.fromkeys(["POST /v1/models/{m}/canary", "DELETE /v1/models/{m}/canary"], "admin"),
    **dict.fromkeys(["POST /v2/models/{m}/infer", "POST /v2/models/{m}/versions/1/infer"], "predict"),
    **dict.fromkeys(["GET /v1/models", "GET /v1/models/{m}", "POST /v2/repository/index"], "any"),
    **dict.fromkeys(["GET /v2/models/{m}", "GET /v2/models/{m}/ready"], "any"),
    **dict.fromkeys(["GET /v2/models/{m}/versions/1", "GET /v2/models/{m}/versions/1/ready"], "any"),
    "GET /metrics": "metrics",
    **dict.fromkeys(["GET /docs", "GET /openapi.json", "GET /schema.json", "GET /docs/assets/x.js"], "pages"),
    **dict.fromkeys(["GET /livez", "GET /healthz", "GET /readyz", "GET /v2/health/live"], "open"),
    **dict.fromkeys(["GET /v2/health/ready", "GET /v2", "GET /v2/", "GET /"], "open"),
    "rul.v1.RulService/Predict": "predict",
    **dict.fromkeys(["rul.v1.RulService/PredictStream", "rul.v1.RulService/AppendCycles"], "ingest"),
    **dict.fromkeys(["rul.v1.RulService/GetModel", "rul.v1.RulService/ListModels"], "any"),
    "inference.GRPCInferenceService/ModelInfer": "predict",
    **{
        f"inference.GRPCInferenceService/{m}": "open" for m in ("ServerLive", "ServerReady", "ServerMetadata")
    },
    **{
        f"inference.GRPCInferenceService/{m}": "any"
        for m in ("ModelReady", "ModelMetadata", "RepositoryIndex")
    },
    **{f"grpc.health.v1.Health/{m}": "open" for m in ("Check", "Watch")},
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "pages",
}
"""Every route and what it asks for, written by hand: the service's own table is compared with it."""


def callers(file) -> Iterator[tuple[str | None, set[str]]]:
    """Keys with every single scope and with all, wrong ones, and none; and what each may ask for."""
    for scope in GRANTABLE:
        yield add_key(file, scope, [scope]), {scope.value, "any", "pages", "open"}
    yield add_key(file, "all", GRANTABLE), set(KeyScope)
    revoked = add_key(file, "revoked", GRANTABLE)
    revoke_key(file, "revoked")
    for wrong in (revoked, "rul_", read_keys(file)["all"].sha256, "all", None):
        yield wrong, {"open"}


async def answer(service, route: str, key: str | None) -> str:
    """Whether a key gets through: "yes", or why not."""
    if " " not in route:
        if route.endswith("/Watch"):  # endless: `Check` is registered by the same rule
            return "yes"
        metadata = [("x-api-key", key)] if key else []
        reply = await ask_grpc(service.grpc, "/" + route, framed(b""), metadata=metadata)
        refusals = {grpc.StatusCode.UNAUTHENTICATED: "who", grpc.StatusCode.PERMISSION_DENIED: "scope"}
        return refusals.get(reply.code, "yes")
    method, path = route.replace("{m}", service.runtime.manifest.name).split(" ")
    reply = await service.http.request(method, path, headers={"x-api-key": key} if key else {}, content=b"")
    return {401: "who", 403: "scope"}.get(reply.status_code, "yes")


async def test_no_key_gets_through_to_a_route_that_asks_for_more(file):
    made = [*callers(file)]
    async with in_process(keys_file=str(file)) as service:
        got = {(route, key): await answer(service, route, key) for route in ASKED for key, _ in made}

    known = {key for key, may in made if "any" in may}
    expected = {
        (route, key): "yes" if scope in may else "scope" if key in known else "who"
        for route, scope in ASKED.items()
        for key, may in made
    }
    assert got == expected


async def test_the_table_above_names_every_route_there_is(file):
    file.touch()
    async with in_process(keys_file=str(file)) as service:
        handlers = {path[1:] for path in service.parts.methods}
        http = service.parts.http
        of_http = [(e.method, pattern) for pattern, e in http._patterns]
        named = [route.replace("{m}", "m").split(" ") for route in ASKED if " " in route]

    assert handlers == {route for route in ASKED if " " not in route}
    assert [
        (method, pattern.pattern)
        for method, pattern in of_http
        if not any(method == given and pattern.match(path) for given, path in named)
    ] == []


@pytest.mark.parametrize("path", ["/v1/units", "/v1/units/a", "/v1/models", "/metrics", "/v2/models/fake"])
async def test_no_cache_on_the_way_keeps_an_answer_for_callers_with_other_keys(file, path):
    key = add_key(file, "all", GRANTABLE)
    async with in_process(keys_file=str(file)) as service:
        answered = [await service.http.get(path, headers={"x-api-key": given}) for given in (key, "wrong")]

    assert [answer.headers.get("cache-control") for answer in answered] == ["no-store"] * 2


async def test_a_refusal_names_the_scope_and_asks_browsers_for_a_password_only_where_nothing_changes(file):
    key = add_key(file, "line", ["predict"])
    async with in_process(keys_file=str(file)) as service:
        page = await service.http.get("/docs")
        change = await service.http.post("/v1/units/a/outcomes", json={})
        script = await service.http.get("/v1/models", headers={"sec-fetch-mode": "cors"})
        metrics = await service.http.get("/metrics", headers={"authorization": f"Bearer {key}"})
        opened = await service.http.get("/docs", auth=("me", key))
        posted = await service.http.post("/v1/predict", auth=("me", key), json={})

    assert page.headers["www-authenticate"].startswith("Bearer, Basic realm=")
    assert [refused.headers["www-authenticate"] for refused in (change, script)] == ["Bearer"] * 2
    assert "scope `metrics`" in metrics.json()["detail"]
    assert opened.status_code == 200
    assert posted.status_code == 401


async def test_the_log_names_the_key_and_never_shows_it(file):
    key = add_key(file, "line-1", ["predict"])
    with structlog.testing.capture_logs() as events:
        async with in_process(keys_file=str(file)) as service:
            await service.predict_http(headers={"x-api-key": key}, windows=[])
            await service.http.post("/v1/predict", headers={"x-api-key": key + "x"})

    refused = [event for event in events if event["event"] == "request refused"]
    assert [event.get("key") for event in refused] == ["line-1", None]
    assert key not in str(events)


async def test_a_refusal_for_a_missing_scope_logs_whose_key_it_was(file):
    key = add_key(file, "line-1", ["metrics"])
    with structlog.testing.capture_logs() as events:
        async with in_process(keys_file=str(file)) as service:
            for route in ("POST /v1/predict", "rul.v1.RulService/Predict", "rul.v1.RulService/PredictStream"):
                await answer(service, route, key)

    refused = [event for event in events if event["event"] == "request refused"]
    assert [(event["error"], event.get("key")) for event in refused] == [("Forbidden", "line-1")] * 3
    assert key not in str(events)

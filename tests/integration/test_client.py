"""The client of docs and README against a real service: sync and async, HTTP and gRPC."""

from __future__ import annotations

import pandas as pd
import pytest

from rul_client.api import AsyncClient, Client
from rul_client.errors import Rejected, RemoteFailed
from tests.commands import write_pumps
from tests.tiny_bundle import COLUMNS, pumps


@pytest.fixture(params=["http", "grpc"])
def url(request, server):
    if request.param == "grpc" and server.front_end != "envoy":
        pytest.skip("the client asks for units by HTTP on the same port, which Envoy alone has")
    return server.http.replace("http", request.param)


@pytest.fixture
def client(url):
    with Client(url) as opened:
        yield opened


@pytest.fixture
def file(tmp_path):
    return write_pumps(tmp_path, units=3, seed=21)[0]


def test_a_file_and_its_data_frame_have_the_same_answers(client, file):
    of_file = client.predict(file)
    of_frame = client.predict(pd.read_csv(file))

    assert [answer.unit for answer in of_file] == ["pump-1", "pump-2", "pump-3"]
    assert [answer.rul for answer in of_frame] == pytest.approx([answer.rul for answer in of_file], abs=1e-4)
    assert of_file.to_pandas()["unit"].tolist() == ["pump-1", "pump-2", "pump-3"]


async def test_the_asynchronous_client_answers_the_same(client, url, file):
    async with AsyncClient(url) as other:
        answers = await other.predict(file, explain="sensors")

    assert answers == client.predict(file, explain="sensors")
    assert answers[0].sensor_contributions


def test_a_window_that_cannot_be_read_has_its_reason_and_the_others_their_answers(client, file):
    bad = {"unit": "bad", "readings": [[1.0]]}
    (good, *_) = [{"unit": "good", "readings": pumps(units=1, seed=1)[0].readings}]

    answers = client.predict([bad, good], partial=True)

    assert [answer.unit for answer in answers] == ["good"]
    assert [refused.unit for refused in answers.refused] == ["bad"]
    with pytest.raises(RemoteFailed, match="expected 6 values"):
        client.predict([bad, good])


def test_models_have_manifests(client):
    (model,) = client.models()

    assert client.manifest(model.name).name == model.name
    assert len(model.sha256) == 64


def test_a_life_is_appended_explained_and_ended(client, url):
    (pump,) = pumps(units=1, seed=5)
    unit = f"life by {url[:4]}"
    columns = {column.name: pump.readings[:, i] for i, column in enumerate(COLUMNS)}
    last = len(pump.cycles)

    first = client.append(unit, {name: values[:-1] for name, values in columns.items()}, cycle=range(1, last))
    then = client.append(unit, {name: values[-1] for name, values in columns.items()})
    again = client.append(unit, {name: values[-1] for name, values in columns.items()}, cycle=last)

    assert (first.stored, then.stored, again.stored, again.repeated) == (last - 1, 1, 0, 1)
    assert then.last_cycle == last
    assert client.explain(unit).rul == pytest.approx(then.prediction.rul, abs=1e-4)
    assert client.outcome(unit, "failed", last).outcome.cycle == last
    assert client.unit(unit).outcome.kind == "failed"
    assert unit in [each.unit for each in client.fleet(state="failed").units]


def test_a_request_that_is_too_large_is_refused_for_good(client):
    many = range(40_000)

    with pytest.raises(Rejected, match=r"413|RESOURCE_EXHAUSTED"):
        client.append("large", {column.name: [1.0 for _ in many] for column in COLUMNS}, cycle=many)


def test_a_prediction_that_is_not_stored_leaves_no_unit(client, url):
    window = {"readings": pumps(units=1, seed=2)[0].readings, "last_cycle": 99}
    client.predict(window, unit=f"kept by {url[:4]}")

    client.predict(window, unit="trial", store=False)

    assert client.unit(f"kept by {url[:4]}").predictions
    with pytest.raises(RemoteFailed, match="404"):
        client.unit("trial")

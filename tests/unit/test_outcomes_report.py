"""`rul outcomes --report FILE`: outcomes in bulk."""

import json
import time
from datetime import UTC, datetime

import httpx
import pytest

from model.domain import InvalidData
from rul_client.api import AsyncClient
from rul_client.commands.outcomes_file import LinesRefused, report_file
from rul_client.errors import RemoteFailed
from tests.spreadsheets import write_xlsx

EMPTY = {"readings": {"cycles": [], "columns": {}}}
HEADER = "unit,kind,cycle,model,time"


class Server:
    """Takes outcomes; refuses those of a unit that it does not know."""

    def __init__(self, status=404):
        self.taken, self.status = [], status

    def __call__(self, request):
        unit = httpx.URL(request.url).path.split("/")[3]
        if unit == "unknown":
            problem = {"title": "Unknown unit", "detail": "no such unit", "status": self.status}
            return httpx.Response(self.status, json=problem)
        self.taken.append((unit, json.loads(request.content)))
        body = {"unit": unit, "model": "fake", "result": "created", "outcome": None}
        return httpx.Response(200, json=body | {"predictions": [], "scores": [], "next": None, **EMPTY})


async def report(server, path, *, replace=False):
    client = AsyncClient("http://rul.test", transport=httpx.MockTransport(server))
    await report_file(client, path, replace=replace)


def csv_file(folder, *lines):
    (folder / "ends.csv").write_text("\n".join(lines) + "\n")
    return folder / "ends.csv"


async def test_each_line_of_a_file_is_an_outcome(tmp_path, capsys):
    server, lines = Server(), ["17,failed,192,fd001,2026-03-01T12:00:00Z", "", " , ,,,", "18,removed,150,,"]

    await report(server, csv_file(tmp_path, HEADER, *lines))

    first, second = server.taken
    assert first[0] == "17"
    assert datetime.fromisoformat(first[1]["time"]) == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert {"kind": "failed", "cycle": 192, "model": "fd001"}.items() <= first[1].items()
    assert second == ("18", {"kind": "removed", "cycle": 150, "replace": False})
    assert "2 outcomes (2 created)" in capsys.readouterr().out


CYCLE = "column 'cycle': expected a whole number from 0 to 16777216, got"
TIME = "column 'time': expected a time such as 2026-03-01T12:00:00Z or 01.03.2026 12:00, got"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,broken,5,,", "column 'kind': expected failed or removed, got 'broken'"),
        ("unknown,failed,5,,", "http://rul.test answered 404: Unknown unit: no such unit"),
        (",failed,5,,", "column 'unit': expected a name, got ''"),
        *((f"1,failed,{n},,", f"{CYCLE} {n!r}") for n in ("soon", "-1", "1.5", "16777217", "nan", "inf", "")),
        ("1,failed,5,,yesterday", f"{TIME} 'yesterday'"),
        ("1,failed,5,,0001-01-01 00:00", TIME),  # what databases write for none
        ("1,failed,5,,,left", "expected 5 columns, got 6"),
    ],
)
async def test_a_line_that_is_wrong_is_named_and_the_rest_is_reported(tmp_path, capsys, line, message):
    server = Server()

    with pytest.raises(LinesRefused, match=r"1 outcome \(1 created\); 1 of 2 lines refused"):
        await report(server, csv_file(tmp_path, HEADER, line, "2,failed,5,,"))

    assert [unit for unit, _ in server.taken] == ["2"]
    assert f"line 2: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('unit,kind,cycle,note\n1,failed,5,"worn\n2,failed,6,\n', "line 3: cannot be read as text: unexp"),
        ("unit,kind,cycle\n1,failed,5\nKühler,failed,5\n", "expected UTF-8 text, got the byte 0xfc"),
        ("unit,cycle\n1,5\n", "no column kind: .*; the file has unit, cycle"),
    ],
    ids=["a quote without an end", "another encoding", "a column too few"],
)
async def test_a_file_that_cannot_be_read_is_named_before_anything_is_sent(tmp_path, text, message):
    server, path = Server(), tmp_path / "ends.csv"
    path.write_bytes(text.encode("cp1252"))

    with pytest.raises(InvalidData, match=rf"ends\.csv: {message}"):
        await report(server, path)

    assert not server.taken


@pytest.mark.parametrize("cycle", ["10.0", "1e1", "10"])
async def test_units_and_cycles_are_whole_numbers_however_they_are_written(tmp_path, cycle):
    server = Server()

    await report(server, csv_file(tmp_path, "unit,kind,cycle", f"17.0,failed,{cycle}"))

    assert server.taken == [("17", {"kind": "failed", "cycle": 10, "replace": False})]


@pytest.fixture
def far_east(monkeypatch):
    """Nine hours ahead of UTC, in this process."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_east")
@pytest.mark.parametrize("text", ["2026-03-01 12:00", "01.03.2026 12:00", "2026/03/01 12:00"])
async def test_a_time_is_written_as_in_files_of_readings_and_local_without_a_zone(tmp_path, text):
    server = Server()

    await report(server, csv_file(tmp_path, "unit,kind,cycle,time", f"1,failed,5,{text}"))

    sent = datetime.fromisoformat(server.taken[0][1]["time"])
    assert sent == datetime(2026, 3, 1, 3, tzinfo=UTC)


async def test_a_service_that_fails_in_the_middle_of_a_file_leaves_word_of_what_was_reported(tmp_path):
    server = Server(status=500)
    path = csv_file(tmp_path, HEADER, *(f"{unit},failed,5,," for unit in ("1", "2", "unknown", "3")))

    stopped = r"no such unit; \S+ends\.csv: stopped at line 4 after 2 outcomes \(2 created\)"
    with pytest.raises(RemoteFailed, match=stopped):
        await report(server, path)

    assert [unit for unit, _ in server.taken] == ["1", "2"]


async def test_corrections_are_marked(tmp_path):
    server = Server()

    await report(server, csv_file(tmp_path, "unit,kind,cycle", "1,failed,5"), replace=True)

    assert server.taken[0][1]["replace"] is True


async def test_a_spreadsheet_of_outcomes_is_reported_too(tmp_path):
    server = Server()

    await report(server, write_xlsx(tmp_path / "e.xlsx", [("unit", "kind", "cycle"), (17, "failed", 192)]))

    assert server.taken == [("17", {"kind": "failed", "cycle": 192, "replace": False})]


async def test_a_failure_that_every_line_would_meet_ends_the_report(tmp_path):
    server = Server(status=403)

    with pytest.raises(RemoteFailed, match="403"):
        await report(server, csv_file(tmp_path, HEADER, "unknown,failed,5,,", "2,failed,5,,"))

    assert not server.taken

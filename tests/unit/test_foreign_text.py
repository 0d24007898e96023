"""Text of strangers reaches terminals without control characters, and spreadsheets without formulas."""

import io
import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from rul_client.commands.outcomes import _cell
from rul_client.commands.output import csv_cell
from rul_client.commands.predict.rows import COLUMNS
from rul_client.commands.predict.writers import CsvWriter
from service import logs
from service.choices import LogFormat
from tests.commands import rul

ESCAPE = "pump\x1b]0;owned\x07\x1b[2J\u202e"
CHANGED = {"action": ESCAPE, "models": [ESCAPE]}


def test_an_error_line_has_no_control_characters():
    code = f"from service.cli import _fail; _fail('unit ' + {ESCAPE!r})"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == "rul: unit pump?]0;owned??[2J?\n"


@pytest.mark.parametrize("log_format", [LogFormat.CONSOLE, LogFormat.JSON])
def test_a_log_event_has_no_control_characters_of_its_fields(stream, log_format):
    logs.configure(log_format=log_format, stream=stream)

    logs.logger().warning("odd unit", unit=ESCAPE)

    written = stream.getvalue()
    assert "owned" in written
    assert [part for part in ("\x1b]", "\x1b[2J", "\x07", "\u202e") if part in written] == []


def test_a_name_in_the_table_of_outcomes_has_no_control_characters():
    assert _cell("version", {"version": ESCAPE}).isprintable()


@pytest.mark.parametrize("words", [["list"], ["unload", "fd001"]])
def test_names_of_a_service_have_no_control_characters_in_rul_models(words):
    model = dict.fromkeys(("name", "version", "sha256", "provider"), ESCAPE)
    answer = {"models": [model]} if words == ["list"] else CHANGED | {"model": model}

    class Service(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        do_DELETE = do_GET  # noqa: N815 the library's name

        def log_message(self, *_given):
            pass

    with HTTPServer(("127.0.0.1", 0), Service) as listening:
        thread = Thread(target=listening.handle_request)
        thread.start()
        done = rul("models", *words, "--url", f"http://127.0.0.1:{listening.server_port}")
        thread.join()

    assert "owned" in done.output
    assert done.output.replace("\n", "").isprintable()


@pytest.mark.parametrize("unit", ["=HYPERLINK(1)", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_unit_that_looks_like_a_formula_is_text_in_csv(unit):
    file = io.BytesIO()

    CsvWriter(file, COLUMNS).write([dict.fromkeys(COLUMNS) | {"unit": unit, "last_cycle": 3}])

    cell = file.getvalue().decode().split("\n", 1)[1]
    assert cell.startswith(("'", "\"'"))


@pytest.mark.parametrize("value", ["-1", "+5", "1e-3", "pump-1", "pump=1", "", -3.5, 7, None])
def test_numbers_and_ordinary_names_stay_as_they_are(value):
    assert csv_cell(value) == value

"""The program of docs/client.md that stores the readings of an MQTT broker: real broker, real service."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import paho.mqtt.client as mqtt
import pytest

from tests.integration.conftest import Server, free_port, running
from tests.programs import ROOT, program
from tests.tiny_bundle import COLUMNS
from tests.waiting import wait_until

PAGE = (ROOT / "docs" / "client.md").read_text("utf-8")
(PROGRAM,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "paho" in block)
UNIT = "/v1/units/pump-1"
SECONDS = 60


@pytest.fixture
def port(tmp_path) -> Iterator[int]:
    """The port of a broker that keeps the messages that a client with a session has not acknowledged."""
    port, file = free_port(), tmp_path / "mosquitto.conf"
    file.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    with (tmp_path / "mosquitto.log").open("wb") as log:
        process = subprocess.Popen([program("mosquitto"), "-c", file], stderr=log)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def machine(port) -> Iterator[mqtt.Client]:
    """A machine that publishes its readings; `refusals` are what it hears of them."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, userdata=[])
    client.on_message = lambda _client, refusals, message: refusals.append(json.loads(message.payload))
    wait_until(lambda: client.connect("127.0.0.1", port) == mqtt.MQTT_ERR_SUCCESS, SECONDS, what="broker")
    client.subscribe("refused", qos=1)
    client.loop_start()
    yield client
    client.disconnect()
    client.loop_stop()


@pytest.fixture
def serve(port, tiny_bundle, tmp_path) -> Callable[[ExitStack], Server]:
    """Start the service and the program; the end of the block kills both without a warning."""
    at = free_port()

    def started(stack: ExitStack) -> Server:
        server = stack.enter_context(
            running(tmp_path, str(tiny_bundle.path), port=at, store_url=f"sqlite:///{tmp_path}/rul.db")
        )
        stack.callback(server.process.wait)
        stack.callback(os.killpg, server.process.pid, signal.SIGKILL)
        stack.enter_context(storing(server.http, port, tmp_path))
        return server

    return started


@contextmanager
def storing(service: str, broker: int, folder: Path) -> Iterator[None]:
    """Run the program of the page against this service and broker."""
    text = PROGRAM.replace("http://localhost:3000", service).replace("localhost", "127.0.0.1")
    text = text.replace("1883", str(broker)).replace('"fd001"', '"tiny"')
    with (folder / "program.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-c", text], stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def publish(machine: mqtt.Client, unit: str, cycle: int) -> None:
    reading = {"cycle": cycle, "columns": {column.name: 1.0 + cycle for column in COLUMNS}}
    machine.publish(f"readings/{unit}", json.dumps(reading), qos=1).wait_for_publish(SECONDS)


def stored(server: Server) -> list[int]:
    reply = server.ask("GET", UNIT)
    return reply.json()["readings"]["cycles"] if reply.status_code == httpx.codes.OK else []


def test_each_reading_of_a_broker_is_stored_although_service_and_program_are_killed(serve, machine):
    with ExitStack() as stack:
        server = serve(stack)
        wait_until(lambda: publish(machine, "pump-1", 1) or stored(server), SECONDS, what="subscription")
        for cycle in range(2, 31):
            publish(machine, "pump-1", cycle)
    for cycle in range(31, 61):
        publish(machine, "pump-1", cycle)
    with ExitStack() as stack:
        server = serve(stack)

        wait_until(lambda: len(stored(server)) >= 60, SECONDS, what="readings")
        assert stored(server) == list(range(1, 61))


def test_wrong_readings_of_a_broker_are_refused_with_their_reasons(serve, machine):
    wrong = {
        "{": "line 1 column 2",
        "[]": "indices must be integers",
        '{"cycle": 1}': "columns",
        '{"cycle": 1, "columns": {"speed": 1.0}}': "speed",
    }
    with ExitStack() as stack:
        server = serve(stack)
        wait_until(lambda: publish(machine, "pump-1", 1) or stored(server), SECONDS, what="subscription")

        for payload in wrong:
            machine.publish("readings/pump-2", payload, qos=1)

        wait_until(lambda: len(machine.user_data_get()) == len(wrong), SECONDS, what="refusals")
    for refusal, (payload, reason) in zip(machine.user_data_get(), wrong.items(), strict=True):
        assert (refusal["unit"], refusal["payload"]) == ("pump-2", payload)
        assert reason in refusal["error"]

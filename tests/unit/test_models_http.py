"""Models are loaded, swapped and unloaded while requests run; a bad candidate changes nothing."""

import asyncio
import errno
import gc
import json
import os
import shutil
import weakref
from time import monotonic

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from export.bundle import BundleFolder, find_bundle
from export.seal import read_bundle, write_sums
from model.simulation import simulate
from service import logs
from service.choices import ProviderChoice
from service.core import watch as watch_module
from service.core.candidates import Shadow
from service.core.changes import Action, Change, Changed
from service.core.runtime import OnnxRuntime
from service.core.watch import Watch
from service.errors import InvalidCandidate, NotReady
from service.metrics.board import ROW
from service.proto import rul_v1_pb2 as pb
from tests.changing import KEY, WINDOW, serving
from tests.fakes import make_windows
from tests.in_process import ask_grpc, framed, until
from tests.key_files import key_file
from tests.unit.test_streams import CLOSE, Caller

FD001 = find_bundle("fd001")
FD001_VERSION = OnnxRuntime.load(FD001, provider=ProviderChoice.CPU).manifest.version


@pytest.fixture
async def service(tmp_path):
    async with serving("fd001", keys_file=key_file(tmp_path, KEY)) as started:
        yield started


async def test_a_swap_changes_who_answers_and_every_answer_says_whose_it_is(service, newer):
    before = await service.predict()

    changed = await service.change("POST", "/fd001", newer.path)

    after = await service.predict()
    assert changed.status_code == 200, changed.text
    assert changed.json() == {"action": "swap", "model": after["model"], "models": ["fd001"]}
    assert (after["model"]["version"], after["model"]["sha256"]) == ("2", read_bundle(newer).sha256)
    assert before["model"]["version"] != "2"
    assert before["predictions"] != after["predictions"]
    assert (await service.client.get("/v1/models/fd001")).json()["version"] == "2"
    assert (await service.client.get("/readyz")).json()["models"][0]["version"] == "2"
    assert (await service.client.get("/v2/models/fd001")).json()["versions"] == ["2"]


async def test_the_list_is_short_and_the_manifest_is_one_call_further(service):
    listed = await service.client.get("/v1/models")
    shown = (await service.client.get("/v1/models/fd001")).json()

    (entry,) = listed.json()["models"]
    manifest = shown.pop("manifest")
    assert len(listed.content) < 1000
    assert entry == shown
    assert entry["columns"] == {column["name"]: column["unit"] for column in manifest["columns"]}
    assert [entry["context"], entry["cap"], entry["horizons"]] == [
        manifest[name] for name in ("context", "cap", "horizons")
    ]


async def test_by_grpc_the_list_has_no_manifest_either(service):
    async def ask(method, message, answer):
        body, metadata = framed(message.SerializeToString()), [("x-api-key", KEY)]
        got = await ask_grpc(service.parts.grpc, f"/rul.v1.RulService/{method}", body, metadata=metadata)
        return answer.FromString(got.messages[0])

    (entry,) = (await ask("ListModels", pb.ListModelsRequest(), pb.ListModelsReply)).models
    model = await ask("GetModel", pb.GetModelRequest(name="fd001"), pb.Model)

    manifest = json.loads(model.manifest_json)
    assert entry.manifest_json == ""
    assert list(entry.columns) == list(model.columns)
    assert [(column.name, column.unit) for column in entry.columns] == [
        (column["name"], column["unit"]) for column in manifest["columns"]
    ]
    assert (entry.context, entry.cap) == (manifest["context"], manifest["cap"])


async def test_a_request_in_flight_ends_with_the_model_that_it_began_with(service, newer):
    old = service.parts.desk.predictor.models["fd001"]
    executor = service.parts.joints.executor
    expected = await service.predict(explain="none")
    gate = asyncio.Event()
    submit, submitted = old.batcher.submit, asyncio.Event()

    class Slow:
        async def submit(self, windows):
            submitted.set()
            await gate.wait()
            return await submit(windows)

    object.__setattr__(old, "batcher", Slow())
    asking = asyncio.create_task(service.predict(explain="none"))
    await submitted.wait()
    await service.change("POST", "/fd001", newer.path)
    assert await service.version() == "2"
    gate.set()

    assert await asking == expected
    assert executor is service.parts.joints.executor


async def test_a_stream_goes_on_with_the_model_that_it_was_opened_with(service, newer):
    windows = [{"readings": WINDOW.json()["readings"][:1], "last_cycle": 1}]
    old = (await service.predict(windows=windows))["predictions"][0]["interval"]

    caller = Caller(service.parts.grpc, metadata=[("x-api-key", KEY)])
    opened = await caller.ask(pb.StreamRequest(open=pb.StreamOpen()))
    await service.change("POST", "/fd001", newer.path)
    reading = pb.Reading(values=WINDOW.readings[0].tolist(), cycle=1)
    answered = await caller.ask(pb.StreamRequest(reading=reading))
    caller.send(CLOSE)
    await caller.task

    new = (await service.predict(windows=windows))["predictions"][0]["interval"]
    assert opened.opened.model.version == FD001_VERSION
    assert answered.prediction.interval.lower == pytest.approx(old["lower"], abs=1e-3)
    assert old != new


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:5000])


def disagree(folder):
    golden = read_bundle(BundleFolder(folder)).golden
    golden.expected["rul"][0] += 5
    golden.save(folder / "golden.npz")
    write_sums(folder)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut("model.onnx"), "model.onnx: its SHA-256"),
        (cut("golden.npz"), "golden.npz: its SHA-256"),
        (disagree, "golden rul"),
    ],
    ids=["graph cut off", "golden windows cut off", "golden windows disagree"],
)
async def test_a_damaged_candidate_is_refused_with_its_reason_while_the_old_one_serves(
    service, newer, tmp_path, damage, reason
):
    folder = shutil.copytree(newer.path, tmp_path / "damaged")
    damage(folder)
    before = await service.predict()

    answer = await service.change("POST", "/fd001", folder)

    assert answer.status_code == 422
    assert answer.json()["type"].endswith("invalid_candidate")
    assert str(folder) in answer.json()["detail"]
    assert reason in answer.json()["detail"]
    assert await service.predict() == before


async def test_a_simulated_unit_is_the_one_of_the_command_and_can_be_asked_about(service):
    manifest = service.parts.desk.predictor.models["fd001"].manifest
    (unit,) = simulate(manifest, manifest.schema_of_columns, units=1, seed=7)

    found = (await service.client.get("/v1/models/fd001/simulated?seed=7")).json()

    assert found["cycles"] == unit.cycles.tolist()
    assert list(found["columns"]) == list(manifest.schema_of_columns.names)
    values = np.array(list(found["columns"].values()), dtype=np.float32).T
    np.testing.assert_array_equal(values, unit.readings)
    last = {name: column[-50:] for name, column in found["columns"].items()}
    answer = await service.predict(windows=[{"last_cycle": found["cycles"][-1], "columns": last}])
    assert answer["predictions"][0]["rul_state"] == "estimated"


async def test_a_seed_that_is_no_number_is_refused_with_its_place(service):
    refused = await service.client.get("/v1/models/fd001/simulated?seed=seven")

    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/seed"


async def test_changes_that_do_not_fit_are_refused(service, newer, tmp_path):
    refused = [
        await service.change("POST", "", "fd001"),
        await service.change("POST", "/fd001", "fd002"),
        await service.change("POST", "/other", "fd002"),
        await service.change("DELETE", "/fd001"),
        await service.change("DELETE", "/other"),
        await service.change("POST", "/fd001", tmp_path / "nowhere"),
        await service.client.post("/v1/models", json={"bundel": "fd002"}),
    ]

    assert [answer.status_code for answer in refused] == [409, 422, 404, 409, 404, 422, 400]
    assert await service.version() == FD001_VERSION


async def test_a_model_is_loaded_and_unloaded_and_leaves_no_series(service):
    assert (await service.change("POST", "", "fd002")).json()["models"] == ["fd001", "fd002"]
    assert (await service.predict(model="fd002"))["model"]["name"] == "fd002"
    infer = await service.client.get("/v2/models/fd002/ready")
    shown = service.value("rul_prediction_cycles_count", model="fd002")

    assert (await service.change("DELETE", "/fd002")).status_code == 200

    assert (infer.status_code, shown) == (200, 1)
    assert service.value("rul_prediction_cycles_count", model="fd002") is None
    gone = await service.client.post("/v1/predict", json={"windows": [WINDOW.json()], "model": "fd002"})
    assert gone.status_code == 404
    text = (await service.client.get("/metrics")).text
    assert 'model="fd002"' not in text
    assert (await service.predict())["model"]["name"] == "fd001"  # the only one again


@pytest.mark.parametrize(
    ("method", "path", "bundle"), [("POST", "", "fd002"), ("POST", "/fd001/canary", "newer")]
)
async def test_a_change_whose_metrics_do_not_fit_is_refused_and_changes_nothing(
    service, newer, method, path, bundle
):
    board = service.parts.joints.board
    board.slots("filler", ROW - board._next)

    refused = await service.change(method, path, newer.path if bundle == "newer" else bundle)

    assert refused.status_code == 409
    assert "fewer bundles" in refused.json()["detail"]
    assert [*service.parts.desk.predictor.models] == ["fd001"]
    assert await service.version() == FD001_VERSION


async def test_counters_go_on_and_drift_begins_anew_with_a_swap(service, newer):
    for _ in range(3):
        await service.predict()
    before = service.value("rul_prediction_cycles_count", model="fd001")
    drift = service.value("rul_column_drift_windows", model="fd001")

    await service.change("POST", "/fd001", newer.path)
    begun = service.value("rul_column_drift_windows", model="fd001")
    await service.predict()

    assert (before, drift, begun) == (3, 3, 0)
    assert service.value("rul_prediction_cycles_count", model="fd001") == 4
    assert service.value("rul_column_drift_windows", model="fd001") == 1
    families = service.parts.desk.metrics.registry.collect()
    info = [s for f in families if f.name == "rul_model_info" for s in f.samples]
    assert [s.labels["version"] for s in info] == ["2"]


async def test_what_served_is_freed_with_its_last_request(service, newer):
    old = service.parts.desk.predictor.models["fd001"]
    freed = [weakref.ref(old), weakref.ref(old.batcher), weakref.ref(old.batcher.runtime)]
    await service.predict()
    del old
    gc.disable()  # reference counting alone frees it
    try:
        await service.change("POST", "/fd001", newer.path)
        await service.predict()
        service.parts.desk.metrics.publish()
        assert [ref() for ref in freed] == [None] * 3
    finally:
        gc.enable()


async def test_a_change_goes_on_where_its_caller_leaves(service, newer):
    asking = asyncio.create_task(service.change("POST", "/fd001", newer.path))
    await until(service.parts.catalog._changing.locked)
    asking.cancel()

    await until(lambda: service.parts.desk.predictor.models["fd001"].name.version == "2")


async def test_a_candidate_that_is_ready_after_the_abort_is_not_kept(service, newer):
    catalog = service.parts.catalog
    preparing = asyncio.create_task(catalog.prepare(Change(Action.SWAP, "fd001", str(newer.path))))
    await until(catalog._changing.locked)
    catalog.abort()

    with pytest.raises(NotReady, match="aborted"):
        await preparing

    assert catalog.commit() == Changed()


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/v1/models", "GET, HEAD, POST"), ("/v1/units/17/decision", "GET, HEAD, DELETE")],
)
async def test_a_path_names_each_method_of_all_its_endpoints_once(service, path, methods):
    assert (await service.client.put(path)).headers["allow"] == methods


class FakeChange:
    """Refuses changes with these errors, then makes each."""

    def __init__(self, *errors):
        self.errors, self.asked = [*errors], 0

    async def __call__(self, _change):
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return Changed()


@pytest.fixture
def folder(tmp_path):
    """A folder that is watched."""
    (tmp_path / "bundles").mkdir()
    return tmp_path / "bundles"


@pytest.fixture
def bundle(newer, folder):
    """A bundle in that folder."""
    return shutil.copytree(newer.path, folder / "fd001")


def watching(folder, change=None, *, models=None, remembers=None):
    return Watch(folder, models or {}, change or FakeChange(), logs.logger(), remembers)


@pytest.fixture
def watch(service, folder):
    return watching(folder, service.parts.changes.change, models=service.parts.desk.predictor.models)


async def look(watch, times):
    """What is logged while the folder is looked at so many times."""
    with capture_logs() as said:
        for _ in range(times):
            await watch.look()
    return said


async def test_a_watched_folder_loads_what_appears_and_swaps_what_changes_at_the_second_look_and_logs_it(
    service, watch, folder, bundle
):
    first = await look(watch, 1)
    before = await service.version()
    said = await look(watch, 2)
    swapped = await service.version()
    shutil.copytree(find_bundle("fd002").path, folder / "fd002")
    await look(watch, 2)

    taken = {"event": "candidate taken", "log_level": "info", "bundle": str(bundle), "action": "swap"}
    assert (first, before) == ([], FD001_VERSION)
    assert (said, swapped) == ([taken], "2")
    assert [*service.parts.desk.predictor.models] == ["fd001", "fd002"]


@pytest.mark.parametrize(
    ("broken", "content"),
    [("golden.npz", b"damaged"), ("model.onnx", None), ("golden.npz", None), ("SHA256SUMS", None)],
)
async def test_a_bad_bundle_in_a_watched_folder_is_logged_once_and_changes_nothing(
    service, watch, bundle, broken, content
):
    (bundle / broken).unlink()
    if content is not None:
        (bundle / broken).write_bytes(content)

    said = await look(watch, 4)

    assert [line["event"] for line in said] == ["candidate refused"]
    assert broken in said[0]["reason"]
    assert await service.version() == FD001_VERSION


async def test_a_bundle_whose_files_come_one_by_one_is_taken_when_all_are_there(newer, folder):
    change = FakeChange()
    watch = watching(folder, change)
    (folder / "fd001").mkdir()

    asked = []
    for name in ("golden.npz", "model.onnx", "SHA256SUMS"):
        shutil.copy(newer.path / name, folder / "fd001")
        await watch.look()
        asked.append(change.asked)
    await watch.look()

    assert (asked, change.asked) == ([0, 0, 0], 1)


@pytest.mark.usefixtures("bundle")
async def test_a_bundle_that_a_watched_folder_cannot_bring_in_yet_is_tried_at_the_next_look(folder):
    change = FakeChange(NotReady("no worker answers; try again later"))

    said = await look(watching(folder, change), 5)

    assert [line["event"] for line in said] == ["candidate not taken yet", "candidate taken"]
    assert change.asked == 2


@pytest.mark.parametrize(
    "error",
    [InvalidCandidate("model.onnx: cannot be read"), PermissionError(errno.EACCES, "Permission denied")],
)
async def test_a_refused_bundle_is_tried_again_once_its_permissions_change(folder, bundle, error):
    change = FakeChange(error)
    watch = watching(folder, change)
    await look(watch, 4)
    asked = change.asked

    (bundle / "model.onnx").chmod(0o640)
    await look(watch, 4)

    assert (asked, change.asked) == (1, 2)


@pytest.mark.usefixtures("bundle")
async def test_a_worker_that_restarts_does_not_repeat_what_a_watched_folder_said(folder, tmp_path):
    change = FakeChange()

    for _ in range(2):
        await look(watching(folder, change, remembers=tmp_path / "watched"), 3)

    assert change.asked == 1


@pytest.mark.usefixtures("bundle")
async def test_a_bundle_that_cannot_be_remembered_is_taken_and_each_failure_logged(folder, tmp_path):
    said = await look(watching(folder, remembers=tmp_path / "missing" / "watched"), 2)

    lost = "watched bundles not remembered"
    assert [line["event"] for line in said] == [lost, "candidate taken", lost]
    assert (said[0]["log_level"], said[0]["file"]) == ("error", str(tmp_path / "missing" / "watched.new"))


@pytest.fixture
async def ended(folder, bundle, tmp_path):
    """Makes the watches of workers that start after one that ended while it checked a bundle."""
    change = FakeChange(asyncio.CancelledError())

    def started(models=None):
        return watching(folder, change, models=models, remembers=tmp_path / "watched")

    with pytest.raises(asyncio.CancelledError):
        await started().look(at_start=True)
    return started


async def test_a_bundle_whose_check_ended_the_worker_is_refused_once_by_the_next_one(ended, bundle):
    (line,) = [line for _ in range(2) for line in await look(ended(), 3)]

    assert (line["event"], line["bundle"]) == ("candidate refused", str(bundle))
    assert "the worker ended" in line["reason"]


async def test_a_bundle_that_other_workers_took_as_one_ended_is_not_refused(ended, service, newer, tmp_path):
    await service.change("POST", "/fd001", newer.path)

    assert await look(ended(service.parts.desk.predictor.models), 3) == []
    assert b"fd001" in (tmp_path / "watched").read_bytes()  # and not read again at each look


async def test_a_bundle_that_changed_since_its_check_ended_the_worker_is_tried(ended, bundle):
    (bundle / "model.onnx").touch()

    (line,) = await look(ended(), 3)

    assert line["event"] == "candidate taken"


async def test_a_folder_whose_name_is_not_utf_8_keeps_no_other_from_being_taken(folder, bundle, tmp_path):
    shutil.copytree(bundle, folder / os.fsdecode(b"\xff"))
    change = FakeChange()

    await look(watching(folder, change, remembers=tmp_path / "watched"), 2)

    assert change.asked == 1


async def test_files_and_hidden_folders_as_of_a_kubernetes_volume_are_no_bundles(newer, folder):
    (folder / "README.md").touch()
    shutil.copytree(newer.path, folder / "..2026_11_28" / "fd001")
    (folder / "..data").symlink_to("..2026_11_28")
    (folder / "fd001").symlink_to("..data/fd001")

    (line,) = await look(watching(folder), 2)

    assert (line["event"], line["bundle"]) == ("candidate taken", str(folder / "fd001"))


@pytest.mark.usefixtures("bundle")
async def test_a_watched_folder_that_cannot_be_read_for_a_while_is_followed_afterwards(folder, monkeypatch):
    monkeypatch.setattr(watch_module, "LOOK_SECONDS", 0.05)
    change = FakeChange()
    watch = watching(folder, change)
    stamps, errors = watch._stamps, [OSError(errno.ESTALE, "Stale file handle")]

    def read():
        if errors:
            raise errors.pop()
        return stamps()

    monkeypatch.setattr(watch, "_stamps", read)

    with capture_logs() as said:
        began, following = monotonic(), asyncio.create_task(watch.run())
        await until(lambda: change.asked or following.done())
        following.cancel()

    assert change.asked == 1
    assert (
        monotonic() - began >= 3 * 0.05
    )  # a pause before each look: an error, the first stamps, the same again
    assert "Stale file handle" in said[0]["reason"]


async def test_a_watched_folder_that_cannot_be_read_is_logged_once_each_time_that_happens(tmp_path):
    loop, said = tmp_path / "loop", []
    watch = watching(loop)

    for _ in range(2):
        loop.symlink_to(loop)
        said += await look(watch, 3)
        loop.unlink()
        said += await look(watch, 1)

    assert [(line["event"], line["log_level"]) for line in said] == [("watched folder not read", "error")] * 2


@pytest.mark.usefixtures("bundle")
async def test_bundles_that_are_there_at_the_start_are_taken_at_the_first_look(folder):
    change = FakeChange()

    await watching(folder, change).look(at_start=True)

    assert change.asked == 1


async def test_a_shadow_changes_no_answer_and_is_measured(service, newer):
    before = await service.predict()
    begun = await service.change("POST", "/fd001/shadow", newer.path, share=0.5)

    during = [await service.predict() for _ in range(4)]
    await until(lambda: service.value("rul_shadow_absolute_difference_cycles_count", model="fd001") == 2)
    ended = await service.change("DELETE", "/fd001/shadow")
    again = await service.change("DELETE", "/fd001/shadow")
    for _ in range(4):
        await service.predict()
    await service.change("POST", "/fd001", newer.path)
    by_shadow = (await service.predict())["predictions"][0]["rul"]

    assert (begun.status_code, begun.json()["model"]["version"]) == (200, "2")
    assert during == [before] * 4
    seen = service.value("rul_shadow_absolute_difference_cycles_sum", model="fd001")
    assert (ended.status_code, again.status_code) == (200, 409)
    assert service.value("rul_shadow_absolute_difference_cycles_count", model="fd001") == 2
    assert service.value("rul_prediction_cycles_count", model="fd001") == 10  # a shadow predicts nothing
    assert seen == pytest.approx(2 * abs(before["predictions"][0]["rul"] - by_shadow), abs=1e-3)


async def test_a_shadow_is_not_asked_about_windows_that_no_metric_counts():
    asked_for = []

    class Answering:
        async def submit(self, windows):
            return []

    class Candidate:
        async def submit(self, windows):
            asked_for.append(windows.units)
            raise NotReady("it is busy")

    failures = []
    shadow = Shadow(Answering(), Candidate(), share=1.0, compared=list, failed=lambda: failures.append(1))
    await shadow.submit(msgspec.structs.replace(make_windows(50.0, unit="stored"), is_probe=True))
    await shadow.submit(make_windows(50.0, unit="new"))

    await until(lambda: failures)
    assert asked_for == [["new"]]


async def test_a_shadow_that_fails_harms_no_answer_and_is_counted(service, newer, monkeypatch):
    before = await service.predict()
    await service.change("POST", "/fd001/shadow", newer.path, share=1.0)
    candidate = service.parts.desk.predictor.models["fd001"].batcher.candidate
    monkeypatch.setattr(candidate.runtime, "_names", ["no such output"])

    assert await service.predict() == before

    await until(lambda: service.value("rul_shadow_failed_total", model="fd001") == 1)
    assert await service.predict() == before


async def test_a_swap_ends_a_shadow_and_a_shadow_reads_what_the_model_reads(service, newer):
    refused = [
        await service.change("POST", "/fd001/shadow", "fd002"),
        await service.change("POST", "/fd001/shadow", newer.path, share=0),
        await service.change("POST", "/fd001/shadow", newer.path, share=2),
        await service.change("POST", "/fd001", "x" * 5_000),
    ]
    await service.change("POST", "/fd001/shadow", newer.path, share=1)

    await service.change("POST", "/fd001", newer.path)

    assert [answer.status_code for answer in refused] == [422, 400, 400, 400]
    assert (await service.change("DELETE", "/fd001/shadow")).status_code == 409
    assert await service.version() == "2"

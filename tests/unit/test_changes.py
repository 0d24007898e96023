"""The supervisor changes the models of all workers, or of none."""

from pathlib import Path

import msgspec
import pytest

from export.bundle import BundleFolder
from export.seal import read_bundle
from service.core.changes import Action, Change, Changed
from service.core.queries import ModelName
from service.errors import InvalidCandidate
from service.processes.changes import Changes
from service.processes.control import Control, send
from service.processes.copies import Copies

SWAP = f"change {msgspec.json.encode(Change(Action.SWAP, 'fake', 'new')).decode()}"


@pytest.fixture
def serving(tiny_bundle):
    digest = read_bundle(tiny_bundle).sha256
    return Changed(bundles={"fake": str(tiny_bundle.path)}, digests={"fake": digest})


@pytest.fixture
async def supervisor(short_path):
    changes = Changes(lambda worker: short_path / f"worker-{worker}", Copies(short_path / "bundles"))
    await changes.control.open(short_path / "supervisor")
    yield changes
    changes.control.close()


@pytest.fixture
async def workers(supervisor, short_path):
    """Start workers that answer `prepare` so, in the order of their numbers."""
    controls = []

    async def start(*replies):
        for worker, reply in enumerate(replies):
            control = Control({"prepare": answer(reply), "commit": answer(reply), "abort": answer(Changed())})
            await control.open(short_path / f"worker-{worker}")
            controls.append(control)
            supervisor.workers.add(worker)

    yield start
    for control in controls:
        control.close()


def answer(reply):
    async def command(*_argument):
        return msgspec.json.encode(reply).decode()

    return command


@pytest.mark.parametrize("refuses", [0, 1])
async def test_after_a_refused_change_workers_restart_with_the_models_that_serve(
    supervisor, workers, serving, short_path, refuses
):
    supervisor.keep(serving)
    kept = supervisor.serving
    replies = [msgspec.structs.replace(serving, model=ModelName("fake", "2", "f"))] * 2
    replies[refuses] = Changed.refused(InvalidCandidate("a broken promise"))
    await workers(*replies)

    told = msgspec.json.decode(await send(short_path / "supervisor", SWAP), type=Changed)

    assert told.detail == "a broken promise"
    assert supervisor.serving == kept
    assert read_bundle(BundleFolder(Path(kept.bundles["fake"]))).sha256 == serving.digests["fake"]


async def test_a_change_whose_copies_have_no_room_is_refused_with_what_to_do(
    supervisor, workers, serving, short_path
):
    (short_path / "bundles").touch()  # no folder, so nothing can be written below it
    await workers(serving)

    told = msgspec.json.decode(await send(short_path / "supervisor", SWAP), type=Changed)

    assert told.error == "model_conflict"
    assert "cannot be copied" in told.detail
    assert "set TMPDIR" in told.detail
    assert supervisor.serving == Changed()


async def test_a_change_whose_bundle_is_gone_is_refused(supervisor, workers, serving, short_path):
    supervisor.keep(serving)
    kept = supervisor.serving
    gone = str(short_path / "gone")
    await workers(Changed(bundles={"fake": gone}, digests={"fake": "f" * 64}))

    told = msgspec.json.decode(await send(short_path / "supervisor", SWAP), type=Changed)

    assert (told.error, gone in told.detail) == ("invalid_candidate", True)
    assert supervisor.serving == kept

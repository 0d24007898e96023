"""`rul demo`: what its screen shows."""

from rich.console import Console

from model.domain import RulState
from rul_client.answers import Prediction
from rul_client.api import AsyncClient
from rul_client.commands.demo.run import Demo
from service.core.queries import HealthState, Interval
from tests.fakes import make_manifest


async def test_a_capped_answer_is_at_least_never_exact():
    healthy = HealthState("healthy", {"healthy": 1.0})
    async with AsyncClient("http://rul.test") as client:
        demo = Demo(client, [make_manifest()], units=1, seed=1)
    demo.machines[0].latest = Prediction(
        125.0, RulState.AT_LEAST_CAP, Interval(0.9, 104.0, 125.0), {}, healthy, 0.0
    )
    console = Console(width=120)

    with console.capture() as shown:
        console.print(demo.screen(client.url))

    assert "at least 125 104.0 to 125.0" in " ".join(shown.get().split())

"""Ray Serve with `@serve.batch`, one replica per core."""

import signal
from typing import Any

import ray
from graph import CORES, MAX_BATCH, PORT, WAIT_SECONDS, Graph
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=CORES, max_ongoing_requests=256, ray_actor_options={"num_cpus": 0.5})
class Peer:
    """A call may hold many windows, so a batch is a list of lists."""

    def __init__(self) -> None:
        self.graph = Graph()

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=WAIT_SECONDS)
    async def answer(self, calls: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
        """Answer the calls of a batch."""
        answers = iter(self.graph.answer([window for call in calls for window in call]))
        return [[next(answers) for _ in call] for call in calls]

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Answer one call."""
        return {"predictions": await self.answer((await request.json())["windows"])}


if __name__ == "__main__":
    ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(Peer.bind(), route_prefix="/v1/predict")
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    ray.shutdown()

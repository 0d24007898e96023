"""LitServe with its batching: calls within two milliseconds share a batch."""

from typing import Any

import litserve
from graph import CORES, MAX_BATCH, PORT, WAIT_SECONDS, Graph


class Peer(litserve.LitAPI):
    """A call may hold many windows, so a batch is a list of lists."""

    def setup(self, device: str) -> None:
        self.graph = Graph()

    def decode_request(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        return request["windows"]

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, calls: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
        answers = iter(self.graph.answer([window for call in calls for window in call]))
        return [[next(answers) for _ in call] for call in calls]

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {"predictions": output}


if __name__ == "__main__":
    api = Peer(max_batch_size=MAX_BATCH, batch_timeout=WAIT_SECONDS, api_path="/v1/predict")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=CORES)
    server.run(host="127.0.0.1", port=PORT, generate_client_file=False, log_level="error")

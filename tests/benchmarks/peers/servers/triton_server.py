"""Triton with its Python back end and dynamic batching, as PyTriton starts it."""

import os
from typing import Any

import numpy as np
from graph import CORES, OUTPUTS, PORT, WAIT_SECONDS, Graph
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

SHAPES = {
    "rul": (1,),
    "rul_interval": (2,),
    "failure_probability": (-1,),
    "health_state": (3,),
    "attention": (-1,),
    "contribution": (-1,),
    "novelty": (1,),
}


def runner() -> Any:
    """What one instance of the model runs."""
    graph = Graph()

    @batch
    def run(readings: Any, last_cycle: Any) -> dict[str, Any]:
        outputs = graph.run(readings, last_cycle)
        return {name: values.reshape(len(values), -1) for name, values in outputs.items()}

    return run


if __name__ == "__main__":
    ports = {"http_port": PORT, "grpc_port": int(os.environ["PEER_GRPC_PORT"])}
    with Triton(config=TritonConfig(**ports, allow_metrics=False, http_address="127.0.0.1")) as triton:
        triton.bind(
            model_name="comparable",
            infer_func=[runner() for _ in range(CORES)],
            inputs=[
                Tensor(name="readings", dtype=np.float32, shape=(-1, -1)),
                Tensor(name="last_cycle", dtype=np.float32, shape=(1,)),
            ],
            outputs=[Tensor(name=name, dtype=np.float32, shape=SHAPES[name]) for name in OUTPUTS],
            config=ModelConfig(
                max_batch_size=64,
                batcher=DynamicBatcher(max_queue_delay_microseconds=int(1e6 * WAIT_SECONDS)),
            ),
        )
        triton.serve()

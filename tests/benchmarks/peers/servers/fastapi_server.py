"""FastAPI and ONNX Runtime as in FastAPI's tutorial: a body model, and a function in its thread pool."""

from fastapi import FastAPI
from graph import Graph
from pydantic import BaseModel

app = FastAPI()
graph = Graph()


class Window(BaseModel):
    """A window as a client sends it."""

    unit: str | None = None
    last_cycle: float
    readings: list[list[float]]


class Query(BaseModel):
    """A body."""

    windows: list[Window]


@app.post("/v1/predict")
def predict(query: Query) -> dict:
    """Answer every window of a call in one batch."""
    return {"predictions": graph.answer([window.model_dump() for window in query.windows])}

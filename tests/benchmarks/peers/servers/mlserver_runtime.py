"""A custom runtime of MLServer; its settings, beside it, turn adaptive batching on."""

from graph import Graph
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Peer(MLModel):
    """Tensors in, tensors out."""

    async def load(self) -> bool:
        self.graph = Graph(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        given = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        outputs = self.graph.run(given["readings"], given["last_cycle"])
        encoded = [NumpyCodec.encode_output(name, values) for name, values in outputs.items()]
        return InferenceResponse(model_name=self.name, outputs=encoded)

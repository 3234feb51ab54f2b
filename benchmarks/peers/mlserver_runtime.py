"""A custom runtime for MLServer: tensors in and tensors out, in the V2 inference protocol.

`nodes` (n,) asks about known nodes; `features` (n, F) and `neighbors` (n, degree) ask about new ones.
"""

from __future__ import annotations

import os

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from benchmarks.peers.model import Model


class SGFormerRuntime(MLModel):
    async def load(self) -> bool:
        self._model = Model(os.environ["BENCHMARK_STORE"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        inputs = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        if "nodes" in inputs:
            probabilities = self._model.known(inputs["nodes"])
        else:
            probabilities = self._model.new(inputs["features"], inputs["neighbors"])
        tensors = {"label": probabilities.argmax(axis=1).astype(np.int64), "probabilities": probabilities}
        outputs = [NumpyCodec.encode_output(name, values) for name, values in tensors.items()]
        return InferenceResponse(model_name=self.name, outputs=outputs)

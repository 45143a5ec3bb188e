"""Frozen networks in ONNX Runtime, which on CPUs computes most convolutional ones faster than torch does.

The values differ from torch's in the last bits. Among themselves they do not depend on the number of threads, and of a
convolutional network not on what else is in the batch either.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import UserError

CLOSE = 1e-3  # the largest difference from torch's values, as a part of the largest of them
OPSET = 17  # version of the operators; every ONNX Runtime since 2022 knows it
TALKATIVE = ("onnxscript", "onnx_ir", "torch.onnx", "torch.export")  # loggers that warn of what they did not optimise


class OnnxNetwork:
    """A network as an ONNX model; it can be copied, and pickled for another process.

    Arguments:
        model: from one float32 tensor to one, the first dimension of both being the batch.
        threads: that compute it; None for as many as torch has when it is first called.
    """

    def __init__(self, model: bytes, threads: int | None = None) -> None:
        self.model, self.threads = model, threads
        self._session: Any = None

    def __call__(self, images: Tensor) -> Tensor:
        """(B, ...) on any device -> (B, ...) on the same."""
        if self._session is None:
            self._session = _session(self.model, self.threads or torch.get_num_threads())
        (found,) = self._session.run(None, {"images": images.cpu().contiguous().numpy()})
        return torch.from_numpy(found).to(images.device)

    def __reduce__(self) -> tuple[Any, ...]:
        return OnnxNetwork, (self.model, self.threads)

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxNetwork:
        return self


def to_onnx(network: nn.Module, example: Tensor) -> OnnxNetwork:
    """A network in evaluation mode for ONNX Runtime.

    Arguments:
        example: (B, ...), B at least 3, on the CPU; the result is checked on it.

    Raises:
        UserError: it cannot be exported, or gives other values.
    """
    with torch.no_grad(), quiet():
        expected = network(example)
        try:
            found = OnnxNetwork(_exported(network, example[:2]))
            values = found(example)
        except Exception as error:  # code that the exporter cannot follow raises almost anything
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise UserError(f"ONNX Runtime cannot compute this network: {reason}") from error
    if values.shape != expected.shape or not (values - expected).abs().max() <= CLOSE * expected.abs().max():
        raise UserError("ONNX Runtime computes other values of this network than torch does")
    return found


def _exported(network: nn.Module, example: Tensor) -> bytes:
    # The exporter by tracing takes half a second, the one by torch.export ten.
    stream = io.BytesIO()
    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["features"]}
    batch = {"images": {0: "batch"}, "features": {0: "batch"}}
    with _constant_padding():
        torch.onnx.export(
            network,
            (example,),
            stream,  # type: ignore[arg-type]
            dynamo=False,
            opset_version=OPSET,
            dynamic_axes=batch,
            **names,
        )
    return stream.getvalue()


@contextmanager
def _constant_padding() -> Iterator[None]:
    """Let timm's convolutions with TensorFlow's padding find it by numbers: all images have one size.

    As part of the graph it would stay outside of the convolutions, which costs a quarter of the time.
    """
    from timm.layers import padding

    by_size = padding.get_same_padding
    padding.get_same_padding = lambda size, *rest: by_size(int(size), *rest)
    try:
        yield
    finally:
        padding.get_same_padding = by_size


def _session(model: bytes, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    # Threads that wait by spinning would take the processors from those that decode, and from other processes.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what exporters say about themselves from the user."""
    loggers = [logging.getLogger(name) for name in TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

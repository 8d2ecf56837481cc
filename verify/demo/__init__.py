"""The field reports the project began with, as cases that anybody can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradjury.verify.report import Report


@dataclass(frozen=True)
class FieldReport:
    """A question somebody asked. `run(live)` answers it with the frameworks in `live` as witnesses."""

    name: str
    question: str
    run: Callable[[Sequence[str]], list[Report]]


def field_reports() -> list[FieldReport]:
    """All of them, in the order in which `gradjury demo` shows them."""
    from gradjury.verify.demo import manual_backprop, ocr_attention, python_rnn

    return [
        FieldReport(
            "manual-backprop",
            "Somebody's hand-written backward of a 1024-512-256-10 network: the biases before batchnorm never match.",
            manual_backprop.run,
        ),
        FieldReport(
            "python-rnn",
            "A recurrent net in pure Python against Theano: right outputs, wrong gradients, and one column always right.",
            python_rnn.run,
        ),
        FieldReport(
            "ocr-attention",
            "Two versions of PaddlePaddle print the same out_grad, but input_grad agrees at the last step only.",
            ocr_attention.run,
        ),
    ]

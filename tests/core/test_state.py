"""What an object declares as saved survives, and what cannot be saved is named."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from mlcil.core.state import State, load_state_of, state_of


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


@dataclass(frozen=True)
class Record:
    names: tuple[str, ...]
    sums: torch.Tensor


class Part:
    saved = ("count",)

    def __init__(self) -> None:
        self.count, self.scratch = 0, "not saved"


class Base:
    saved: tuple[str, ...] = ("weights", "part")

    def __init__(self) -> None:
        self.weights: Any = None
        self.part = Part()


class Whole(Base):
    saved = ("rows", "by_name", "by_number", "record", "pair", "shift")

    def __init__(self) -> None:
        super().__init__()
        self.rows: Any = []
        self.by_name: Any = {}
        self.by_number: Any = {}
        self.record, self.pair = Record((), torch.empty(0)), Pair(torch.empty(0), 0)
        self.shift: Any = (1.0, 0.0)


def filled() -> Whole:
    whole = Whole()
    whole.weights = torch.arange(6.0).reshape(2, 3).T
    whole.part.count = 3
    whole.rows = [np.array([1, 2]), np.empty((0, 2), np.int8), None]
    whole.by_name = {"a.b": torch.ones(2), "nested": {"c": [True, "text", 0.5]}}
    whole.by_number = {7: torch.zeros(1), 3: np.float32(0.25)}
    whole.record, whole.pair = Record(("x", "y"), torch.ones(3)), Pair(torch.ones(1), 2)
    whole.shift = (0.5, -1.0)
    return whole


def loaded(state: State) -> Whole:
    other = Whole()
    load_state_of(other, State(state.tensors, json.loads(json.dumps(state.values))))
    return other


def test_everything_that_is_declared_survives_with_its_type() -> None:
    whole = filled()
    other = loaded(state_of(whole))
    assert torch.equal(other.weights, whole.weights)
    assert other.weights.stride() == whole.weights.stride()
    assert other.part.count == 3
    assert isinstance(other.rows[0], np.ndarray)
    assert [getattr(one, "dtype", None) for one in other.rows] == [np.int64, np.int8, None]
    assert torch.equal(other.by_name["a.b"], torch.ones(2))
    assert other.by_name["nested"] == {"c": [True, "text", 0.5]}
    assert list(other.by_number) == [7, 3]
    assert other.by_number[3] == 0.25
    assert other.record.names == ("x", "y")
    assert torch.equal(other.record.sums, torch.ones(3))
    assert isinstance(other.pair, Pair)
    assert other.shift == (0.5, -1.0)


def test_a_part_is_loaded_into_the_one_that_is_there() -> None:
    other = Whole()
    part = other.part
    load_state_of(other, state_of(filled()))
    assert other.part is part
    assert (part.count, part.scratch) == (3, "not saved")


def test_names_of_tensors_are_paths() -> None:
    assert {"weights", "rows.0", "by_name.a.b", "by_number.7", "record.sums", "pair.first"} <= set(
        state_of(filled()).tensors
    )


def test_what_cannot_be_saved_is_named() -> None:
    whole = Whole()
    whole.by_name = {"model": torch.nn.Linear(1, 1)}
    with pytest.raises(TypeError, match=r"by_name\.model is a Linear"):
        state_of(whole)


def test_a_string_is_not_taken_for_a_tuple_of_names() -> None:
    wrong = type("Wrong", (), {"saved": "weights"})
    with pytest.raises(TypeError, match="expected a tuple of attribute names"):
        state_of(wrong())


def test_two_tensors_of_one_name_are_refused() -> None:
    whole = Whole()
    whole.by_name = {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}
    with pytest.raises(ValueError, match=r"both be called by_name\.a\.b"):
        state_of(whole)

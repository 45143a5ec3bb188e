import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch.optim import Adam
from torch.optim.lr_scheduler import OneCycleLR

from mlcil.models.backbone import Backbone
from mlcil.models.tagger import AttentionShape, TaggerNet
from mlcil.training.optimiser import (
    WeightAverage,
    load_optimiser_state,
    make_optimiser,
    one_cycle,
    optimiser_state,
    set_rate,
)
from mlcil.training.states import load_state, save_state

LR, DECAY = 1e-3, 1e-4


def tagger(attention: bool = True) -> TaggerNet:
    torch.manual_seed(0)
    made = TaggerNet(Backbone("small_conv", 16), AttentionShape(16, 2) if attention else None)
    made.grow(3)
    made.grow(2)
    return made


def rates_by_torch(total: int, warmup: float) -> list[tuple[float, float]]:
    optimiser = Adam([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = OneCycleLR(optimiser, max_lr=1.0, total_steps=total, pct_start=warmup)
    found = []
    for _ in range(total):
        group = optimiser.param_groups[0]
        found.append((float(group["lr"]), float(group["betas"][0])))
        optimiser.step()
        if len(found) < total:
            schedule.step()
    return found


@pytest.mark.parametrize(
    ("total", "warmup"),
    [
        (total, warmup)
        for total in (2, 3, 4, 5, 6, 7, 10, 25, 100, 333)
        for warmup in (0.05, 0.2, 0.3, 1 / 3, 0.5, 0.9, 1.0)
        if warmup * total > 1
    ],
)
def test_the_schedule_is_the_published_one_wherever_the_warmup_lasts_a_step(total, warmup):
    ours = [one_cycle(step, total, warmup) for step in range(total)]
    assert torch.allclose(
        torch.tensor(ours, dtype=torch.float64),
        torch.tensor(rates_by_torch(total, warmup), dtype=torch.float64),
        rtol=1e-12,
        atol=0,
    )


@pytest.mark.parametrize("total", range(1, 11))
def test_the_schedule_knows_every_number_of_steps(total):
    for warmup in (0.0, 0.05, 0.1, 0.2, 0.5, 0.99, 1.0):
        found = [one_cycle(step, total, warmup) for step in range(total)]
        assert all(0 < rate <= 1 for rate, _ in found)
        assert all(0.85 - 1e-12 <= beta <= 0.95 + 1e-12 for _, beta in found)


def test_a_single_step_is_taken_at_the_peak():
    for warmup in (0.0, 0.2, 1.0):
        assert one_cycle(0, 1, warmup) == pytest.approx((1.0, 0.85), rel=1e-15)


def test_the_schedule_starts_at_a_25th_peaks_and_ends_near_zero():
    rates = [one_cycle(step, 100, 0.2)[0] for step in range(100)]
    assert rates[0] == pytest.approx(1 / 25)
    assert rates[19] == max(rates) == 1.0
    assert rates[-1] == pytest.approx(1 / 25 / 1e4)


def test_set_rate_moves_every_group_from_its_own_peak():
    optimiser = make_optimiser(tagger(), LR, DECAY)
    for step in (0, 3, 9):  # in any order: nothing is accumulated
        set_rate(optimiser, step, 10, 0.5)
        part, beta = one_cycle(step, 10, 0.5)
        assert [group["lr"] for group in optimiser.param_groups] == [
            group["peak"] * part for group in optimiser.param_groups
        ]
        assert {group["betas"] for group in optimiser.param_groups} == {(beta, 0.999)}
    assert {group["peak"] for group in optimiser.param_groups} == {LR}


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("weight_decay", [DECAY, 0.0])
def test_every_parameter_that_trains_is_there_once_as_it_should_be(attention, weight_decay):
    model = tagger(attention)
    model.freeze_old_sessions()
    model.backbone.net.blocks[0].requires_grad_(False)
    optimiser = make_optimiser(model, LR, weight_decay)
    found = {id(one): group for group in optimiser.param_groups for one in group["params"]}
    times = Counter(id(one) for group in optimiser.param_groups for one in group["params"])
    wanted = {id(one): (name, one) for name, one in model.named_parameters() if one.requires_grad}
    assert len(wanted) < len(list(model.parameters()))
    assert times == dict.fromkeys(wanted, 1)
    for key, (name, parameter) in wanted.items():
        assert found[key]["peak"] == found[key]["lr"] == LR, name
        assert found[key]["weight_decay"] == (weight_decay if parameter.ndim > 1 else 0.0), name


def test_decay_is_l2_and_not_decoupled():
    assert not make_optimiser(tagger(), LR, DECAY).param_groups[0].get("decoupled_weight_decay", False)


def train(model: TaggerNet, optimiser: Adam, steps: range) -> None:
    model.train()
    for step in steps:
        torch.manual_seed(step)
        set_rate(optimiser, step, 6, 0.5)
        optimiser.zero_grad()
        model(torch.randn(4, 3, 16, 16)).logits.square().mean().backward()
        optimiser.step()


@pytest.mark.parametrize("attention", [True, False])
def test_a_run_cut_in_two_equals_one_in_a_piece_to_the_bit(tmp_path, attention):
    whole = tagger(attention)
    train(whole, make_optimiser(whole, LR, 0.5, DECAY), range(6))

    first = tagger(attention)
    optimiser = make_optimiser(first, LR, 0.5, DECAY)
    train(first, optimiser, range(3))
    file = tmp_path / "progress.safetensors"
    moments = {f"optimiser.{key}": value for key, value in optimiser_state(optimiser).items()}
    save_state(file, moments | first.state_dict(), {})

    saved, _ = load_state(file)
    second = tagger(attention)
    second.load_state_dict({key: value for key, value in saved.items() if key not in moments})
    optimiser = make_optimiser(second, LR, 0.5, DECAY)
    load_optimiser_state(optimiser, {key.removeprefix("optimiser."): saved[key] for key in moments})
    for key, value in optimiser_state(optimiser).items():
        assert torch.equal(value, moments[f"optimiser.{key}"]), key
    train(second, optimiser, range(3, 6))
    for key, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), key


def test_loading_keeps_the_groups_as_they_are():
    model = tagger()
    optimiser = make_optimiser(model, LR, 0.5, DECAY)
    train(model, optimiser, range(1))
    other = make_optimiser(tagger(), LR, 0.25, 0.0)
    before = [{key: value for key, value in group.items() if key != "params"} for group in other.param_groups]
    assert optimiser_state(other) == {}  # nothing yet
    load_optimiser_state(other, {})
    after = [{key: value for key, value in group.items() if key != "params"} for group in other.param_groups]
    assert before == after


def test_the_average_is_the_running_mean():
    model, decay = tagger(), 0.9
    average = WeightAverage(model, decay)
    floating = {key: value for key, value in model.state_dict().items() if value.is_floating_point()}
    by_hand = {key: value.double() for key, value in floating.items()}
    optimiser = make_optimiser(model, 1e-2, DECAY)
    for step in range(5):
        train(model, optimiser, range(step, step + 1))
        average.update(model)
        now = model.state_dict()
        by_hand = {key: decay * mean + (1 - decay) * now[key].double() for key, mean in by_hand.items()}
    assert average.mean.keys() == by_hand.keys()
    assert any("running_mean" in key for key in by_hand)
    for key, mean in by_hand.items():
        assert torch.allclose(average.mean[key].double(), mean, rtol=1e-5, atol=1e-7), key
    assert any(not torch.equal(average.mean[key], now[key]) for key in by_hand)
    assert not any(value.requires_grad for value in average.mean.values())


def test_what_is_frozen_stays_to_the_bit():
    model = tagger()
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d)).requires_grad_(False)
    with torch.no_grad():
        first.weight[0] = -0.0
    before = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    average = WeightAverage(model, 0.9)
    train(model, make_optimiser(model, 1e-2, DECAY), range(2))
    average.update(model)
    average.copy_to(model)
    same = {name for name, value in model.state_dict().items() if value.numpy().tobytes() == before[name]}
    assert {name for name, value in model.named_parameters() if not value.requires_grad} <= same
    assert not same & {name for name, value in model.named_parameters() if value.requires_grad}


def test_decay_at_its_ends():
    model = tagger()
    start = copy.deepcopy(model.state_dict())
    still, latest = WeightAverage(model, 1.0), WeightAverage(model, 0.0)
    train(model, make_optimiser(model, 1e-2, DECAY), range(2))
    still.update(model)
    latest.update(model)
    for key in still.mean:
        assert torch.equal(still.mean[key], start[key]), key
        assert torch.allclose(latest.mean[key], model.state_dict()[key], rtol=1e-6, atol=1e-8), key


def test_copy_to_puts_the_mean_in_place_and_leaves_counters():
    model = tagger()
    average = WeightAverage(model, 0.5)
    optimiser = make_optimiser(model, 1e-2, DECAY)
    train(model, optimiser, range(2))
    average.update(model)
    parameters = list(model.parameters())
    counters = {key: int(value) for key, value in model.state_dict().items() if "num_batches" in key}
    average.copy_to(model)
    for key, value in model.state_dict().items():
        if key in average.mean:
            assert torch.equal(value, average.mean[key]), key
            assert value.data_ptr() != average.mean[key].data_ptr()
        else:
            assert int(value) == counters[key] == 2
    assert all(one is two for one, two in zip(parameters, model.parameters(), strict=True))


def test_the_fused_step_is_adam_step_by_step_and_restored_moments_lie_like_their_parameters() -> None:
    made, twin = tagger(), tagger()
    ours = make_optimiser(made, LR, DECAY)
    plain = make_optimiser(twin, LR, DECAY, fused=False)
    assert ours.param_groups[0]["fused"]
    for step in range(4):
        for model, optimiser in ((made, ours), (twin, plain)):
            torch.manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.empty_like(parameter).copy_(torch.randn(parameter.shape))  # as autograd lays it
            optimiser.step()
        if step == 1:  # as a checkpoint does: elements in the order of their indices
            state = {name: value.contiguous() for name, value in optimiser_state(ours).items()}
            ours = make_optimiser(made, LR, DECAY)
            load_optimiser_state(ours, state)
    for ours_one, plain_one in zip(made.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours_one, plain_one, rtol=1e-5, atol=1e-7)

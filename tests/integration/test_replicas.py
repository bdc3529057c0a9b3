"""Samples of what all ranks have, by which one that differs is found."""

from __future__ import annotations

from typing import Any

import torch
from spotsup_trainer.session.replicas import difference, digest, sample
from spotsup_trainer.session.snapshot import capture
from torch import nn


def made() -> dict[str, Any]:
    """A model with tensors of all sizes and two types, and an optimizer that has made a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(4, 2, dtype=torch.bfloat16))
    model.to(memory_format=torch.channels_last)
    model.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
    model.register_parameter("empty", nn.Parameter(torch.empty(0)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"model": model, "opt": optimizer}


def sampled(state: dict[str, Any]) -> dict[str, bytes]:
    return sample(state, capture(state))


def test_parameters_and_optimizers_are_sampled_and_buffers_are_not() -> None:
    found = sampled(made())
    parameters = {f"{at}.{kind}" for at in (0, 1, 2) for kind in ("weight", "bias")} | {"scale"}
    assert {name.removeprefix("model.") for name in found if name.startswith("model.")} == parameters
    slots = {f"opt.state.{name}.{slot}" for name in parameters for slot in ("exp_avg", "exp_avg_sq", "step")}
    assert slots <= found.keys()
    assert {name: len(found[f"model.{name}"]) for name in ("0.weight", "2.weight", "scale")} == {
        "0.weight": 16 * 4,
        "2.weight": 8 * 2,
        "scale": 4,
    }


def test_equal_states_have_equal_samples_and_a_change_is_named() -> None:
    one, other = made(), made()
    assert sampled(one) == sampled(other)
    assert digest(sampled(one)) == digest(sampled(other)) < 2**56
    other["model"][1].running_mean += 1
    assert difference(sampled(one), sampled(other)) == ""
    with torch.no_grad():
        other["model"][0].weight += 1e-6
    assert difference(sampled(one), sampled(other)) == "model.0.weight"
    assert digest(sampled(one)) != digest(sampled(other))
    slot = other["opt"].state[other["model"].scale]["exp_avg"]
    slot += 1
    assert difference(sampled(one), sampled(other)) == "model.0.weight and 1 more"


def test_stages_with_different_names_do_not_differ_but_other_lengths_of_one_name_do() -> None:
    assert difference({"stage0.w": b"1"}, {"stage1.w": b"2"}) == ""
    assert difference({"w": b"11"}, {"w": b"1"}) == "w"

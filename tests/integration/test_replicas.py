"""Samples of what all ranks have, by which one that differs is found."""

from __future__ import annotations

from typing import Any

import torch
from spotsup_trainer.session.replicas import difference, digest, sample
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


def sampled(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return sample({name: thing for name, thing in state.items() if isinstance(thing, nn.Module)})


def test_parameters_are_sampled_and_buffers_are_not() -> None:
    found = sampled(made())
    parameters = {f"{at}.{kind}" for at in (0, 1, 2) for kind in ("weight", "bias")} | {"scale"}
    assert {name.removeprefix("model.") for name in found} == parameters
    assert {name: found[f"model.{name}"].nbytes for name in ("0.weight", "2.weight", "scale")} == {
        "0.weight": 16 * 4,
        "2.weight": 8 * 2,
        "scale": 4,
    }


def test_equal_states_have_equal_samples_and_a_change_is_named() -> None:
    one, other = made(), made()
    assert digest(sampled(one)) == digest(sampled(other)) < 2**56
    other["model"][1].running_mean += 1
    assert digest(sampled(one)) == digest(sampled(other))
    with torch.no_grad():
        other["model"][0].weight += 1e-3
    assert difference(sampled(one), sampled(other)) == "model.0.weight"
    assert digest(sampled(one)) != digest(sampled(other))
    with torch.no_grad():
        other["model"].scale.fill_(torch.nan)
    assert difference(sampled(one), sampled(other)) == "model.0.weight and 1 more"
    assert difference(sampled(other), sampled(other)) == ""  # also where both are not a number


def test_rounding_of_different_processors_is_no_difference() -> None:
    one, other = made(), made()
    with torch.no_grad():
        for parameter in other["model"].parameters():
            parameter.mul_(1 + 2 * torch.finfo(parameter.dtype).eps)
    assert digest(sampled(one)) != digest(sampled(other))
    assert difference(sampled(one), sampled(other)) == ""


def test_stages_with_different_names_do_not_differ_but_other_lengths_of_one_name_do() -> None:
    one, two = torch.ones(1), torch.zeros(1)
    assert difference({"stage0.w": one}, {"stage1.w": two}) == ""
    assert difference({"w": one}, {"w": torch.ones(2)}) == "w"

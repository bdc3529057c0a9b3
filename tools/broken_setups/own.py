"""Broken machines of one's own, and settings of them."""

from __future__ import annotations

from tools.broken_setups.row import CONFIG, OWN, BrokenSetup

_HOST = "box1 ({address}) cannot be logged in to:"

ROWS = (
    BrokenSetup(
        "own-silent",
        OWN,
        "a host that is switched off",
        "own, box1",
        f"{_HOST} nothing answers there at port {{port}}: is it switched on, and does its SSH server run?",
    ),
    BrokenSetup(
        "own-key-not-known",
        OWN,
        "a host whose SSH key nobody has seen",
        "own, box1",
        (
            f"{_HOST} its SSH key is not in {{folder}}/none: `spotsupd machine add {{address}}:{{port}} --name box1` "
            "shows and keeps it, and so does ssh(1)"
        ),
    ),
    BrokenSetup(
        "own-another-key",
        OWN,
        "a host with another SSH key than before",
        "own, box1",
        f"{_HOST} its SSH key is another one than in {{folder}}/known_hosts: if that is right, correct the line there",
    ),
    BrokenSetup(
        "own-not-let-in",
        OWN,
        "a host that does not know our key",
        "own, box1",
        f"{_HOST} it does not let ann in with {{folder}}/another: `ssh-copy-id -p {{port}} ann@{{address}}`",
    ),
    BrokenSetup(
        "own-no-python",
        OWN,
        "a host without the interpreter that is configured",
        "own, box1",
        "box1 ({address}): /no/python cannot run our program: …",
    ),
    BrokenSetup(
        "own-missing-gpu",
        OWN,
        "a GPU that is not there",
        "own, box1",
        "nvidia-smi knows no GPU 7",
    ),
    BrokenSetup(
        "own-broken-driver",
        OWN,
        "a host whose driver does not answer",
        "own, box1",
        "nvidia-smi ended with 9: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    ),
    BrokenSetup(
        "own-several-gpus",
        OWN,
        "a host with GPUs of several kinds",
        "own, box1",
        (
            "its GPUs are of several kinds (NVIDIA GeForce RTX 4090, Tesla T4): give it an entry in [own.hosts] for "
            "each kind, with `gpus`"
        ),
    ),
    BrokenSetup(
        "own-same-gpus",
        CONFIG,
        "two hosts with the same GPUs",
        "",
        "{folder}/spotsupd.toml: `own`: box2 and box1 share GPUs of box.lab: give each `gpus` of its own",
    ),
    BrokenSetup(
        "own-hours",
        CONFIG,
        "hours that can mean two things",
        "",
        (
            "{folder}/spotsupd.toml: `own.hosts.box1.available`: 'mon,wed 18:00-08:00' can mean two things: write "
            "`mon 18:00-08:00` or `mon 00:00-24:00`"
        ),
    ),
)

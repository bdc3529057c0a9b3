"""Looks at the dashboard in headless Chromium: pictures, what axe-core finds, and errors of scripts or of the policy.

Runs in `.tools/screens`, which has playwright and axe-core; it imports nothing of ours. `make screenshots`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

# Cluster, its page, the picture's name, width and height.
PICTURES = [
    ("one", "/jobs/llama-8b-sft", "job", 1280, 0),
    ("many", "/", "overview", 1280, 0),
    ("many", "/jobs/segment-2", "job-64", 1280, 0),
    ("many", "/fleet", "fleet", 1280, 0),
    ("many", "/money", "money", 1280, 0),
    ("one", "/", "one", 1280, 800),
    ("empty", "/", "empty", 1280, 720),
    ("burning", "/", "burning", 1280, 0),
    ("burning", "/queue", "queue", 1280, 0),
    ("burning", "/jobs/moe-16e", "job-burning", 1280, 0),
    ("one", "/jobs/llama-8b-sft/logs", "logs", 1280, 800),
    ("burning", "/", "phone", 390, 0),
    ("one", "/jobs/llama-8b-sft", "phone-job", 390, 0),
    ("one", "/login", "login", 1280, 720),
    ("one", "/jobs/none", "none", 1280, 720),
]


def main() -> int:
    """Take all pictures, light and dark, and print what is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True, help="the interpreter that serves")
    parser.add_argument("--chromium", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    axe = import_module("axe_playwright_python")
    options.axe = Path(str(axe.__file__)).with_name("axe.min.js")
    options.out.mkdir(parents=True, exist_ok=True)
    command = [options.python, "-m", "tests.dashboard.serve"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    wrong: list[str] = []
    try:
        addresses = json.loads(server.stdout.readline())
        with import_module("playwright.sync_api").sync_playwright() as playwright:
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(executable_path=options.chromium, args=arguments)
            for cluster, path, name, width, height in PICTURES:
                if options.only and name not in options.only.split(","):
                    continue
                for scheme in ("light", "dark"):
                    wrong += look(browser, addresses[cluster] + path, name, scheme, (width, height), options)
            browser.close()
    finally:
        server.stdin.close()
        server.wait(timeout=60)
    shrink(options.out)
    for each in wrong:
        print(each)
    print(f"{len(wrong)} findings")
    return 1 if wrong else 0


def shrink(folder: Path) -> None:
    """To 96 colours, which is enough for flat pictures."""
    image = import_module("PIL.Image")
    for file in folder.glob("*.png"):
        image.open(file).convert("RGB").quantize(96, dither=image.Dither.NONE).save(file, optimize=True)


def look(browser: Any, address: str, name: str, scheme: str, size: tuple[int, int], options: Any) -> list[str]:
    """One picture, and what is wrong with the page."""
    found: list[str] = []
    where = f"{name} ({scheme})"
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1] or 900},
        color_scheme=scheme,
        timezone_id="UTC",
        locale="en-GB",
        reduced_motion="reduce",
        bypass_csp=False,
        device_scale_factor=1,
    )
    page = context.new_page()
    page.clock.set_fixed_time("2026-11-24T14:02:05Z")

    def heard(message: Any) -> None:
        # A page that does not exist is shown, and Chromium says so.
        if message.type in {"error", "warning"} and "status of 404" not in message.text:
            found.append(f"{where}: {message.text}")

    page.on("console", heard)
    page.on("pageerror", lambda error: found.append(f"{where}: {error}"))
    page.on(
        "request", lambda each: None if each.url.startswith(address.split("/", 3)[2], 7) else found.append(each.url)
    )
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=str(options.out / f"{name}-{scheme}.png"), full_page=not size[1])
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if overflow > 0:
        found.append(f"{where}: the page is {overflow} px wider than the screen")
    page.evaluate(options.axe.read_text())
    report = page.evaluate("axe.run({resultTypes: ['violations']})")
    for each in report["violations"]:
        targets = ", ".join(str(node["target"][0]) for node in each["nodes"][:4])
        found.append(f"{where}: {each['impact']} {each['id']}: {each['help']} ({len(each['nodes'])}: {targets})")
    context.close()
    return found


if __name__ == "__main__":
    sys.exit(main())

"""What a program imports first, read from its text."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from spotsup_trainer.launcher.prepare import PreloadError, wanted_imports
from spotsup_trainer.launcher.program_imports import BY_OPTIMIZERS, MAX_IMPORTS, Import, imports_of, uses_session

TRAIN = '''"""A program."""
from __future__ import annotations
import os, torch.nn as nn
from torch import optim as o, nn
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import pandas

LR: float = 0.1
SIZES = [1, 2 * 3]

def main():
    import matplotlib

class Net(nn.Module):
    import inside

import json
'''


def program(folder: Path, text: str, modules: Mapping[str, str] = MappingProxyType({})) -> str:
    (folder / "train.py").write_text(text)
    for name, content in modules.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return str(folder / "train.py")


def found(folder: Path, text: str, modules: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    return [each.module for each in imports_of(program(folder, text, modules), Path("/"), is_module=False)]


def test_imports_at_the_top_in_order_with_the_names_that_may_load_more(tmp_path: Path) -> None:
    assert imports_of(program(tmp_path, TRAIN), Path("/"), is_module=False) == (
        Import("os"),
        Import("torch.nn"),
        Import("torch", ("optim", "nn")),
        Import("typing", ("TYPE_CHECKING",)),
        Import("json"),
        BY_OPTIMIZERS,
    )


@pytest.mark.parametrize(
    ("text", "modules", "is_found"),
    [
        ("import torch\n", {}, True),
        ("from torch.nn import Linear\nprint(1)\n", {}, True),
        ("import net\n", {"net.py": "import torch\n"}, True),
        ("import json, torchvision\n", {}, False),
        # Set before torch is there: nothing behind it counts.
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\n", {}, False),
        ("import os, torch\nos.environ['TORCHDYNAMO_DISABLE'] = '1'\n", {}, False),
        ("import torch\nimport net\n", {"net.py": "def make():\n    set_('TORCHINDUCTOR_FREEZING')\n"}, False),
        ("import torch\ndef main():\n    set_('TORCH_COMPILE_DISABLE')\n", {}, False),
    ],
)
def test_what_the_first_optimizer_imports_comes_last_unless_the_program_may_change_it(
    tmp_path: Path, text: str, modules: dict[str, str], is_found: bool
) -> None:
    names = found(tmp_path, text, modules)
    assert (BY_OPTIMIZERS.module in names) == is_found
    assert BY_OPTIMIZERS.module not in names[:-1]


@pytest.mark.parametrize(
    "line",
    [
        'os.environ["HF_HUB_OFFLINE"] = "1"',
        "sys.path.insert(0, 'lib')",
        "DEVICE = torch.device('cuda')",
        "print(1)",
        "try:\n    import a\nexcept ImportError:\n    a = None",
        "if x:\n    pass",
        "a.b = 1",
        "for x in y: pass",
        "with x: pass",
        "TOKEN = os.environ['TOKEN']",
        "assert x",
        "x += 1",
    ],
)
def test_behind_a_statement_that_does_something_nothing_counts(tmp_path: Path, line: str) -> None:
    """It may change what an import does."""
    assert found(tmp_path, f"import json\n{line}\nimport late\n") == ["json"]


def test_modules_of_the_programs_own_are_read_and_not_imported(tmp_path: Path) -> None:
    modules = {
        "net.py": "import numpy\nfrom data import Set\n",
        "data.py": "import net\nimport PIL.Image\n",
        "lib/__init__.py": "import yaml\n",
        "lib/deep/__init__.py": "from . import one\nfrom ..other import x\nfrom .missing import y\n",
        "lib/deep/one.py": "import scipy\n",
        "lib/other.py": "import regex\n",
    }
    text = "from net import Net\nimport json\nfrom lib.deep import one\nimport last\n"
    assert found(tmp_path, text, modules) == ["numpy", "PIL.Image", "json", "yaml", "scipy", "regex", "last"]


def test_what_one_of_them_does_ends_the_reading_too(tmp_path: Path) -> None:
    modules = {"a.py": "import b\nimport c\n", "b.py": "import d\nmain()\n"}
    assert found(tmp_path, "import a\nimport json\n", modules) == ["d"]


@pytest.mark.parametrize(
    "text", ["import (", "\0", "import json\nimport " + "a." * 20_000 + "b", "x = " + "(" * 10_000]
)
def test_a_text_that_cannot_be_parsed_is_left_to_the_program(tmp_path: Path, text: str) -> None:
    assert [name for name in found(tmp_path, text) if len(name) < 100] in ([], ["json"])


def test_a_program_that_is_not_there_or_large_is_left_alone(tmp_path: Path) -> None:
    assert imports_of(str(tmp_path / "missing.py"), tmp_path, is_module=False) == ()
    assert found(tmp_path, f"import json\n{'#' * 2**20}\n") == []
    assert len(found(tmp_path, "".join(f"import m{number}\n" for number in range(1000)))) == MAX_IMPORTS


@pytest.mark.parametrize(
    ("text", "modules", "uses"),
    [
        ("import torch\nmain()\n", {"beside.py": "import spotsup_trainer"}, False),
        ("from spotsup_trainer.session import Session", {}, True),
        ("import torch\nmain()\ndef main():\n    import spotsup_trainer.callbacks.lightning\n", {}, True),
        (
            "main()\nfrom lib import loop",
            {"lib/loop.py": "def train():\n    from spotsup_trainer import session"},
            True,
        ),
        ("main()\nfrom lib import loop", {"lib/loop.py": "from . import missing\nimport torch"}, False),
        ("import (", {}, True),
        ("".join(f"import m{number}\n" for number in range(40)), {f"m{number}.py": "" for number in range(40)}, True),
        ("".join(f"import m{number}\n" for number in range(20)), {f"m{number}.py": "" for number in range(20)}, False),
    ],
)
def test_a_program_that_may_have_a_session_is_seen_wherever_it_imports_it(
    tmp_path: Path, text: str, modules: Mapping[str, str], uses: bool
) -> None:
    assert uses_session(program(tmp_path, text, modules), Path("/"), is_module=False) == uses


def test_a_module_is_looked_for_in_the_current_folder_first(tmp_path: Path) -> None:
    modules = {
        "train.py": "from . import net\nimport json\n",
        "net.py": "import yaml\n",
        "__main__.py": "import toml\n",
    }
    program(tmp_path, "", {f"package/{name}": text for name, text in modules.items()})
    assert imports_of("package.train", tmp_path, is_module=True) == (Import("yaml"), Import("json"))
    assert imports_of("package", tmp_path, is_module=True) == (Import("toml"),)
    assert imports_of("missing.train", tmp_path, is_module=True) == ()
    assert imports_of("sys", tmp_path, is_module=True) == ()


def test_an_installed_module_is_read_behind_its_packages_and_what_is_beside_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `-m litgpt`: it is found without being imported."""
    modules = {
        "installed_lit/__init__.py": "from installed_lit.api import LLM\n",
        "installed_lit/api.py": "import lightning, installed_beside\n",
        "installed_lit/__main__.py": "from . import chat\nimport jsonargparse\nmain()\nimport late\n",
        "installed_lit/chat.py": "import torch._dynamo\n",
        "installed_beside.py": "import never\n",
    }
    site = tmp_path / "site"
    site.mkdir()
    program(site, "", modules)
    monkeypatch.syspath_prepend(site)
    names = [each.module for each in imports_of("installed_lit", tmp_path, is_module=True)]
    assert names[:4] == ["lightning", "installed_beside", "torch._dynamo", "jsonargparse"]
    names = [each.module for each in imports_of("installed_lit.chat", tmp_path, is_module=True)]
    assert names[:3] == ["lightning", "installed_beside", "torch._dynamo"]
    assert imports_of("installed_beside", tmp_path, is_module=True) == (Import("never"),)
    assert not {name for name in sys.modules if name.startswith("installed_")}


def test_a_package_that_does_something_before_its_module_is_read_ends_the_reading(tmp_path: Path) -> None:
    modules = {"package/__init__.py": "import yaml\nsetup()\n", "package/train.py": "import json\n"}
    program(tmp_path, "", modules)
    assert imports_of("package.train", tmp_path, is_module=True) == (Import("yaml"),)


def test_a_user_names_others_or_none(tmp_path: Path) -> None:
    script = program(tmp_path, "import json\n")
    assert wanted_imports(script, is_module=False, environ={}) == (Import("json"),)
    assert wanted_imports(script, is_module=False, environ={"SPOTSUP_PRELOAD": ""}) == ()
    named = wanted_imports(script, is_module=False, environ={"SPOTSUP_PRELOAD": "torchvision.io, yaml"})
    assert named == (Import("torchvision.io"), Import("yaml"))
    for wrong in ("a-b", "a..b", "1a", "a;b", "os.path:join"):
        with pytest.raises(PreloadError, match="it is a list of modules, separated by commas"):
            wanted_imports(script, is_module=False, environ={"SPOTSUP_PRELOAD": wrong})

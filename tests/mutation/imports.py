"""A module that is imported with other code than its file's."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import CodeType, ModuleType


class _Loader(importlib.abc.Loader):
    def __init__(self, code: CodeType) -> None:
        self._code = code

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)  # noqa: S102  # our own source


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, code: CodeType) -> None:
        self._name, self._code = name, code

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(self._code), origin=self._code.co_filename)


def replace_code(module: str, code: CodeType) -> None:
    """From now on an import of this module runs this code. It must not be imported yet."""
    sys.meta_path.insert(0, _Finder(module, code))

"""How much of a group of keys a mirror keeps: who may write below a prefix may write without end. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Quota:
    """What is kept of each group of keys, and of which group a key is."""

    group_of: Callable[[str], str]  # "" for a key without limits
    max_keys: int
    max_bytes: int
    max_value_bytes: int


@dataclass
class Kept:
    """The sizes of the keys that are kept, by group, and the groups of which some are not."""

    quota: Quota
    over: frozenset[str] = frozenset()
    _sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    _bytes: dict[str, int] = field(default_factory=dict)

    def put(self, key: str, size_bytes: int) -> bool:
        """Return whether a key with a value of that size is kept; what was kept of it before no longer is."""
        group = self.quota.group_of(key)
        if not group:
            return True
        self._drop(group, key)
        sizes = self._sizes.setdefault(group, {})
        total = self._bytes.get(group, 0) + len(key) + size_bytes
        fits = size_bytes <= self.quota.max_value_bytes and total <= self.quota.max_bytes
        if not fits or len(sizes) >= self.quota.max_keys:
            if group not in self.over:
                self.over |= {group}
            return False
        sizes[key] = len(key) + size_bytes
        self._bytes[group] = total
        return True

    def delete(self, key: str) -> None:
        """Forget a key that was deleted. A group of which nothing is kept any more is like a new one."""
        group = self.quota.group_of(key)
        if group:
            self._drop(group, key)
            if not self._sizes.get(group):
                self._sizes.pop(group, None)
                self._bytes.pop(group, None)
                self.over -= {group}

    def _drop(self, group: str, key: str) -> None:
        size = self._sizes.get(group, {}).pop(key, None)
        if size is not None:
            self._bytes[group] -= size

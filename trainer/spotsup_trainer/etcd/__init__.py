"""etcd v3 over its JSON gateway: client, watch, mirror and outbox. Standard library only.

Shared with the daemon, which uses the names below and `mirror`.
"""

from spotsup_trainer.etcd.client import (
    Compare,
    Delete,
    Etcd,
    EtcdError,
    EtcdRefusedError,
    EtcdUnavailableError,
    KeyValue,
    Put,
    Range,
    Tls,
    TxnResult,
    Watch,
    WatchEvent,
)

__all__ = [
    "Compare",
    "Delete",
    "Etcd",
    "EtcdError",
    "EtcdRefusedError",
    "EtcdUnavailableError",
    "KeyValue",
    "Put",
    "Range",
    "Tls",
    "TxnResult",
    "Watch",
    "WatchEvent",
]

"""Stores for coordination: any engine with eight small operations.

``contract`` says what a store must do; ``torch_store``, ``redis_store`` and ``etcd_store`` implement it on engines
people already run; ``address`` opens one by its address. ``holdfast.testing.check_store`` tests a store against the
contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy_names import lazy_names

if TYPE_CHECKING:
    from holdfast.coordinate.stores.address import open_store as open_store
    from holdfast.coordinate.stores.contract import KeyValue as KeyValue
    from holdfast.coordinate.stores.contract import Store as Store
    from holdfast.coordinate.stores.etcd_store import EtcdStore as EtcdStore
    from holdfast.coordinate.stores.redis_store import RedisStore as RedisStore
    from holdfast.coordinate.stores.torch_store import TorchStore as TorchStore

_HOMES = {
    "EtcdStore": "etcd_store",
    "KeyValue": "contract",
    "RedisStore": "redis_store",
    "Store": "contract",
    "TorchStore": "torch_store",
    "open_store": "address",
}

__all__ = ["EtcdStore", "KeyValue", "RedisStore", "Store", "TorchStore", "open_store"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

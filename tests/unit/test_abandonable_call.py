"""Calls that may hang are waited for only while that is worthwhile."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import pytest
from spotsup_trainer.rendezvous.abandonable_call import call_while

from tests.e2e.launching import eventually


def test_what_a_call_returns_or_raises_is_passed_on() -> None:
    assert call_while(lambda: 7, lambda: True) == 7
    with pytest.raises(ZeroDivisionError):
        call_while(lambda: 1 // 0, lambda: True)


def test_an_error_keeps_nothing_alive() -> None:
    """Else a store would go on listening until Python's collector comes."""

    class Store:
        def get(self) -> int:
            raise ZeroDivisionError

    store = Store()
    alive = weakref.ref(store)
    gc.disable()
    try:
        with contextlib.suppress(ZeroDivisionError):
            call_while(store.get, lambda: True)
        eventually("its thread has ended", lambda: all(each.name != "attempt" for each in threading.enumerate()))
        del store
        assert alive() is None
    finally:
        gc.enable()


def test_an_abandoned_error_keeps_nothing_alive() -> None:
    """As above: a round that broke while its members found each other leaves a call, which runs out of time later."""
    hanging = threading.Event()

    class Store:
        def get(self) -> int:
            hanging.wait(60)
            raise ZeroDivisionError

    store = Store()
    alive = weakref.ref(store)
    gc.disable()
    try:
        assert call_while(store.get, lambda: False) is None
        hanging.set()
        del store
        eventually("its thread has let go of the store", lambda: alive() is None)
    finally:
        gc.enable()


def test_a_call_that_hangs_is_left_when_it_is_not_worthwhile_any_more() -> None:
    hanging = threading.Event()
    looks = iter([True, True, False])
    assert call_while(lambda: hanging.wait(60), lambda: next(looks)) is None
    hanging.set()


def test_what_ends_the_wait_may_be_an_error() -> None:
    hanging = threading.Event()

    def told_to_leave() -> bool:
        raise KeyError("asked to leave")

    with pytest.raises(KeyError, match="asked to leave"):
        call_while(lambda: hanging.wait(60), told_to_leave)
    hanging.set()

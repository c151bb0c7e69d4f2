"""What the garbage collector ends never waits for a lock of the thread that it runs in."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable

from holdfast.collected import finalize_outside, notice_collections, outside_collection


class Owner:
    def __init__(self) -> None:
        self.itself = self


def ended_by_collection(call: Callable[[], object]) -> None:
    finalize_outside(Owner(), call)
    gc.collect()


def test_a_finalizer_that_the_collector_runs_may_take_a_lock_that_its_thread_holds() -> None:
    lock, done = threading.Lock(), threading.Event()

    def finalize() -> None:
        with lock:
            done.set()

    with lock:
        ended_by_collection(finalize)
        assert not done.is_set()
    assert done.wait(30)


def test_an_owner_that_is_dropped_is_finalized_at_once_in_the_same_thread() -> None:
    called: list[int] = []
    owner = Owner()
    owner.itself = None  # type: ignore[assignment]  # no cycle: its last reference ends it
    finalize_outside(owner, lambda: called.append(threading.get_ident()))
    del owner
    assert called == [threading.get_ident()]


def test_a_collection_in_another_thread_does_not_matter() -> None:
    notice_collections()
    called: list[int] = []
    began, may_end = threading.Event(), threading.Event()

    class Slow(Owner):
        def __del__(self) -> None:
            began.set()
            may_end.wait(30)

    def collect() -> None:
        Slow()
        gc.collect()

    thread = threading.Thread(target=collect)
    thread.start()
    assert began.wait(30)
    outside_collection(lambda: called.append(threading.get_ident()))
    may_end.set()
    thread.join()
    assert called == [threading.get_ident()]


def test_the_end_of_the_program_waits_for_what_the_collector_ended() -> None:
    program = """
import gc, time
from holdfast.collected import finalize_outside
class Owner: pass
owner = Owner()
owner.itself = owner
finalize_outside(owner, lambda: (time.sleep(0.5), print("ended", flush=True)))
del owner
gc.collect()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("ended\n", "")

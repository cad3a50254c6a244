"""Tests that need the GPU take turns where one of them is to be alone."""

import threading

from conftest import gpu_turn


def test_one_that_is_alone_has_nobody_beside_it(tmp_path):
    """It waits for those that run, and those that come after it wait too, whatever kind they are."""
    order, leave, inside = [], threading.Event(), threading.Barrier(3)

    def shared():
        with gpu_turn(False, tmp_path):
            inside.wait(20)
            leave.wait(20)
            order.append("shared")

    def take(alone, name):
        with gpu_turn(alone, tmp_path):
            order.append(name)

    threads = [threading.Thread(target=shared) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(20)  # two share it
    alone = threading.Thread(target=take, args=(True, "alone"))
    alone.start()
    alone.join(0.2)
    late = threading.Thread(target=take, args=(False, "late"))
    late.start()
    late.join(0.2)
    assert order == []
    leave.set()
    for thread in (*threads, alone, late):
        thread.join(20)
    assert order == ["shared", "shared", "alone", "late"]

"""Tests that need the GPU: they take turns where one is to be alone, and none outlives its time limit."""

import threading

import pytest
from conftest import gpu_turn, pytest_collection_modifyitems


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


def test_a_kernel_that_hangs_ends_its_process(request):
    """A signal would wait for the kernel."""
    needs_gpu, other, own_limit = (
        pytest.Function.from_parent(request.node.parent, name=f"test_{i}", callobj=lambda: None)
        for i in range(3)
    )
    for each in (needs_gpu, own_limit):
        each.add_marker("gpu")
    own_limit.add_marker(pytest.mark.timeout(7))
    pytest_collection_modifyitems(request.config, [needs_gpu, other, own_limit])
    markers = [each.get_closest_marker("timeout") for each in (needs_gpu, other, own_limit)]
    assert markers[0].kwargs == {"method": "thread"} and markers[1] is None
    assert markers[2].args == (7,)

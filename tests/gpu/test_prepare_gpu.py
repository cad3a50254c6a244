"""Norm, RoPE and the write into pages on a GPU: every case, by a plan, and captured with other slots."""

import sys
from pathlib import Path

import numpy as np
import pytest

from flashcore_numba import write_kv_pages
from flashcore_numba.branches.prepare import oracle
from flashcore_numba.branches.prepare.inputs import drawn
from flashcore_numba.branches.prepare.outputs import WRITTEN
from flashcore_numba.branches.prepare.prepare_pages import STAGE
from flashcore_numba.checks import check_stage
from flashcore_numba.core.element import E4M3
from flashcore_numba.run import plans

sys.path.insert(0, str(Path(__file__).parent))
from capturing import library
from test_attention_gpu import make_cupy, make_torch, to_host
from test_capture_gpu import EACH_KIND

pytestmark = pytest.mark.gpu

OPTIONS = ("interleaved", "norm_eps")
ARRAYS = ("slot_mapping", "positions", "cos", "sin", "q_weight", "k_weight")


@pytest.mark.parametrize("variant", STAGE.variants)
def test_every_case(variant):
    report = check_stage(STAGE, variant, backend="gpu")
    assert report.passed, report.failures[0]


class Call:
    """One call on a GPU, whose slots and positions may be drawn again."""

    def __init__(self, lib, rng, tokens, in_place):
        self.lib, self.in_place = lib, in_place
        self.x = drawn(rng, tokens, 8, 2, 128, padding=tokens // 4)
        self.rows = [lib.array(np.ascontiguousarray(self.x.arrays[name][0].swapaxes(0, 1))) for name in "qkv"]
        self.arrays = {name: lib.array(self.x.arrays[name]) for name in ARRAYS}
        shape = (self.x.pages, self.x.page, 2, 128)
        self.pools = [lib.empty(shape) for _ in range(2)]

    def __call__(self):
        out = self.rows[0] if self.in_place else None
        options = {name: getattr(self.x, name) for name in OPTIONS}
        return write_kv_pages(*self.rows, *self.pools, **self.arrays, **options, out=out)

    def again(self, rng):
        """Other rows, slots and positions in the same memory, and pools of NaN."""
        tokens = len(self.x.slot_mapping)
        new = drawn(rng, tokens, 8, 2, 128, padding=tokens // 4)
        self.x = self.x.but(**{name: new.arrays[name] for name in ("q", "k", "v", *ARRAYS)})
        for name, array in zip("qkv", self.rows, strict=True):
            self.lib.fill(array, self.lib.array(np.ascontiguousarray(new.arrays[name][0].swapaxes(0, 1))))
        for name, array in self.arrays.items():
            self.lib.fill(array, self.lib.array(new.arrays[name]))
        for pool in self.pools:
            self.lib.fill(pool, float("nan"))

    def check(self, out):
        self.lib.synchronize()
        ref = oracle.reference(self.x)
        rows = self.lib.view(out).get().swapaxes(0, 1)[None]
        pools = [self.lib.view(pool).get() for pool in self.pools]
        for output, value in zip(WRITTEN, (rows, *pools), strict=True):
            assert oracle.judge(output, value, ref, None).passed, output.name
        for pool in pools:
            free = np.delete(pool.reshape(-1, 2, 128), self.x.slot_mapping[self.x.slot_mapping >= 0], axis=0)
            assert np.isnan(free).all()


@EACH_KIND
@pytest.mark.parametrize("tokens", [1, 16, 3000])
@pytest.mark.parametrize("in_place", [False, True])
def test_calls_by_a_plan(rng, kind, tokens, in_place):
    lib = library(kind)
    plans.forget()
    call = Call(lib, rng, tokens, in_place)
    for _ in range(4):
        call.again(rng)
        lib.synchronize()
        call.check(call())
    assert len(plans._plans) == 1


@EACH_KIND
@pytest.mark.parametrize("tokens", [1, 16, 3000])
def test_pools_of_e4m3(rng, kind, tokens):
    """Tensors of float8_e4m3fn, CuPy's bytes, and twice, by a plan: as the oracle has them."""
    make = {"cupy": make_cupy, "torch": make_torch}[kind]
    plans.forget()
    v_scale = np.array([0.02, 0.001], np.float32)  # of which the second is too small for many
    x = drawn(rng, tokens, 8, 2, 128, padding=tokens // 4, stored=E4M3, k_scale=0.03, v_scale=v_scale)
    rows = [make(np.ascontiguousarray(each[0].swapaxes(0, 1))) for each in (x.q, x.k, x.v)]
    given = {name: make(x.arrays[name]) for name in ARRAYS}
    for _ in range(2):
        pools = [make(np.full((x.pages, x.page, 2, 128), np.nan, E4M3.dtype)) for _ in range(2)]
        scales = {"k_scale": 0.03, "v_scale": make(v_scale)}
        out = write_kv_pages(*rows, *pools, **given, **scales, norm_eps=x.norm_eps)
        if kind == "torch":
            pools = [pool.view(sys.modules["torch"].uint8) for pool in pools]
        ref = oracle.reference(x)
        found = to_host(out).swapaxes(0, 1)[None], *(to_host(pool).view(E4M3.dtype) for pool in pools)
        for output, value in zip(WRITTEN, found, strict=True):
            assert oracle.judge(output, value, ref, None).passed, output.name
        for pool in found[1:]:
            free = np.delete(pool.reshape(-1, 2, 128), x.slot_mapping[x.slot_mapping >= 0], axis=0)
            assert np.isnan(free.astype(np.float32)).all()
    assert len(plans._plans) == 1


@EACH_KIND
@pytest.mark.parametrize("in_place", [False, True])
def test_a_captured_call_reads_slots_anew(rng, kind, in_place):
    lib = library(kind)
    call = Call(lib, rng, 16, in_place)
    plans.forget()
    lib.synchronize()
    graph, out = lib.captured(lambda handle: call(), "global")
    for _ in range(3):
        call.again(rng)
        lib.synchronize()
        lib.replay(graph, lib.stream())
        call.check(out)


def test_slots_past_the_elements_that_an_int_counts(rng):
    """The same bits in the last pages of pools of more than 2^31 elements as in small pools."""
    import cupy

    x = drawn(rng, 40, 8, 2, 128, padding=5)
    rows = [cupy.asarray(np.ascontiguousarray(x.arrays[name][0].swapaxes(0, 1))) for name in "qkv"]
    others = {name: cupy.asarray(x.arrays[name]) for name in ARRAYS[1:]}
    shape = (x.page, 2, 128)
    far = -(-(2**31) // int(np.prod(shape)))
    found = []
    for before in (0, far):
        pools = [cupy.empty((before + x.pages, *shape), cupy.float16) for _ in range(2)]
        ends = [pool[before:] for pool in pools]
        for end in ends:
            end.fill(cupy.nan)
        slots = cupy.asarray(np.where(x.slot_mapping < 0, -1, x.slot_mapping + before * x.page))
        write_kv_pages(*rows, *pools, slots, **others, norm_eps=x.norm_eps)
        found.append([end.view(cupy.uint16) for end in ends])
    for near, end in zip(*found, strict=True):
        assert (near == end).all()
    assert not cupy.isnan(found[0][0].view(cupy.float16)).all()

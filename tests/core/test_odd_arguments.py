"""Arguments that nobody means: each is refused in a short sentence, or works; nothing is half written."""

import fractions
import functools
import json
import re

import numpy as np
import pytest

from cuda_reference.cpu import CpuModule
from cuda_reference.extents import block_extents, grid_extents
from cuda_reference.shown import shown
from flashcore_numba import (
    ArgumentError,
    UnsupportedError,
    attention,
    attention_backward,
    attention_dropout,
    attention_norm,
    attention_paged,
    attention_varlen,
    cli,
    merge,
    write_kv_pages,
)
from flashcore_numba.branches.decode.ladder import LADDER
from flashcore_numba.checks import check
from flashcore_numba.core import shapes
from flashcore_numba.core.problem import ROWS_LIMIT, Problem
from flashcore_numba.course import lessons
from flashcore_numba.course.session.begin import begin
from flashcore_numba.course.session.journal import Journal
from flashcore_numba.evidence import extracts
from flashcore_numba.records import artifact
from flashcore_numba.run import executor, numba_launch
from flashcore_numba.simulator import simulate
from flashcore_numba.stages import find as stages

HUGE = 10**5000  # Python refuses to write so many digits
LONGEST = 1000  # characters of a message: one lists all lessons
DEEP = "[" * 200_000


def kind(value):
    return type(value).__name__


class Odd:
    """Nothing that a message or a comparison may ask of it goes well."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self, *args):
        raise ZeroDivisionError("in __repr__")

    __str__ = __eq__ = __bool__ = __len__ = __getitem__ = __index__ = __float__ = __iter__ = __repr__


class Touchy(Odd):
    def __getattr__(self, name):
        raise OSError(f"nobody may ask for {name}")


class Exporter(Odd):
    def __dlpack__(self, **options):
        raise KeyError("x" * 10_000)

    def __dlpack_device__(self):
        return 1, 0


class Nowhere(Exporter):
    def __dlpack_device__(self):
        return "here"


class Interface:
    def __init__(self, **fields):
        self.__cuda_array_interface__ = fields


class Number(fractions.Fraction):
    def __float__(self):
        raise ArithmeticError("no float")


def qkv(shape=(1, 1, 32, 64)):
    return [np.random.default_rng(i).standard_normal(shape).astype(np.float16) for i in range(3)]


def wide(shape):
    """Float16 of any shape in 128 bytes."""
    return np.lib.stride_tricks.as_strided(np.zeros(64, np.float16), shape, (0, 0, 0, 2))


def refused(call, *words, error=ArgumentError):
    with pytest.raises(error) as raised:
        call()
    message = str(raised.value)
    assert len(message) < LONGEST and "\n" not in message, message[:1000]
    missing = [word for word in words if word not in message]
    assert not missing, message
    return message


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (10**400, ["integer of 401 digits", "finite"]),
        (-HUGE, ["integer of 5001 digits"]),
        (fractions.Fraction(HUGE), ["Fraction", "finite"]),
        (Number(1), ["no float"]),
        (float("nan"), ["nan"]),
        (-np.inf, ["-inf"]),
        (np.float32(np.inf), ["inf"]),
        (1e39, ["1e+39", "float32"]),
        (1j, ["1j"]),
        (True, ["True"]),
        (np.True_, ["True"]),
        (np.array(0.125), ["array(0.125)"]),
        (np.array([0.125]), ["array"]),
        ("0.125" * 1000, ["'0.1250.125", "..."]),
        ([0.125], ["[0.125]"]),
        (list(range(10**6)), ["..."]),
        (Odd(), ["Odd"]),
        (Touchy(), ["Touchy"]),
    ],
    ids=kind,
)
def test_a_scale_that_is_none(scale, words):
    refused(lambda: attention(*qkv(), scale=scale), "scale is ", *words)


@pytest.mark.parametrize(
    "scale", [np.float16(0.125), np.float64(0.125), np.int8(1), fractions.Fraction(1, 8), 0]
)
def test_a_scale_of_another_type_of_number(scale):
    q, k, v = qkv()
    assert np.array_equal(attention(q, k, v, scale=scale), attention(q, k, v, scale=float(scale)))


@pytest.mark.parametrize(
    "stage",
    [HUGE, "9" * 5000, -1, 1.0, True, np.True_, b"12", type(None), Odd(), Touchy(), (12,), "x" * 10**6],
    ids=kind,
)
def test_a_stage_that_is_none(stage):
    refused(lambda: attention(*qkv(), stage=stage), "is not in the ladder", "12 mma_sync")
    assert stages.find(np.int64(12)).number == stages.find(" 012 ").number == 12


@pytest.mark.parametrize("value", [HUGE, -HUGE, fractions.Fraction(HUGE, 3), Number(1, 3), Odd()], ids=kind)
def test_a_number_that_no_float_holds(value):
    x = np.zeros((1, 1, 4, 64), np.float16)
    rows, weight = x[0].swapaxes(0, 1), np.ones(64, np.float16)
    pool, table, lengths = (
        np.zeros((2, 4, 1, 64), np.float16),
        np.zeros((1, 1), np.int32),
        np.ones(1, np.int32),
    )
    slots = np.full(4, -1)

    def paged(pools=pool, **options):
        return attention_paged(x, pools, pools.copy(), table, lengths, **options)

    def pages(**options):
        return write_kv_pages(rows, rows, rows, pool, pool.copy(), slots, **options)

    bytes_of_e4m3 = pool.view(np.uint8)[..., :64].copy()
    for name, call in {
        "softcap": lambda: attention(x, x, x, softcap=value),
        "head_norm[1]": lambda: attention(x, x, x, head_norm=(weight, value)),
        "time_limit": lambda: attention(x, x, x, time_limit=value),
        "eps": lambda: attention_norm(x, x, x, None, weight, eps=value),
        "norm_eps": lambda: pages(norm_eps=value),
        "p": lambda: attention_dropout(x, x, x, p=value, seed=0),
    }.items():
        refused(call, f"{name}", " is ")
    if not isinstance(value, Odd):  # which is no number
        refused(lambda: paged(k_scale=value), "k_scale is given for pools of float16")
        refused(lambda: paged(bytes_of_e4m3, v_scale=value), "v_scale is ", "float32")


def test_a_limit_of_time_of_another_type_of_number():
    q, k, v = qkv((1, 1, 4, 64))
    for number in (5, 12):  # the simulator, the CPU executor
        for seconds in (fractions.Fraction(601, 2), np.float16(300), np.inf):
            attention(q, k, v, stage=number, time_limit=seconds)


@pytest.mark.parametrize(
    "stage", [HUGE, 1.0, type(None), np.zeros(2), Odd(), Touchy(), "x" * 10**6], ids=kind
)
def test_a_stage_of_a_branch_that_is_none(stage):
    find = functools.partial(stages.find_in, LADDER, operation="decode", described="decoding")
    refused(lambda: find(selector=stage), "is not in the ladder of decoding", "decode/chunks")
    assert find(selector="chunks") is find(selector="decode/chunks") is find(selector=LADDER[0])


def test_a_norm_that_is_none():
    x, weight = np.zeros((1, 1, 4, 64), np.float16), np.ones(64, np.float16)
    for norm in (np.array(["rms", "rms"]), Odd(), ["rms"], None):
        refused(lambda norm=norm: attention_norm(x, x, x, None, weight, norm=norm), "norm is ", "'layer'")


def misplaced(array):
    """The same numbers, each a byte after a multiple of its size."""
    memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
    memory[:] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return memory.view(array.dtype).reshape(array.shape)


def test_numbers_at_odd_addresses():
    """A GPU cannot read them, and no call after that which tries would work."""
    x, numbers = np.zeros((1, 2, 4, 64), np.float16), np.zeros((1, 2, 4), np.float32)
    rows, ends = x[0].swapaxes(0, 1), np.array([0, 4], np.int32)
    heads, used = misplaced(np.zeros(2, np.float32)), misplaced(np.ones(1, np.int32))
    odd, odd_ends, wide = misplaced(numbers), misplaced(ends), x.astype(np.float32)
    pool, table, slots = np.zeros((2, 4, 2, 64), np.float16), np.zeros((1, 1), np.int32), np.arange(4)
    tables = dict.fromkeys(("cos", "sin"), np.zeros((4, 32), np.float32))
    back = functools.partial(attention_backward, x, x, x, x, x)
    for name, call in {
        "sinks": lambda: attention(x, x, x, sinks=heads),
        "alibi_slopes": lambda: attention(x, x, x, alibi_slopes=heads),
        "seqused_k": lambda: attention(x, x, x, seqused_k=used),
        "keys_from": lambda: attention(x, x, x, keys_from=used),
        "prior[1]": lambda: attention(x, x, x, prior=(wide, odd)),
        "head_norm[0]": lambda: attention(x, x, x, head_norm=(misplaced(np.ones(64, np.float32)), 1e-6)),
        "cu_seqlens_q": lambda: attention_varlen(rows, rows, rows, odd_ends, ends),
        "cu_seqlens_k": lambda: attention_varlen(rows, rows, rows, ends, odd_ends),
        "lse": lambda: back(odd),
        "dlse": lambda: back(numbers, dlse=odd),
        "lse_a": lambda: merge(x, odd, x, numbers),
        "lse_b": lambda: merge(x, numbers, x, odd),
        "lengths": lambda: attention_paged(x, pool, pool, table, used),
        "block_table": lambda: attention_paged(x, pool, pool, misplaced(table), np.ones(1, np.int32)),
        "slot_mapping": lambda: write_kv_pages(rows, rows, rows, pool, pool.copy(), misplaced(slots)),
        "positions": lambda: write_kv_pages(
            rows, rows, rows, pool, pool.copy(), slots, positions=misplaced(slots.astype(np.int32)), **tables
        ),
    }.items():
        refused(call, f"{name} has strides", "an odd address", "a multiple of ")
    paged = functools.partial(attention_paged, x, pool, pool, table, np.ones(1, np.int32))
    refused(lambda: paged(sinks=heads), "sinks has strides", "an odd address")


@pytest.mark.parametrize("value", [Odd(), Touchy(), HUGE, "yes" * 1000, 1, np.array(True)], ids=kind)
def test_a_switch_that_is_none(value):
    refused(lambda: attention(*qkv(), causal=value), "causal is ", "True or False")
    refused(lambda: attention(*qkv(), return_lse=value), "return_lse is ", "True or False")


ODD_ARRAYS = {
    "a list": (lambda x: x.tolist(), "type list", "NumPy"),
    "an object": (lambda x: Odd(), "type Odd", "NumPy"),
    "an object without attributes": (lambda x: Touchy(), "type Touchy", "NumPy"),
    "an exporter that fails": (lambda x: Exporter(), "DLPack", "KeyError"),
    "an exporter that is nowhere": (lambda x: Nowhere(), "Nowhere", "where it is"),
    "an empty interface": (lambda x: Interface(), "Interface", "KeyError"),
    "an odd interface": (
        lambda x: Interface(typestr="<f2", data=None, shape=3),
        "Interface",
        "cannot be read",
    ),
    "bytes in the other order": (lambda x: x.astype(x.dtype.newbyteorder()), "2", "byte order"),
    "objects": (lambda x: x.astype(object), "object", "float16"),
    "records": (lambda x: x.view([(f"field{i}", "<f2") for i in range(64)]), "float16"),
    "a masked array": (lambda x: np.ma.array(x), "masked", "filled(0)"),
    "no dimensions": (lambda x: np.array(1, np.float16), "four dimensions"),
    "a matrix": (lambda x: np.matrix(x[0, 0]), "four dimensions"),
    "no rows": (lambda x: x[:, :, :0], "length zero"),
    "no heads": (lambda x: x[:, :0], "no heads"),
    "reversed rows": (lambda x: x[:, :, ::-1], "negative"),
    "reversed columns": (lambda x: x[..., ::-1], "contiguous"),
    "every other column": (lambda x: np.repeat(x, 2, axis=3)[..., ::2], "contiguous"),
    "too long": (lambda x: wide((1, 1, ROWS_LIMIT + 1, 64)), "length", str(ROWS_LIMIT)),
    "too many rows": (lambda x: wide((60_000, 60_000, 1, 64)), "rows in all"),
    "too many heads": (lambda x: wide((1, 65_536, 1, 64)), "heads 65536", "65535"),
    "too many batches": (lambda x: wide((65_536, 1, 1, 64)), "batch 65536", "65535"),
}


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of np.matrix
@pytest.mark.parametrize("where", ["q", "k", "v", "out"])
@pytest.mark.parametrize("what", ODD_ARRAYS)
def test_an_array_that_is_refused(what, where):
    make, *words = ODD_ARRAYS[what]
    arrays = dict(zip("qkv", qkv(), strict=True))
    out = np.full_like(arrays["q"], 7)
    odd = make(arrays["q"].copy())
    words = [word for word in words if where != "out" or not word.isdigit()]
    if where == "out":
        refused(lambda: attention(**arrays, out=odd), "out")
        return
    refused(lambda: attention(**arrays | {where: odd}, out=out), f"{where} ", *words)
    assert (out == 7).all()


def test_an_output_that_no_memory_holds():
    """1.1 TB, more than a machine with GPUs has."""
    torch = pytest.importorskip("torch")
    shape, row = (1, 2, ROWS_LIMIT - 1, 256), np.zeros(256, np.float16)
    for q in (np.broadcast_to(row, shape), torch.from_numpy(row).expand(shape)):
        refused(lambda q=q: attention(q, q, q), f"{ROWS_LIMIT - 1}", "bytes", "split the input")


def test_an_overlap_that_is_hard_to_find():
    """A search for a common element would take hours: the answer is that there may be one."""
    memory = np.zeros(1 << 22, np.float16)
    make = np.lib.stride_tricks.as_strided
    q = make(memory, (50, 50, 50, 64), (2 * 8 * 10007, 2 * 8 * 1009, 2 * 8 * 101, 2))
    out = make(memory[8 * 37 :], (50, 50, 50, 64), (2 * 8 * 9973, 2 * 8 * 997, 2 * 8 * 103, 2))
    refused(lambda: attention(q, q, q, out=out), "out ")


@pytest.mark.long
@pytest.mark.parametrize("stage", [4, 12])
def test_an_array_that_works(stage, tmp_path):
    class Sub(np.ndarray):
        """An array whose operators and items are its own."""

        def __getitem__(self, key):
            raise AssertionError("asked for an item")

        def __array_ufunc__(self, *args, **options):
            raise AssertionError("computed with")

    q, k, v = qkv((2, 2, 40, 64))
    expected = attention(q, k, v, stage=stage)
    frozen = [x.copy() for x in (q, k, v)]
    for x in frozen:
        x.flags.writeable = False
    mapped = np.memmap(tmp_path / "file", np.float16, "w+", shape=q.shape)
    mapped[:] = q
    inside = np.full((3, 4, 60, 128), np.nan, np.float16)
    window = inside[1:, 1:3, 10:50, 32:96]
    window[...] = q
    for name, arrays in {
        "read-only": frozen,
        "a subclass": [x.view(Sub) for x in (q, k, v)],
        "a file": [mapped, k, v],
        "a window": [window, k, v],
        "transposed": [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (q, k, v)],
    }.items():
        assert np.array_equal(attention(*arrays, stage=stage), expected), name
    same = np.broadcast_to(q[:, :1], q.shape)
    assert np.array_equal(
        attention(q, same, same, stage=stage), attention(q, same.copy(), same.copy(), stage=stage)
    )
    out = np.full((3, 4, 60, 128), 5, np.float16)
    assert attention(q, k, v, stage=stage, out=out[1:, 1:3, 10:50, 32:96]) is not None
    assert np.array_equal(out[1:, 1:3, 10:50, 32:96], expected)
    out[1:, 1:3, 10:50, 32:96] = 5
    assert (out == 5).all()


def test_arrays_of_one_buffer_that_overlap_do_so_in_a_launch(tmp_path):
    """What NumPy does not know to be one piece of memory is one all the same."""
    source = tmp_path / "twice.cu"
    source.write_text(
        'extern "C" __global__ void twice(const float* x, float* y) {\n'
        "    y[0] = 5.0f;\n    __threadfence();\n    y[2] = x[1];\n}\n"
    )
    buffer = bytearray(16)
    x, y = np.frombuffer(buffer, np.float32), np.frombuffer(memoryview(buffer)[4:], np.float32)
    CpuModule(source).twice(1, 1, (x, y))
    assert y.tolist() == [5, 0, 5]


def test_a_window_costs_no_copy_of_what_it_is_a_window_of(tmp_path):
    import resource

    big = np.lib.stride_tricks.as_strided(np.zeros(1, np.float16), (1, 1, 1, 1 << 33), (0, 0, 0, 0))
    assert big.nbytes == 1 << 34
    buffer = np.zeros((1, 1, 1 << 24, 64), np.float16)  # 2 GB that nobody has touched
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    q, k, v = (buffer[:, :, i * 64 : i * 64 + 64] for i in range(3))
    attention(q, k, v, stage=12)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KB


EXTENTS = [
    0, -1, True, 1.0, 1.5, None, "1", (), (1, 1, 1, 1), (1, 0), (1, -1, 1), (1, 2.5), (np.True_,), [Odd()],
    Odd(), HUGE, (1, HUGE), {1: 2}, np.float32(2), np.array([1, 1]),
]  # fmt: skip


@pytest.mark.parametrize("extent", EXTENTS, ids=kind)
def test_extents_that_are_none(extent):
    for name, check_extents in {"grid": grid_extents, "block": block_extents}.items():
        refused(lambda check=check_extents: check(extent), f"{name} is ", error=ValueError)


@pytest.mark.parametrize(
    ("grid", "block", "words"),
    [
        ((2**31, 1, 1), 32, ["grid", "x is at most 2147483647"]),
        ((1, 65_536), 32, ["grid", "y is at most 65535"]),
        ((1, 1, 65_536), 32, ["grid", "z is at most 65535"]),
        (1, 1025, ["block", "at most 1024"]),
        (1, (33, 32), ["block", "1056 threads", "at most 1024"]),
        (1, (1, 1, 65), ["block", "z is at most 64"]),
    ],
)
def test_extents_beyond_what_cuda_allows(grid, block, words, tmp_path):
    """The executor and both launchers of a GPU say so before any driver does; the simulator in its words."""
    source = tmp_path / "none.cu"
    source.write_text('extern "C" __global__ void none(float* x) {}\n')
    x = np.zeros(1, np.float32)
    refused(lambda: CpuModule(source).none(grid, block, (x,)), *words, error=ValueError)
    refused(lambda: numba_launch.check_extents("none", grid, block), "none: ", *words, error=UnsupportedError)

    from numba import cuda

    @cuda.jit
    def nothing(x):
        return

    refused(lambda: simulate(nothing, grid, block, x), words[0], error=ValueError)


@pytest.mark.parametrize("number", [12, 13])
def test_a_long_causal_problem_fits_the_grid(number):
    """Five million rows: the tiles must not be along z, of which a grid has 65,535."""

    class Noting(executor.Simulator):
        def empty(self, shape, dtype):
            return wide((1, 1, 1, 64))

        def launch(self, kernel, grid, block, *args, shared_bytes=0):
            grids.append(grid_extents(grid))

    grids: list[tuple[int, int, int]] = []
    x = wide((1, 2, 20_000_000, 64))
    stage = stages.find(number)
    stage.launch(Problem(x, x, x, causal=True), x, Noting())
    assert grids and max(max(grid) for grid in grids) > 65_535
    x = wide((1, 2, 100_000, 64))
    stage.launch(Problem(x, x, x, causal=True), x, Noting())
    assert grids[-1][0] == 2 and grids[-1][2] > 1  # the usual order of a causal problem, longest first


@pytest.mark.parametrize("value", [HUGE, Odd(), Touchy(), "x" * 10**5], ids=kind)
def test_other_functions_show_little_of_what_they_refuse(value):
    refused(lambda: check(variants=[value], stages=[12]), "variant ")
    refused(lambda: check(backend=value), "backend is ")
    refused(lambda: lessons.find(value), "lesson ")
    refused(lambda: shapes.parse("1x1x" + "9" * 5000 + "x64"), "shape ")
    refused(lambda: begin(3).predict(**{begin(3).lesson.questions[0].key: value}))


def test_shown_is_short_and_says_what_it_can():
    assert shown(12) == "12" and shown("a") == "'a'" and shown(None) == "None"
    assert shown(np.float32(2)) == "np.float32(2.0)"
    assert shown(-(10**400)) == "an integer of 401 digits"
    assert shown({"a": [1] * 1000}).startswith("{'a': [1, 1,") and len(shown({"a": [1] * 1000})) < 60
    assert shown(np.zeros((2, 2))) == "array([[0., 0.], [0., 0.]])"
    assert re.fullmatch(r"<Odd.*>", shown(Odd())) and re.fullmatch(r"<Touchy.*>", shown(Touchy()))
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    assert len(shown(nested)) < 60


@pytest.mark.parametrize(
    "text", [DEEP, DEEP.replace("[", '{"a":'), "9" * 5000, '{"schema": ' + "[" * 900 + "]" * 900 + "}"]
)
def test_json_that_no_program_writes(text, tmp_path, capsys):
    path = tmp_path / "artifact.json"
    path.write_text(text)
    refused(lambda: artifact.load(path), str(path), error=artifact.ArtifactError)
    assert cli.main(["compare", str(path), str(path)]) == 2
    assert cli.main(["pictures", str(path), "--save", str(tmp_path / "pictures")]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and all(len(line) < LONGEST for line in told), told
    folder = tmp_path / "extracts"
    folder.mkdir()
    (folder / extracts.EXTRACTS.replace("*", "x")).write_text(text)
    refused(lambda: extracts.recorded(folder), "extracts")


def test_progress_that_no_program_writes(tmp_path):
    (tmp_path / "progress.json").write_text(DEEP)
    with pytest.warns(UserWarning, match="progress starts anew"):
        assert Journal(tmp_path).lesson(3)["attempts"] == 0
    assert len(list(tmp_path.glob("progress-broken-*"))) == 1


def test_a_figure_that_no_program_writes():
    from flashcore_numba.course.figures import Figure

    with pytest.raises(ArgumentError):
        Figure.from_dict(json.loads('{"title": 1, "frames": [[]], "telling": 0}'))

import numpy as np
import pytest

from flashcore_numba.checks.forward import FORWARD
from flashcore_numba.core import workload
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import Features
from flashcore_numba.core.shapes import PLAN_SHAPES, Shape, parse, parse_any
from flashcore_numba.core.workload import Workload, options


@pytest.mark.parametrize(
    "text, shape",
    [
        ("1x8x512x64", Shape(1, 8, 512, 64)),
        ("1x32/8x4096x192/128", Shape(1, 32, 4096, 192, kv_heads=8, value_dim=128)),
        ("16x32x128-8192x64", Shape(16, 32, 8192, 64, shortest=128)),
        ("2x4/4x9x64/64", Shape(2, 4, 9, 64)),
    ],
)
def test_a_shape_is_read_as_it_is_written(text, shape):
    assert parse_any(text) == shape
    assert parse_any(str(shape)) == shape


def test_other_commands_take_plain_shapes_only():
    for name in PLAN_SHAPES:
        assert parse(name) == parse_any(name)
    for text in ("1x4/2x9x64", "1x4x3-9x64", "1x4x9x64/32"):
        assert not parse_any(text).plain
        with pytest.raises(ArgumentError, match="accepted are BxHxSxD, for example 1x8x512x64, and small"):
            parse(text)


@pytest.mark.parametrize("seed", range(30))
def test_lengths_are_within_their_bounds_and_could_be_equal(seed, rng):
    low, high, count = (int(n) for n in (rng.integers(1, 50), rng.integers(50, 90), rng.integers(1, 20)))
    given = Workload(Shape(count, 4, high, 64, kv_heads=2, shortest=low), causal=True, softcap=3.0)
    ragged, equal = given.drawn_with(seed)
    assert len(ragged.lengths) == count and low <= min(ragged.lengths) <= max(ragged.lengths) <= high
    assert sum(ragged.lengths) == count * equal.shape.seq
    assert (equal.causal, equal.softcap, equal.shape.kv_heads, equal.lengths) == (True, 3.0, 2, ())
    assert given.drawn_with(seed) == [ragged, equal], "they follow from the seed"
    assert not equal.plain, "no table takes it for a shape of its own"
    q, k, _ = ragged.arrays.inputs(rng)
    assert q.shape == (1, 4, sum(ragged.lengths), 64) and k.shape[1] == 2
    assert np.diff(ragged.features(rng).cu_seqlens_k).tolist() == list(ragged.lengths)


def test_lengths_differ_between_seeds():
    given = Workload(Shape(16, 1, 8192, 64, shortest=128))
    assert len({given.drawn_with(seed)[0].lengths for seed in range(20)}) == 20


def test_a_batch_that_is_not_ragged_is_measured_as_it_is():
    given = Workload(Shape(2, 1, 9, 64), drawn=("sinks",))
    assert given.drawn_with(1) == [given]


@pytest.mark.parametrize(
    "text",
    [
        "none",
        "window=1023,0",
        "window=-1,5",
        "softcap=50",
        "softcap=0.5 sinks",
        "sinks alibi_slopes seqused_k",
        "head_norm gate",
        "window=9,0 gate",
    ],
)
def test_features_are_told_as_they_are_given(text, rng):
    given = Workload(Shape(2, 3, 9, 64), **options(text))
    assert workload.label(workload.fields(given.features(rng))) == text.replace("none", "")
    assert given.plain == (text == "none")


def test_the_order_of_words_does_not_matter():
    assert options("sinks softcap=2 alibi_slopes") == options("alibi_slopes sinks softcap=2")


def test_tokens_and_pages_are_told_as_they_are_given(rng):
    given = Workload(Shape(2, 3, 9, 64), tokens=4, page=workload.CONTIGUOUS, softcap=2.0)
    assert given.chosen == {"tokens": 4, "page": workload.CONTIGUOUS} and not given.plain
    told = workload.fields(given.features(rng), given.chosen)
    assert told == {"tokens": 4, "page": "contiguous", "softcap": 2.0}
    assert workload.label(told) == "tokens=4 page=contiguous softcap=2"
    assert Workload(Shape(2, 3, 9, 64), page=16).plain
    assert not Workload(Shape(2, 3, 9, 64), tokens=1).plain  # of the forward pass, one row is not as ever
    ragged = Workload(Shape(2, 3, 9, 64, shortest=3), tokens=4)
    assert [each.tokens for each in ragged.drawn_with(1)] == [4, 4]
    assert (workload.tokens("8"), workload.page("64"), workload.page("contiguous")) == (8, 64, 0)


def test_a_cache_and_its_bits_are_told_where_they_are_not_as_ever(rng):
    usual = Workload(Shape(2, 3, 9, 64), cache=workload.cache("own"), batch_invariant=None)
    assert usual.plain and workload.batch_invariant("no") is None
    given = Workload(Shape(2, 3, 9, 64), cache=workload.cache("e4m3"), batch_invariant=True)
    assert given.chosen == {"cache": "e4m3", "batch_invariant": True} and not given.plain
    told = workload.fields(given.features(rng), {"tokens": None, "page": 16} | given.chosen)
    assert workload.label(told) == "page=16 cache=e4m3 batch_invariant"
    assert workload.batch_invariant("yes") is True


@pytest.mark.parametrize(
    "read, words", [(workload.cache, "own, .* e4m3"), (workload.batch_invariant, "yes and no")]
)
def test_other_words_of_a_cache_are_refused(read, words):
    for text in ("", "e5m2", "True", "no "):
        with pytest.raises(ArgumentError, match=f"accepted are {words}"):
            read(text)


@pytest.mark.parametrize("read", [workload.tokens, workload.page])
@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "all", "1000000", " 3"])
def test_other_numbers_are_refused(read, text):
    with pytest.raises(ArgumentError, match=f"{read.__name__} .* to 999999"):
        read(text)


@pytest.mark.parametrize(
    "text",
    ["sink", "window", "window=3", "window=3,-2", "softcap=-1", "softcap=0", "softcap=nan", "none sinks"],
)
def test_other_words_are_refused(text):
    with pytest.raises(ArgumentError, match="accepted are none, or window=LEFT,RIGHT"):
        options(text)


def test_the_forward_pass_takes_fewer_rows_than_keys(rng):
    """A chunk of a prompt beside the keys before it, or the rows of a picture beside a text's."""
    x = FORWARD.draw(Shape(2, 4, 50, 64, kv_heads=2), True, rng, tokens=7)
    assert (x.q.shape, x.k.shape, x.v.shape) == ((2, 4, 7, 64), (2, 2, 50, 64), (2, 2, 50, 64))
    assert x.causal and x.q.std() > 0.5
    bounds = np.array([0, 3, 50], np.int32)
    ragged = Features(cu_seqlens_q=bounds, cu_seqlens_k=bounds)
    with pytest.raises(ArgumentError, match="tokens=7: the sequences of a ragged batch have as many rows"):
        FORWARD.draw(Shape(1, 4, 50, 64), True, rng, features=ragged, tokens=7)

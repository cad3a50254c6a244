"""The package for the `kernels` loader, and the functions of flash-attn in it."""

import importlib.util
import json
import sys

import numpy as np
import pytest
import torch
from transformers.integrations import hub_kernels

from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.integrations import hub
from integrations.broken import broken, must_notice
from integrations.test_huggingface import close, log_probabilities, models, padding, tokens

REPOSITORY = "flashcore/attention"


def loaded(folder):
    """The module of a kernel repository, found and imported as `kernels` 0.16.0 does."""
    (variant,) = (folder / "build").iterdir()
    framework, backend = variant.name.split("-")
    assert (framework, backend) == ("torch", "universal")
    metadata = json.loads((variant / "metadata.json").read_text())
    assert metadata["python-depends"] == [] and metadata["backend"]["type"] == "cuda"
    spec = importlib.util.spec_from_file_location(metadata["id"], variant / "__init__.py")
    sys.modules[metadata["id"]] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def offered(tmp_path, monkeypatch):
    """The repository under its name: by `kernels`, or by what it would do where it is not installed."""
    folder = hub.write_hub_package(tmp_path / "repository")
    monkeypatch.setenv("LOCAL_KERNELS", f"{REPOSITORY}={folder}")
    if importlib.util.find_spec("kernels") is None:
        monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
        monkeypatch.setattr(hub_kernels, "get_kernel", lambda name, **_: {REPOSITORY: loaded(folder)}[name])
    return REPOSITORY


@pytest.mark.long
@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
def test_transformers_loads_the_package(rng, offered, kind, side):
    half, exact = models(kind)
    ids = tokens(rng, 3, 12)
    mask = None if side is None else padding(side, *ids.shape)
    inputs = {"input_ids": ids, "attention_mask": mask}
    expected = log_probabilities(exact, mask, **inputs)
    half.set_attn_implementation("eager")
    eager = log_probabilities(half, mask, **inputs)
    half.set_attn_implementation(offered)
    assert half.config._attn_implementation == offered
    close(expected, eager, log_probabilities(half, mask, **inputs))


def test_a_package_is_written_again(tmp_path):
    for _ in range(2):
        assert loaded(hub.write_hub_package(tmp_path)).flash_attn_func is hub.flash_attn_func


def check_functions(adapter, rng) -> None:
    """Both functions against float64, with everything on."""
    b, s, h, h_kv, d = 2, 9, 4, 2, 32
    q, k, v = (torch.from_numpy(rng.standard_normal((b, s, heads, d))).half() for heads in (h, h_kv, h_kv))
    sinks = torch.from_numpy(rng.standard_normal(h)).float()
    slopes = torch.from_numpy(rng.random(h)).float()
    options = {"softmax_scale": 0.3, "causal": True, "window_size": (3, 3), "softcap": 1.5, "s_aux": sinks}
    options["alibi_slopes"] = slopes
    out, lse, none = adapter.flash_attn_func(q, k, v, **options, return_attn_probs=True)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double().repeat_interleave(h // h_kv, 2))
    scores = 1.5 * torch.tanh(0.3 * scores / 1.5)
    distance = torch.arange(s)[:, None] - torch.arange(s)
    scores = scores - slopes.double()[:, None, None] * distance.abs()
    scores = scores.masked_fill((distance < 0) | (distance > 3), -torch.inf)
    joined = torch.cat([scores, sinks.double()[:, None, None].expand(b, h, s, 1)], -1)
    expected = torch.einsum(
        "bhqk,bkhd->bqhd", joined.softmax(-1)[..., :-1], v.double().repeat_interleave(h // h_kv, 2)
    )
    np.testing.assert_allclose(out.double(), expected, atol=2e-3)
    np.testing.assert_allclose(lse.double(), joined.logsumexp(-1), atol=2e-3)
    assert none is None
    bounds = torch.tensor([0, s, 2 * s], dtype=torch.int32)
    packed = adapter.flash_attn_varlen_func(
        *(x.flatten(0, 1) for x in (q, k, v)), bounds, bounds, s, s, **options
    )
    np.testing.assert_allclose(packed.double(), expected.flatten(0, 1), atol=2e-3)


@pytest.mark.long
def test_the_functions_of_flash_attn(rng):
    check_functions(hub, rng)


@pytest.mark.long
@pytest.mark.parametrize("name", ["scale", "causal", "window", "softcap", "sinks", "alibi_slopes"])
def test_an_option_forgotten_is_noticed(rng, name):
    without = {"causal": "False", "window": "(-1, -1)", "softcap": "0.0"}.get(name, "None")
    adapter = broken(hub, (f'"{name}": {name},', f'"{name}": {without},'))
    must_notice(lambda module: check_functions(module, rng), adapter)


def test_what_the_functions_refuse():
    q = torch.zeros(1, 4, 2, 32, dtype=torch.float16)
    bounds = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(UnsupportedError, match=r"dropout_p is 0\.1"):
        hub.flash_attn_func(q, q, q, 0.1)
    with pytest.raises(UnsupportedError, match="block_table"):
        hub.flash_attn_varlen_func(q[0], q[0], q[0], bounds, bounds, 4, 4, block_table=bounds[None])
    for shape in ((4, 32), (4, 2, 32)):
        with pytest.raises(ArgumentError, match=r"^k has shape \(4, .*: .* \[batch, rows, heads, D\]"):
            hub.flash_attn_func(q, q.new_zeros(shape), q)
    for wrong in (None, q.numpy()):
        with pytest.raises(ArgumentError, match=f"^v is of type {type(wrong).__name__}: a torch.Tensor is"):
            hub.flash_attn_func(q, q, wrong)

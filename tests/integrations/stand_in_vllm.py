"""The classes of vLLM 0.32 that the adapter derives from and reads, for where vLLM is not installed.

test_vllm_engine.py runs the real ones, in processes of their own.
"""

import enum
import importlib
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar

import torch

M = TypeVar("M")


class AttentionBackend:
    @classmethod
    def supports_attn_type(cls, attn_type):
        return attn_type == "decoder"

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype):
        return kv_cache_dtype in cls.supported_kv_cache_dtypes


class AttentionCGSupport(enum.Enum):
    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


class AttentionImpl(Generic[M]):
    pass


class AttentionMetadata:
    pass


class AttentionMetadataBuilder(Generic[M]):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.kv_cache_spec = kv_cache_spec
        self.layer_names = layer_names
        self.vllm_config = vllm_config
        self.device = device


@dataclass
class SlidingWindowSpec:
    block_size: int
    sliding_window: int


@dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: Any = True
    seq_lens_cpu_upper_bound: torch.Tensor | None = None


MODULES = {
    "vllm": (),
    "vllm.v1": (),
    "vllm.v1.attention": (),
    "vllm.v1.attention.backend": (
        AttentionBackend,
        AttentionCGSupport,
        AttentionImpl,
        AttentionMetadata,
        AttentionMetadataBuilder,
        CommonAttentionMetadata,
    ),
    "vllm.v1.kv_cache_interface": (SlidingWindowSpec,),
}


@contextmanager
def installed():
    """The stand-ins in the place of vLLM, for as long as something imports the adapter."""
    modules = {name: ModuleType(name) for name in MODULES}
    for name, members in MODULES.items():
        for each in members:
            setattr(modules[name], each.__name__, each)
    former = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in former.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def adapter():
    """`flashcore_numba.integrations.vllm_backend` with the stand-ins."""
    with installed():
        return importlib.import_module("flashcore_numba.integrations.vllm_backend")

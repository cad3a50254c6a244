"""Stand-ins for PyTorch and the libraries of peers that compute on the host.

Each has the signature of the real function and reads its arguments as its documentation does, so a peer whose
output is right here was asked for the right thing.
"""

import sys
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np

from flashcore_numba.branches.backward import oracle as gradients
from flashcore_numba.branches.backward.inputs import BackwardInputs
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core import oracle
from flashcore_numba.core.features import Features
from flashcore_numba.measure import peers


class Tensor(np.ndarray):
    """An array with the methods of a tensor; `bfloat16`: whether it was converted to that; `made`: what a
    compiled function computes it by, where autograd saw that.
    """

    bfloat16, made, device = False, None, "cuda"

    def detach(self):
        return self.view()

    def requires_grad_(self):
        self.leaf = True
        return self

    def fill_(self, value):
        self.fill(value)

    def transpose(self, one, other):
        return self.swapaxes(one, other)

    def flatten(self, first, last):
        return self.reshape(*self.shape[:first], -1, *self.shape[last + 1 :])

    def unflatten(self, at, sizes):
        return self.reshape(*self.shape[:at], *sizes, *self.shape[at + 1 :])

    def new_empty(self, shape):
        return tensor(np.full(shape, np.nan))

    def contiguous(self):
        return np.ascontiguousarray(self).view(Tensor)

    def to(self, kind):
        if kind == "bfloat16":
            found = self.copy()
            found.bfloat16 = True
            return found
        return self if isinstance(kind, str) else self.astype(kind)

    def float(self):
        return self.astype(np.float32)

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


def tensor(x):
    return np.asarray(x).view(Tensor)


def attend(q, k, v, scale, causal=False, **features):
    """Of NumPy arrays [B, H, S, D]."""
    return tensor(attend_lse(q, k, v, scale, causal, **features)[0])


def attend_lse(q, k, v, scale, causal, **features):
    q, k, v = map(np.asarray, (q, k, v))
    return tuple(map(tensor, oracle.attention(q, k, v, causal, scale, features=given(features))))


def given(features):
    found = Features(**{name: None if x is None else np.asarray(x) for name, x in features.items()})
    return Features(tuple(features["window"]), features["softcap"], **found.arrays)


def go_back(dout, q, k, v, out, lse, scale, causal, window=(-1, -1), softcap=0.0, **lengths):
    """dq, dk, dv of NumPy arrays [B, H, S, D], from the output and the LSE that were saved."""
    arrays = (np.asarray(x) for x in (q, k, v))
    x = Inputs(*arrays, causal, scale, given({"window": window, "softcap": softcap, **lengths}))
    found = gradients.gradients(BackwardInputs(x, np.asarray(out), np.asarray(lse), np.asarray(dout)))
    return tuple(map(tensor, found))


def heads_first(x, packed):
    return x.swapaxes(0, 1)[None] if packed else x.swapaxes(1, 2)


class Library:
    """What was called, and the stand-ins."""

    def __init__(self):
        self.calls, self.loaded, self.compiled = [], [], []
        self.grad_enabled = self.donated = True
        self.limits = {}
        self.seed, self.offset, self.graph = object(), object(), {}

    def scaled_dot_product_attention(
        self, q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
    ):
        assert enable_gqa == (q.shape[1] != k.shape[1])
        if attn_mask is not None:
            assert not is_causal and attn_mask.dtype == q.dtype
            added = np.asarray(attn_mask, np.float64)
            options = {"score_mod": lambda scores, *_: scores + added, "scale": scale}
            return self.flex_attention(q, k, v, enable_gqa=enable_gqa, **options)
        return attend(q, k, v, scale, is_causal, window=(-1, -1), softcap=0.0)

    def create_block_mask(self, mask_mod, B, H, Q_LEN, KV_LEN, device="cuda"):
        batch, row, key = np.ogrid[: B or 1, :Q_LEN, :KV_LEN]
        return np.broadcast_to(mask_mod(batch, None, row, key), (B or 1, Q_LEN, KV_LEN))

    def flex_attention(
        self, q, k, v, score_mod=None, block_mask=None, scale=None, enable_gqa=False, *, return_aux=None
    ):
        group = q.shape[1] // k.shape[1]
        assert enable_gqa == (group > 1)
        q, k, v = (np.asarray(x, np.float64) for x in (q, k.repeat(group, 1), v.repeat(group, 1)))
        scores = scale * q @ k.swapaxes(2, 3)
        if score_mod:
            scores = score_mod(scores, *np.ogrid[tuple(slice(n) for n in scores.shape)])
        if block_mask is not None:
            scores = np.where(block_mask[:, None], scores, -np.inf)
        with np.errstate(divide="ignore"):
            lse = np.log(np.exp(scores).sum(3))
        weights = np.exp(scores - np.where(np.isfinite(lse), lse, 0)[..., None])
        out = tensor(weights @ v)
        return (out, SimpleNamespace(lse=tensor(lse))) if return_aux == {"lse": True} else out

    def flash_attn_func(
        self,
        q,
        k,
        v,
        qv=None,
        gather_kv_indices=None,
        softmax_scale=None,
        causal=False,
        window_size=(None, None),
        learnable_sink=None,
        softcap=0.0,
        *,
        return_lse=False,
    ):
        self.calls.append("flash_attn_func")
        found = self._fa4(q, k, v, softmax_scale, causal, window_size, learnable_sink, softcap)
        return found[0], found[1] if return_lse else None

    def flash_attn_varlen_func(
        self,
        q,
        k,
        v,
        qv=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        max_seqlen_q=None,
        max_seqlen_k=None,
        min_seqlen_k=None,
        seqused_q=None,
        seqused_k=None,
        gather_kv_indices=None,
        page_table=None,
        softmax_scale=None,
        causal=False,
        window_size=(None, None),
        learnable_sink=None,
        softcap=0.0,
        *,
        return_lse=False,
    ):
        self.calls.append("flash_attn_varlen_func")
        lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_k": seqused_k}
        if cu_seqlens_q is not None:
            assert (max_seqlen_q, max_seqlen_k) == (max(np.diff(cu_seqlens_q)), max(np.diff(cu_seqlens_k)))
            assert q.flags.c_contiguous, "packed sequences lie token by token"
        found = self._fa4(q, k, v, softmax_scale, causal, window_size, learnable_sink, softcap, **lengths)
        return found[0], found[1] if return_lse else None

    def _fa4(self, q, k, v, scale, causal, window_size, sink, softcap, **lengths):
        assert sink is None or sink.bfloat16
        packed = lengths.get("cu_seqlens_q") is not None
        window = [-1 if side is None else side for side in window_size]
        arrays = [heads_first(x, packed) for x in (q, k, v)]
        out, lse = attend_lse(*arrays, scale, causal, window=window, softcap=softcap, sinks=sink, **lengths)
        return (out[0].swapaxes(0, 1), lse[0]) if packed else (out.swapaxes(1, 2), lse)

    def _flash_attn_bwd(
        self,
        q,
        k,
        v,
        out,
        dout,
        lse,
        softmax_scale=None,
        causal=False,
        softcap=0.0,
        window_size_left=None,
        window_size_right=None,
        *,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        seqused_q=None,
        seqused_k=None,
        max_seqlen_q=None,
        max_seqlen_k=None,
        deterministic=False,
        dlse=None,
    ):
        self.calls.append("_flash_attn_bwd")
        lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_k": seqused_k}
        packed = cu_seqlens_q is not None
        if packed:
            assert (max_seqlen_q, max_seqlen_k) == (max(np.diff(cu_seqlens_q)), max(np.diff(cu_seqlens_k)))
            assert lse.shape == (q.shape[1], q.shape[0])
            lse = lse[None]
        window = [-1 if side is None else side for side in (window_size_left, window_size_right)]
        dout, q, k, v, out = (heads_first(x, packed) for x in (dout, q, k, v, out))
        options = {"window": window, "softcap": softcap, **lengths}
        found = go_back(dout, q, k, v, out, lse, softmax_scale, causal, **options)
        return tuple(x[0].swapaxes(0, 1) if packed else x.swapaxes(1, 2) for x in found)

    def _scaled_dot_product_cudnn_attention(
        self,
        query,
        key,
        value,
        attn_bias,
        compute_log_sumexp,
        dropout_p=0.0,
        is_causal=False,
        return_debug_mask=False,
        *,
        scale=None,
    ):
        assert attn_bias is None and compute_log_sumexp and dropout_p == 0 and not return_debug_mask
        self.calls.append("cudnn")
        out, lse = self._top_left(query, key, value, scale, is_causal)
        most = query.shape[2], key.shape[2]
        return out, lse[..., None], None, None, *most, self.seed, self.offset, None

    def _scaled_dot_product_cudnn_attention_backward(
        self,
        grad_out,
        query,
        key,
        value,
        out,
        logsumexp,
        philox_seed,
        philox_offset,
        attn_bias,
        cum_seq_q,
        cum_seq_k,
        max_q,
        max_k,
        dropout_p,
        is_causal,
        *,
        scale=None,
    ):
        assert attn_bias is cum_seq_q is cum_seq_k is None and dropout_p == 0
        assert (philox_seed, philox_offset) == (self.seed, self.offset)
        assert (max_q, max_k) == (query.shape[2], key.shape[2])
        self.calls.append("cudnn backward")
        return go_back(grad_out, query, key, value, out, logsumexp[..., 0], scale, is_causal)

    def _scaled_dot_product_flash_attention(
        self, query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None
    ):
        assert dropout_p == 0 and not return_debug_mask
        self.calls.append("flash")  # its mask is aligned bottom-right
        out, lse = attend_lse(query, key, value, scale, is_causal, window=(-1, -1), softcap=0.0)
        most = query.shape[2], key.shape[2]
        return out, lse, None, None, *most, self.seed, self.offset, None

    def _scaled_dot_product_flash_attention_backward(
        self,
        grad_out,
        query,
        key,
        value,
        out,
        logsumexp,
        cum_seq_q,
        cum_seq_k,
        max_q,
        max_k,
        dropout_p,
        is_causal,
        philox_seed,
        philox_offset,
        *,
        scale=None,
    ):
        assert cum_seq_q is cum_seq_k is None and dropout_p == 0
        assert (philox_seed, philox_offset) == (self.seed, self.offset)
        assert (max_q, max_k) == (query.shape[2], key.shape[2])
        self.calls.append("flash backward")
        return go_back(grad_out, query, key, value, out, logsumexp, scale, is_causal)

    def _top_left(self, q, k, v, scale, causal):
        assert not causal or q.shape[2] == k.shape[2]
        return attend_lse(q, k, v, scale, causal, window=(-1, -1), softcap=0.0)

    def compile(self, function, **how):
        """The function, whose output autograd can go back from; `compiled` has what was asked for."""
        self.compiled.append(function)

        def compiled(*args, **options):
            assert self.limits == {"recompile_limit": 256, "fail_on_recompile_limit_hit": True}
            found = function(*args, **options)
            leaves = [x for x in args[:3] if getattr(x, "leaf", False)]
            if self.grad_enabled and leaves:
                assert not self.donated, "what is saved would serve one backward pass alone"
                found.made = lambda *tensors: function(*tensors, *args[3:], **options)
            return found

        return compiled

    @contextmanager
    def limited(self, **limits):
        former, self.limits = self.limits, limits
        yield
        self.limits = former

    @contextmanager
    def patch(self, donated_buffer):
        former, self.donated = self.donated, donated_buffer
        yield
        self.donated = former

    @contextmanager
    def with_grad(self, enabled):
        former, self.grad_enabled = self.grad_enabled, enabled
        yield
        self.grad_enabled = former

    def grad(self, outputs, inputs, grad_outputs, retain_graph=None):
        """By central differences of the function in float64."""
        assert retain_graph, "the next call goes back from the same"
        self.calls.append("autograd")
        if id(outputs) in self.graph:
            return self.graph[id(outputs)][1]
        leaves = [tensor(np.asarray(x, np.float64)) for x in inputs]
        dout, step = np.asarray(grad_outputs, np.float64), 1e-5
        found = [np.zeros(x.shape) for x in leaves]
        for x, slot in zip(leaves, found, strict=True):
            for at in np.ndindex(x.shape):
                ends = []
                for sign in (1, -1):
                    x[at] += sign * step
                    ends.append((dout * np.asarray(outputs.made(*leaves), np.float64)).sum())
                    x[at] -= sign * step
                slot[at] = (ends[0] - ends[1]) / (2 * step)
        self.graph[id(outputs)] = outputs, tuple(map(tensor, found))
        return self.graph[id(outputs)][1]

    def fwd(
        self, q, k, v, k_new, v_new, q_v, out, cu_q, cu_k, cu_k_new, seqused_q, seqused_k, max_q, max_k,
        page_table, kv_batch_idx, leftpad_k, cos, sin, seqlens_rotary, q_descale, k_descale, v_descale, scale,
        causal, window_left, window_right, softcap, interleaved, metadata, num_splits, pack_gqa, sm_margin,
        s_aux, cp_world_size, cp_rank, cp_tot_seqused_k,
    ):  # fmt: skip
        unused = (k_new, v_new, q_v, out, cu_k_new, seqused_q, kv_batch_idx, leftpad_k, cos, sin)
        unused += (seqlens_rotary, q_descale, k_descale, v_descale, metadata, pack_gqa, cp_tot_seqused_k)
        assert not any(x is not None for x in unused)
        assert (interleaved, sm_margin, cp_world_size, cp_rank) == (True, 0, 1, 0)
        assert s_aux is None or s_aux.bfloat16
        if cu_q is None:
            assert cu_k is None and num_splits == 0 and q.flags.c_contiguous and q.ndim == 4
            assert (max_q, max_k) == (q.shape[1], max(seqused_k))
            self.calls.append("FA3" if page_table is None else "FA3 paged")
            if page_table is not None:
                k, v = (x[np.asarray(page_table)].flatten(1, 2) for x in (k, v))
            band = {"window": (window_left, window_right), "softcap": softcap}
            each = (heads_first(x, False) for x in (q, k, v))
            found = attend(*each, scale, causal, **band, sinks=s_aux, seqused_k=seqused_k)
            return found.swapaxes(1, 2), None, None, None
        assert page_table is None and num_splits == 1
        assert (max_q, max_k) == (max(np.diff(cu_q)), max(np.diff(cu_k)))
        assert q.ndim == k.ndim == v.ndim == 3 and cu_q.dtype == cu_k.dtype == np.int32
        found = attend(
            *(heads_first(x, True) for x in (q, k, v)),
            scale,
            causal,
            window=(window_left, window_right),
            softcap=softcap,
            sinks=s_aux,
            seqused_k=seqused_k,
            cu_seqlens_q=cu_q,
            cu_seqlens_k=cu_k,
        )
        return found[0].swapaxes(0, 1), None, None, None


class PagedWrapper:
    """What both of FlashInfer's wrappers do with `planned`, by the names of its documentation."""

    def run(self, q, paged_kv_cache, *, out=None):
        p, pools = self.planned, paged_kv_cache
        assert q.shape == out.shape == (p.rows[-1], p.heads, p.columns) and q.flags.c_contiguous
        assert {pool.shape[1:] for pool in pools} == {(p.page, p.kv_heads, p.columns)}
        assert p.bounds[0] == 0 and p.bounds[-1] == len(p.pages)
        assert {x.dtype for x in (p.rows, p.bounds, p.pages, p.last)} == {np.dtype(np.int32)}
        band = {"window": (p.window_left, 0 if p.causal else -1), "softcap": p.logits_soft_cap or 0.0}
        for at, rows, last in zip(range(len(p.last)), np.diff(p.rows), p.last, strict=True):
            pages = p.pages[p.bounds[at] : p.bounds[at + 1]]
            assert 1 <= last <= p.page, "of the last page of a request"
            keys = (len(pages) - 1) * p.page + last
            each = [pool[pages].flatten(0, 1)[None, :keys].swapaxes(1, 2) for pool in pools]
            tokens = slice(p.rows[at], p.rows[at] + rows)
            found = attend(q[None, tokens].swapaxes(1, 2), *each, p.sm_scale, p.causal, **band)
            out[tokens] = found[0].swapaxes(0, 1)
        return out


class BatchDecodeWithPagedKVCacheWrapper(PagedWrapper):
    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, use_tensor_cores=False):
        assert kv_layout == "NHD" and float_workspace_buffer.dtype == np.uint8 and not use_cuda_graph
        self.library.calls.append("FlashInfer, tensor cores" if use_tensor_cores else "FlashInfer")

    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
        pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None, q_data_type="float16",
        kv_data_type=None, o_data_type=None, data_type=None, sm_scale=None,
    ):  # fmt: skip
        self.library.planned = self.planned = SimpleNamespace(
            rows=np.arange(len(last_page_len) + 1, dtype=np.int32), bounds=indptr, pages=indices,
            last=last_page_len, heads=num_qo_heads, kv_heads=num_kv_heads, columns=head_dim, page=page_size,
            causal=False, window_left=window_left, logits_soft_cap=logits_soft_cap, sm_scale=sm_scale,
        )  # fmt: skip


class BatchPrefillWithPagedKVCacheWrapper(PagedWrapper):
    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, *, backend="auto"):
        assert kv_layout == "NHD" and float_workspace_buffer.dtype == np.uint8 and not use_cuda_graph
        self.library.calls.append(f"FlashInfer {backend}")

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
        num_kv_heads, head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None,
        causal=False, pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1,
        logits_soft_cap=None, rope_scale=None, rope_theta=None, q_data_type="float16", kv_data_type=None,
    ):  # fmt: skip
        self.library.planned = self.planned = SimpleNamespace(
            rows=qo_indptr, bounds=paged_kv_indptr, pages=paged_kv_indices, last=paged_kv_last_page_len,
            heads=num_qo_heads, kv_heads=num_kv_heads, columns=head_dim_qk, page=page_size, causal=causal,
            window_left=window_left, logits_soft_cap=logits_soft_cap, sm_scale=sm_scale,
        )  # fmt: skip


def installed(monkeypatch):
    """The stand-ins, in the place of the real modules for a test."""
    found = Library()
    torch = ModuleType("torch")
    torch.float16, torch.bfloat16, torch.int32 = np.float16, "bfloat16", np.int32
    torch.int64, torch.uint8 = np.int64, np.uint8
    torch.zeros = lambda count, dtype, device: tensor(np.zeros(count, dtype))
    torch.from_dlpack = torch.from_numpy = tensor
    torch.compile = found.compile
    torch.no_grad, torch.enable_grad = (lambda: found.with_grad(False)), (lambda: found.with_grad(True))
    torch.autograd = SimpleNamespace(grad=found.grad)
    torch.tanh, torch.abs = np.tanh, np.abs
    torch.sigmoid = lambda x: 1 / (1 + np.exp(-x))
    torch.arange = lambda first, end, step, dtype, device: tensor(np.arange(first, end, step, dtype))
    torch.cuda = SimpleNamespace(
        is_available=lambda: True,
        ExternalStream=lambda ptr: SimpleNamespace(synchronize=lambda: None),
        synchronize=lambda: None,
        stream=nullcontext,
        get_device_properties=lambda device: SimpleNamespace(total_memory=1e12),
    )
    fa3 = SimpleNamespace(fwd=found.fwd)
    torch.ops = SimpleNamespace(load_library=found.loaded.append, _vllm_fa3_C=fa3, aten=found)
    functorch = ModuleType("torch._functorch")
    functorch.config = found
    dynamo = ModuleType("torch._dynamo")
    dynamo.config = SimpleNamespace(patch=found.limited)
    sdpa = SimpleNamespace(scaled_dot_product_attention=found.scaled_dot_product_attention)
    attention, flex, fa4 = map(ModuleType, ("torch.nn.attention", "flex", "flash_attn.cute.interface"))
    attention.SDPBackend = SimpleNamespace(**{name: name for name in peers.SDPA.values()})
    attention.sdpa_kernel = lambda backend: nullcontext()
    flex.create_block_mask, flex.flex_attention = found.create_block_mask, found.flex_attention
    flex.AuxRequest = dict
    fa4.flash_attn_func, fa4.flash_attn_varlen_func = found.flash_attn_func, found.flash_attn_varlen_func
    fa4._flash_attn_bwd = found._flash_attn_bwd
    flashinfer = ModuleType("flashinfer")
    for wrapper in (BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper):
        setattr(flashinfer, wrapper.__name__, type(wrapper.__name__, (wrapper,), {"library": found}))
    torch.nn = SimpleNamespace(functional=sdpa, attention=attention)
    modules = {
        "torch": torch,
        "torch._dynamo": dynamo,
        "torch._functorch": functorch,
        "torch.nn": torch.nn,
        "torch.nn.attention": attention,
        "torch.nn.attention.flex_attention": flex,
        "flash_attn": ModuleType("flash_attn"),
        "flash_attn.cute": ModuleType("flash_attn.cute"),
        "flash_attn.cute.interface": fa4,
        "flashinfer": flashinfer,
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("FLASHCORE_FA3", "/lib/fa3.so")
    return found


class Stream:
    ptr = 1

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None

"""FlashCore as an attention implementation of Hugging Face transformers: `register()`, then
`attn_implementation="fcore"`.

transformers calls two functions. `make_mask` is called once per forward pass and says which keys are hidden;
`attend` is called by every layer and gets what `make_mask` returned. What no kernel can hide is refused, and
what transformers hides is never shown. Tested with transformers 5.17.0.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from transformers.utils.import_utils import is_tracing

from cuda_reference.shown import shown
from flashcore_numba.branches.decode.problem import PAGES_LIMIT
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.integrations.pytorch import TYPES, attention, attention_paged, attention_varlen

NAME = "fcore"
UNBOUNDED = -1
SERVED_BY = 'load the model with attn_implementation="sdpa" or "eager"'


class Pattern(NamedTuple):
    """Which keys a row sees by their positions: from d - left to d + right, where d is its own.

    causal: right is 0. sequences: int [B, S_q], the same number for the tokens of one packed sequence.
    """

    causal: bool
    left: int = UNBOUNDED
    right: int = UNBOUNDED
    sequences: Tensor | None = None

    def hides(self, keys: int) -> bool:
        """Whether the window hides any of so many keys, beside those that the causal mask hides."""
        sides = self.window[:1] if self.causal else self.window
        return any(UNBOUNDED < side < keys - 1 for side in sides)

    @property
    def window(self) -> tuple[int, int]:
        return self.left, self.right


class _NotATensor(UnsupportedError, AttributeError):
    """A model wants of a `Mask` what a tensor has. AttributeError, so that `hasattr` is False."""

    def __init__(self, wanted: str) -> None:
        super().__init__(
            f"the model {wanted} its attention mask, which for these kernels is no tensor: only models that "
            f"hand it on to the attention function are served; {SERVED_BY}"
        )


class Mask(NamedTuple):
    """What `make_mask` found, ready for the kernels: the same for all layers of a kind.

    rows, keys: S_q and S_k that it is for. used: int32 [B], how many keys count, of those in `order`.
    order: int64 [B, S_k], the keys that count first; None where they are first already. places: int64
    [B, S_q], query rows with those of padding first; back: the inverse of it. Both are None where rows need
    not move. bounds: int32 [N + 1], where packed sequences begin in all B * S_q rows, and the last one's end.
    """

    pattern: Pattern
    rows: int
    keys: int
    used: Tensor | None = None
    order: Tensor | None = None
    places: Tensor | None = None
    back: Tensor | None = None
    bounds: Tensor | None = None

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        raise _NotATensor("calls a function of PyTorch with")

    def __getattr__(self, name: str) -> Any:
        raise _NotATensor(f"asks for {name} of")

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, int):
            raise _NotATensor("takes a part of")
        return tuple.__getitem__(self, place)

    def __truediv__(self, other: Any) -> Any:
        raise _NotATensor("divides")

    def __rsub__(self, other: Any) -> Any:
        raise _NotATensor("subtracts")

    @property
    def ndim(self) -> int:
        """transformers passes on masks of 4 dimensions as they are, and builds new ones of those of 2."""
        return 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return 1, 1, self.rows, self.keys


def register(name: str = NAME) -> str:
    """Offer the kernels to transformers as `attn_implementation=name`, and return the name.

    May be called again. Raises ArgumentError for a name that transformers takes for something else.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ArgumentError(f'name is {shown(name)}: it must be a Python identifier, such as "{NAME}"')
    if "flash" in name:
        raise ArgumentError(
            f'name is {shown(name)}: transformers takes names with "flash" in them for kernels of its hub; '
            f'"{NAME}" is free'
        )
    functions = (AttentionInterface, attend), (AttentionMaskInterface, make_mask)
    for interface, function in functions:
        if interface._global_mapping.get(name, function) is not function or name == "eager":
            raise ArgumentError(f'name is {shown(name)}, which transformers has already; "{NAME}" is free')
    for interface, function in functions:
        interface.register(name, function)
    return name


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = masking_utils.causal_mask_function,
    attention_mask: Any = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool | None = None,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Mask:
    """What transformers' mask functions are for, with their arguments: which keys no row may see.

    attention_mask: bool [B, tokens so far], False for padding. Never returns None where transformers' own
    functions would: not every layer knows by itself whether it is causal. Looks at attention_mask once on
    the host, unless a graph is being traced or captured. Raises ArgumentError for another shape of it, and
    UnsupportedError for what the kernels cannot hide.
    """
    if isinstance(attention_mask, Mask):  # made already: `generate` makes masks ahead
        return attention_mask
    if attention_mask is not None and (attention_mask.ndim != 2 or attention_mask.shape[0] != batch_size):
        raise ArgumentError(
            f"attention_mask has shape {tuple(attention_mask.shape)}: [B, tokens] is needed, a row for each "
            f"of {batch_size} sequences, False or 0 for padding"
        )
    traced = is_tracing(attention_mask)
    square = isinstance(q_offset, int) and q_offset == kv_offset and q_length == kv_length
    if traced:
        unpadded = attention_mask is None and not allow_is_causal_skip and square
        bidirectional = allow_is_bidirectional_skip is not None
        pattern = _traced_pattern(
            mask_function, batch_size, q_length, unpadded, bidirectional, device, others
        )
    else:
        pattern = find_pattern(mask_function, kv_length + kv_offset)
    if pattern.right != 0 and pattern.hides(kv_length) and not square:
        raise UnsupportedError(
            f"a window on both sides of {q_length} query rows over {kv_length} keys: it is served where both "
            f"are the same tokens; {SERVED_BY}"
        )
    if pattern.sequences is not None:
        if not square or attention_mask is not None:
            raise UnsupportedError(f"packed sequences over a cache or with padding: {SERVED_BY}")
        return Mask(pattern, q_length, kv_length, bounds=_bounds(pattern.sequences, traced))
    causal = pattern.causal
    end = q_offset + q_length - kv_offset if causal else kv_length  # of the keys that have been written
    static = isinstance(end, Tensor) or end != kv_length or (causal and not allow_is_causal_skip)
    used = None
    if static:
        used = torch.zeros(batch_size, dtype=torch.int64, device=device) + end
        used = used.to(torch.int32)
    mask = Mask(pattern, q_length, kv_length, used)
    if attention_mask is not None:
        missing = kv_length + kv_offset - attention_mask.shape[-1]
        kept = pad(attention_mask, (0, max(0, missing)))[:, kv_offset : kv_offset + kv_length]
        mask = _padded(mask, kept, end, traced)
    return mask


def _padded(mask: Mask, kept: Tensor, end: int | Tensor, traced: bool) -> Mask:
    """The mask with keys of padding hidden. kept: bool [B, S_k]. end: how many keys have been written."""
    pattern, rows, keys = mask.pattern, mask.rows, mask.keys
    positions = torch.arange(keys, device=kept.device)
    written = positions < end
    kept = kept & written
    before, after = pad(kept, (1, -1)), pad(kept, (-1, 1))
    begins, ends = kept & ~before, kept & ~after
    whole = (begins.sum(1) <= 1).all()
    shifting = pattern.hides(keys)
    first = last = False  # whether all tokens are before or after all padding; a tracer cannot know
    if traced:
        if shifting:
            torch._assert_async(whole, BETWEEN)
    else:
        padding_first = (~ends | (positions == end - 1)).all() & whole
        tokens_first = (~begins | (positions == 0)).all() & whole
        full = (kept | ~written).all()
        full, first, last, whole = torch.stack([full, tokens_first, padding_first, whole]).tolist()
        if full:
            return mask
        if shifting and not whole:
            raise UnsupportedError(BETWEEN)
    if first and pattern.causal:
        return mask  # padding is after all tokens, where the causal mask hides it
    order = None if first else torch.argsort(~kept, dim=1, stable=True)
    mask = mask._replace(used=kept.sum(1).to(torch.int32), order=order)
    if last or rows == 1 or not (pattern.causal or shifting):
        return mask
    tokens = kept[:, keys - rows :] if isinstance(end, int) and end == keys else _rows_of(kept, end, rows)
    places = torch.argsort(tokens, dim=1, stable=True)
    return mask._replace(places=places, back=torch.argsort(places, dim=1))


def _rows_of(kept: Tensor, end: int | Tensor, rows: int) -> Tensor:
    """Bool [B, rows]: which of the last rows before `end` are tokens."""
    return kept.index_select(1, torch.arange(rows, device=kept.device) + (end - rows))


BETWEEN = (
    "attention_mask has padding between tokens, and a layer has a sliding window, which counts that padding: "
    f"pad on the left or on the right only, or {SERVED_BY}"
)


def _code(name: str, *arguments: Any) -> Any:
    """The code of every function that a factory of `masking_utils` makes."""
    factory = getattr(masking_utils, name, None)
    if factory is None:
        raise UnsupportedError(
            f"transformers {transformers.__version__} has no masking_utils.{name}: 5.17.0 is what this "
            "adapter is tested with"
        )
    return factory(*arguments).__code__


_JOINED = _code("and_masks", len)
_LEFT = _code("sliding_window_overlay", 1)
_BOTH = _code("sliding_window_bidirectional_overlay", 1)
_CHUNKED = _code("chunked_overlay", 1, torch.zeros(1))
_SEQUENCES = _code("packed_sequence_mask_function", torch.zeros(1))


def find_pattern(function: Callable, keys: int) -> Pattern:
    """What a mask function of transformers hides of so many keys. Raises UnsupportedError for another one."""
    if function is masking_utils.bidirectional_mask_function:
        return Pattern(False)
    if function is masking_utils.causal_mask_function:
        return Pattern(True, UNBOUNDED, 0)
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    held = {
        name: cell.cell_contents for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=True)
    }
    if code is _JOINED:
        found = Pattern(False)
        for each in held["mask_functions"]:
            found = _both(found, find_pattern(each, keys))
        return found
    if code is _LEFT:
        return Pattern(False, held["sliding_window"] - 1)
    if code is _BOTH:
        return Pattern(False, held["sliding_window"], held["sliding_window"])
    if code is _SEQUENCES:
        return Pattern(False, sequences=held["packed_sequence_mask"])
    if code is _CHUNKED and keys <= held["chunk_size"]:
        return Pattern(False)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    raise UnsupportedError(f"the mask function {name.split('.<locals>')[0]} is not served: {SERVED_BY}")


def _both(one: Pattern, other: Pattern) -> Pattern:
    """What neither hides."""
    if one.sequences is not None and other.sequences is not None:
        raise UnsupportedError(f"sequences packed in two ways are not served: {SERVED_BY}")
    left, right = (
        max(sides) if UNBOUNDED in sides else min(sides)
        for sides in zip(one.window, other.window, strict=True)
    )
    sequences = other.sequences if one.sequences is None else one.sequences
    return Pattern(one.causal or other.causal, left, right, sequences)


def _traced_pattern(
    function: Callable,
    batch: int,
    rows: int,
    unpadded: bool,
    bidirectional: bool,
    device: torch.device | str,
    others: dict[str, Any],
) -> Pattern:
    """`find_pattern` for a compiler, which cannot look into closures: from what comes with the function.

    unpadded: without a cache or padding. transformers then joins the mask of packed sequences whether or not
    there are any; they begin where a row does not see the one before it.
    """
    if function is masking_utils.bidirectional_mask_function:
        return Pattern(False)
    if function is masking_utils.causal_mask_function:
        return Pattern(True, UNBOUNDED, 0)
    size: Any = others.get("local_size")
    chunk = getattr(others.get("config"), "attention_chunk_size", None)
    if others.get("use_vmap") or function.__code__ is not _JOINED or (chunk is not None and chunk == size):
        raise UnsupportedError(f"a mask function other than causal or a sliding window: {SERVED_BY}")
    if bidirectional:
        return Pattern(False, size, size)
    left = UNBOUNDED if size is None else size - 1
    if not unpadded:
        return Pattern(True, left, 0)
    if left == 0:
        raise UnsupportedError(f"a sliding window of one token under torch.compile: {SERVED_BY}")
    places = torch.arange(1, rows, device=device)[None, None, None]
    request = torch.arange(batch, device=device)[:, None, None, None]
    joined = function(request, torch.zeros_like(request), places, places - 1).expand(batch, 1, 1, rows - 1)
    return Pattern(True, left, 0, pad((~joined[:, 0, 0]).cumsum(1), (1, 0)))


def _bounds(sequences: Tensor, traced: bool) -> Tensor:
    """Int32 [N + 1]: where sequences begin in all rows, and where the last ends. N is the number of rows, and
    sequences at the end are empty, where the host may not look.
    """
    first = torch.ones_like(sequences[:, :1], dtype=torch.bool)
    begins = torch.cat([first, sequences[:, 1:] != sequences[:, :-1]], 1).flatten()
    total = begins.numel()
    if traced:
        places = torch.arange(total, device=begins.device).where(begins, total).sort().values
    else:
        places = begins.nonzero()[:, 0]
    return pad(places, (0, 1), value=total).to(torch.int32)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers' attention functions are for, with their arguments.

    query: [B, H, S_q, D], key: [B, H_kv, S_k, D], value: [B, H_kv, S_k, D_v]. attention_mask: what
    `make_mask` returned. s_aux: [H], the sinks. Returns ([B, S_q, H, D_v], None); what rows of padding hold
    has no meaning. Raises UnsupportedError for what no kernel does.
    """
    _refuse(query, dropout, others)
    rows, keys = query.shape[2], key.shape[2]
    mask = attention_mask
    if mask is None:
        causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
        if causal is None:
            raise UnsupportedError(
                f"attention_mask is None, and {type(module).__name__} has no is_causal to say whether rows "
                f"see later keys: {SERVED_BY}"
            )
        mask = Mask(Pattern(True, UNBOUNDED, 0) if causal else Pattern(False), rows, keys)
        if causal and rows not in (1, keys) and others.get("cu_seq_lens_q") is None:
            raise UnsupportedError(
                f"attention_mask is None for {rows} query rows over {keys} keys, so nothing says where "
                f"the causal mask begins; {SERVED_BY}"
            )
    elif not isinstance(mask, Mask):
        raise UnsupportedError(
            f"attention_mask is {_described(mask)}: only masks of padding, [B, tokens], that transformers "
            f"hands to the registered mask function are served; for a mask of your own, {SERVED_BY}"
        )
    if (mask.rows, mask.keys) != (rows, keys):
        raise UnsupportedError(
            f"attention_mask is for {mask.rows} query rows over {mask.keys} keys, and the layer has {rows} "
            f"over {keys}: {SERVED_BY}"
        )
    pattern = mask.pattern
    if sliding_window is not None and sliding_window < keys and not pattern.hides(keys):
        raise UnsupportedError(
            f"sliding_window is {sliding_window} for {keys} keys, but the mask of the layer has no window: "
            f"{SERVED_BY}"
        )
    options = {
        "causal": pattern.causal,
        "scale": scaling,
        "window": (pattern.left, UNBOUNDED if pattern.causal else pattern.right),
        "softcap": softcap or 0.0,
        "sinks": s_aux,
    }
    begins: list[Any] = [others.get(name) for name in ("cu_seq_lens_q", "cu_seq_lens_k")]
    given = [x is not None for x in begins]
    if any(given):
        if not all(given) or mask.used is not None or query.shape[0] != 1:
            raise UnsupportedError(
                "cu_seq_lens_q and cu_seq_lens_k are served together, for a batch of 1 without a cache that "
                f"is longer than its tokens and without attention_mask; otherwise {SERVED_BY}"
            )
        out = _packed(query, key, value, begins[0], begins[1], options)
    elif mask.bounds is not None:
        out = _packed(query, key, value, mask.bounds, mask.bounds, options)
    else:
        out = _dense(query, key, value, mask, options)
    return out, None


def _dense(query: Tensor, key: Tensor, value: Tensor, mask: Mask, options: dict[str, Any]) -> Tensor:
    """[B, S_q, H, D_v]. Keys of padding go to the end, query rows of padding to the beginning."""
    if mask.order is not None:
        if mask.used is not None and mask.places is None and _readable_in_place(query, key, value):
            return _in_place(query, key, value, mask.order, mask.used, options)
        key, value = _moved(key, mask.order), _moved(value, mask.order)
    if mask.places is not None:
        query = _moved(query, mask.places)
    out = attention(query, key, value, seqused_k=mask.used, **options)
    if mask.back is not None:
        out = _moved(out, mask.back)
    return out.transpose(1, 2).contiguous()


FEW = 16  # query rows of a step of decoding
DECODE_DIMS = (64, 128, 256)  # head dimensions that the kernels of decoding have


def _readable_in_place(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the kernels of decoding serve this, and each key of a request is a page of one pool."""
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    pages = key.shape[0] * key.stride(0) // key.stride(2)
    return (
        query.shape[2] <= FEW
        and query.shape[3] == value.shape[3]
        and value.shape[3] in DECODE_DIMS
        and pages < PAGES_LIMIT
        and not wanted
        and query.dtype is key.dtype is value.dtype
        and key.dtype in TYPES  # float32 under autocast, which casts no pages
        and all(x.stride(0) % x.stride(2) == 0 and x.stride(3) == 1 for x in (key, value))
        and key.stride(0) // key.stride(2) == value.stride(0) // value.stride(2)
    )


def _in_place(
    query: Tensor, key: Tensor, value: Tensor, order: Tensor, used: Tensor, options: dict[str, Any]
) -> Tensor:
    """`_dense` for a few query rows: keys are found through a table of pages of one key, and not copied."""
    batch, apart = key.shape[0], key.stride(0) // key.stride(2)  # pages from one request to the next
    first = torch.arange(batch, dtype=torch.int32, device=key.device)[:, None] * apart
    pages = (batch - 1) * apart + key.shape[2]
    k, v = (
        x.as_strided((pages, 1, x.shape[1], x.shape[3]), (x.stride(2), x.stride(2), x.stride(1), 1))
        for x in (key, value)
    )
    table = (order + first).to(torch.int32)
    return attention_paged(query, k, v, table, used, **options).transpose(1, 2).contiguous()


def _moved(x: Tensor, order: Tensor) -> Tensor:
    """The rows of x [B, H, S, D] in the order of [B, S]."""
    return x.gather(2, order[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def _packed(
    query: Tensor, key: Tensor, value: Tensor, bounds_q: Tensor, bounds_k: Tensor, options: dict[str, Any]
) -> Tensor:
    """[B, S_q, H, D_v], of sequences that follow each other in all rows of the batch."""
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    bounds = (x.to(device=q.device, dtype=torch.int32) for x in (bounds_q, bounds_k))
    out = attention_varlen(q, k, v, *bounds, **options)
    return out.unflatten(0, (query.shape[0], query.shape[2]))


REFUSED = {
    "position_bias": "biases of positions",
    "indices": "attention to chosen keys",
    "block_indices": "attention to chosen blocks",
    "head_mask": "masks of heads",
    "cache": "the cache of continuous batching",
    "block_table": "the pages of continuous batching",
}
"""Arguments of layers that change the result and have no kernel."""


def _refuse(query: Tensor, dropout: float, others: dict[str, Any]) -> None:
    if dropout:
        raise UnsupportedError(
            f"dropout is {dropout}: no kernel drops weights; set attention_dropout of the config to 0, call "
            f"model.eval(), or {SERVED_BY}"
        )
    if others.get("output_attentions"):
        raise UnsupportedError(
            "output_attentions is True: the kernels never hold the weights; load the model with "
            'attn_implementation="eager"'
        )
    for name, what in REFUSED.items():
        if others.get(name) is not None:
            raise UnsupportedError(f"{name} is given: {what} are not served; {SERVED_BY}")
    if query.dtype is torch.float32 and not torch.is_autocast_enabled(query.device.type):
        raise UnsupportedError(
            "the model computes in float32, and the kernels in float16 and bfloat16: load it with "
            "dtype=torch.bfloat16, call model.bfloat16(), or run it under torch.autocast"
        )


def _described(mask: Any) -> str:
    if isinstance(mask, Tensor):
        return f"a tensor of {str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
    return shown(mask)

// What a query row sees: the one definition. All that a kernel knows of visible keys follows from `interval`:
// the tiles that it walks over, those that need a mask, the columns that the mask hides.
//
// The causal mask is aligned bottom-right: the last row sees every key, and with more rows than keys the
// first rows see none. Neither end of the interval falls from one row to the next. No mask hides keys before
// the first one that is seen, so `begin` is 0 and costs nothing; kernels count with it all the same.
#pragma once
#include "params.cuh"

// Keys, or tiles of keys: from `begin` on, before `end`.
struct Interval {
    int begin, end;

    // These keys, counted from key `first`.
    __device__ __forceinline__ Interval from(int first) const {
        return {begin > 0 ? begin - first : 0, end - first};
    }
    // The tiles of `keys` keys that hold some of these.
    __device__ __forceinline__ Interval tiles(int keys) const {
        return {begin / keys, (end + keys - 1) / keys};
    }
};

struct Mask {
    int S_q, S_k, causal;

    __device__ __forceinline__ explicit Mask(const Sizes& sizes)
        : S_q(sizes.S_q), S_k(sizes.S_k), causal(sizes.causal) {}

    // The keys that query row `row` sees.
    __device__ Interval interval(int row) const {
        return {0, causal ? max(0, min(S_k, row + 1 + S_k - S_q)) : S_k};
    }
};

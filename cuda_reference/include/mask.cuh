// What a query row sees: the one definition. All that a kernel knows of visible keys follows from `interval`:
// the tiles that it walks over, those that need a mask, the columns that the mask hides.
//
// The causal mask is aligned bottom-right: the last row sees every key, and with more rows than keys the
// first rows see none. Neither end of the interval falls from one row to the next. Only a window hides keys
// before the first one that is seen: without one `begin` is 0 and costs nothing.
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
    int S_q, S_k, causal, left, right;

    __device__ __forceinline__ explicit Mask(const Sizes& sizes) : Mask(sizes, sizes.S_q, sizes.S_k) {}
    __device__ __forceinline__ Mask(const Sizes& sizes, const Sequence& sequence)
        : Mask(sizes, sequence.S_q, sequence.S_k) {}
    __device__ __forceinline__ Mask(const Sizes& sizes, int S_q, int S_k)
        : S_q(S_q), S_k(S_k), causal(sizes.causal), left(sizes.features.left),
          right(sizes.causal ? 0 : sizes.features.right) {}

    // The keys that query row `row` sees.
    __device__ Interval interval(int row) const {
        if (!WINDOW) return {0, causal ? max(0, min(S_k, row + 1 + S_k - S_q)) : S_k};
        return {left < 0 ? 0 : inside(diagonal(row) - left),
                right < 0 ? S_k : inside(diagonal(row) + right + 1)};
    }
    // The query rows that see key `key`: the mask, transposed.
    __device__ Interval rows(int key) const {
        const int row = key - (S_k - S_q);  // whose diagonal the key is on
        return {right < 0 ? 0 : max(0, min(S_q, row - right)),
                left < 0 ? S_q : max(0, min(S_q, row + left + 1))};
    }
    // The same, counted from a row whose diagonal is `distance` keys before the key, without the bounds 0 and
    // S_q: for tiles of rows of which only those inside count.
    __device__ Interval rows_around(int distance) const {
        return {right < 0 ? 0 : distance - right, left < 0 ? S_q : distance + left + 1};
    }
    // The row's place on the diagonal: before the first key if negative.
    __device__ int diagonal(int row) const { return row + S_k - S_q; }
    __device__ int inside(int key) const { return max(0, min(S_k, key)); }
};

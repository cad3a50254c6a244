// Work in sequences whose lengths only the GPU knows: row tiles are numbered over all of them, and a launch
// has as many as any lengths could make of so many rows.
#pragma once
#include "params.cuh"

// A tile of query rows, or of keys, of the sequence with this number.
struct RowTile {
    int sequence, tile;
};

// Tiles of `rows` query rows in a head: as many as any lengths could make, where the sequences are packed.
__device__ __forceinline__ int row_tiles_at_most(const Sizes& sizes, int rows) {
    return (sizes.S_q + (RAGGED ? sizes.features.sequences : 1) * (rows - 1)) / rows;
}

// The tile of `size` rows that has number `at.tile` over all sequences, the last rows of each first; false if
// there is none. `bounds`: where the sequences begin. For a whole warp: a lane has a sequence, 32 at a time.
__device__ __forceinline__ bool find_tile(RowTile& at, const int* bounds, int sequences, int size, int lane) {
    int number = at.tile;
    for (int first = 0; first < sequences; first += 32) {
        const int index = first + lane, *rows_before = bounds + index;
        const int length = index < sequences ? rows_before[1] - rows_before[0] : 0;
        const int tiles = (length + size - 1) / size;
        int end = tiles;  // of the row tiles of these sequences up to this one
        for (int lanes = 1; lanes < 32; lanes *= 2) {
            const int before = __shfl_up_sync(0xffffffff, end, lanes);
            if (lane >= lanes) end += before;
        }
        const unsigned behind = __ballot_sync(0xffffffff, number < end);
        if (behind) {
            const int found = __ffs(behind) - 1;
            at = {first + found, __shfl_sync(0xffffffff, end, found) - 1 - number};
            return true;
        }
        number -= __shfl_sync(0xffffffff, end, 31);
    }
    return false;
}

__device__ __forceinline__ bool find_row_tile(RowTile& at, const Sizes& sizes, int rows, int lane) {
    return !RAGGED || find_tile(at, sizes.features.cu_seqlens_q, sizes.features.sequences, rows, lane);
}

// The same of `keys` keys, the first of each sequence first; without RAGGED `at` is what it is.
__device__ __forceinline__ bool find_key_tile(RowTile& at, const Sizes& sizes, int keys, int lane) {
    if (!RAGGED) return true;
    const int* bounds = sizes.features.cu_seqlens_k;
    if (!find_tile(at, bounds, sizes.features.sequences, keys, lane)) return false;
    const int length = bounds[at.sequence + 1] - bounds[at.sequence];
    at.tile = (length + keys - 1) / keys - 1 - at.tile;
    return true;
}

// Which elements of P are dropped: a function of seed, offset, batch, head, query row and key alone.
//
// Philox4x32-10 (Salmon et al. 2011) makes four words of a key, the seed, and of a counter of four words:
// offset / 4; row / 16 * 8 + row % 8; key / 32 * 8 + key % 8; batch * 2^16 + head. They serve eight elements,
// rows i and i + 8 of 16 and keys j, j + 8, j + 16, j + 24 of 32: word key / 8 % 4, its lower bits for the
// first of the rows, its upper bits for the second. An element is dropped if its bits are less than p * 2^16.
// On mma.sync a lane has rows g + 8r and columns 2t + 8n, 2t + 1 + 8n, be the rows queries or keys. So all
// eight are one lane's in the forward pass, where rows are queries, and in the backward pass, where they are
// keys: no lane hands bits to another.
#pragma once
#include "warp_rows.cuh"

static_assert(!DROPOUT || !(SOFTCAP || RAGGED || PRIOR), "nothing says what these do with dropout");
using Draws = uint32_t[4];

// Ten rounds of Philox4x32: counters become what is drawn. Two at once share the additions to the key.
__device__ __forceinline__ void philox(Draws (&counters)[2], uint32_t key_low, uint32_t key_high) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
#pragma unroll
        for (Draws& counter : counters) {
            const uint64_t a = (uint64_t)0xd2511f53 * counter[0], b = (uint64_t)0xcd9e8d57 * counter[2];
            counter[0] = (uint32_t)(b >> 32) ^ counter[1] ^ key_low, counter[1] = (uint32_t)b;
            counter[2] = (uint32_t)(a >> 32) ^ counter[3] ^ key_high, counter[3] = (uint32_t)a;
        }
        key_low += 0x9e3779b9, key_high += 0xbb67ae85;
    }
}

// Of one query head.
struct Dropout {
    const Features& features;
    uint32_t head;

    __device__ __forceinline__ Dropout(const Features& features, int b, int h)
        : features(features), head((uint32_t)b << 16 | h) {}
    // For the eight elements that this one belongs to, and those that the next row or key does.
    __device__ __forceinline__ void draw(Draws (&words)[2], int row, int key, bool next_row) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            words[i][0] = features.draw, words[i][3] = head;
            words[i][1] = row / 16 * 8 + row % 8 + (next_row ? i : 0);
            words[i][2] = key / 32 * 8 + key % 8 + (next_row ? 0 : i);
        }
        philox(words, (uint32_t)features.seed, (uint32_t)(features.seed >> 32));
    }
    // Whether the element of the upper or lower 16 bits of a word is kept.
    __device__ __forceinline__ bool kept(uint32_t word, bool upper) const {
        return (upper ? word : word << 16) >= features.drop_below;
    }
};

// P without what is dropped, of rows that are queries. `row`: the lane's first; first_key: of the tile.
__device__ __forceinline__ void drop_tile(P& p_rmem, const Dropout& dropout, int row, int first_key,
                                          int lane) {
    static_assert(!DROPOUT || BLOCK_N % 32 == 0, "a lane has whole groups of eight");
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int block = 0; block < BLOCK_N / 32; block++) {
            Draws words[2];
            dropout.draw(words, row + 16 * r, first_key + 32 * block + lane % 4 * 2, false);
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int upper = 0; upper < 2; upper++)
                    p_rmem[r][2 * block + n / 2][n % 2 * 2 + upper] &=
                        (dropout.kept(words[0][n], upper) ? 0xffff : 0) |
                        (dropout.kept(words[1][n], upper) ? 0xffff0000 : 0);
        }
}

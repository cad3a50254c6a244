// O / l as halves, at the end of every kernel whose P is in halves.
//
// P is rounded and l is summed from what it was before, so O / l may pass the greatest V of its column by a
// 2048th part: 65504, the greatest half, would become infinite. What V itself makes infinite stays so.
#pragma once
#include <cuda_fp16.h>

#include "ptx.cuh"

__device__ __forceinline__ float no_overflow(float o) {
    return fabsf(o) < INFINITY ? fminf(fmaxf(o, -65504.0f), 65504.0f) : o;
}

// N floats, a multiple of 4. Products of pairs find an infinity among them for a quarter of an instruction
// each; great numbers may look like one, and are then clamped for nothing.
template <int N> __device__ __forceinline__ void pack_output(uint32_t* pairs, const float* o) {
    uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < N / 2; i++) pairs[i] = ptx::pack_half2(o[2 * i], o[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < N / 2; i += 2) found = ptx::fma_half2(pairs[i], pairs[i + 1], found);
    if ((found & 0x7c00) != 0x7c00 && (found & 0x7c000000) != 0x7c000000) return;
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        pairs[i] = ptx::pack_half2(no_overflow(o[2 * i]), no_overflow(o[2 * i + 1]));
}

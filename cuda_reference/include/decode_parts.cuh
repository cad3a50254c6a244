// Parts of the keys whose blocks meet in global memory: which one is a block's, and how the last block to
// come merges those of a request.
#pragma once
#include "decode.cuh"

static_assert(16 * MAX_PARTS * THREADS <= sizeof(stored) * WARPS * RING, "a float4 of all parts per thread");

// The part with this number among those of all requests: one of request `b`, of which `number` becomes the
// number there; false if there is none. For a whole warp: a lane has a request, 32 at a time.
template <class Count>
__device__ __forceinline__ bool find_part(int& b, int& number, int requests, int lane, Count count_of) {
    for (b = 0; b < requests; b += 32) {
        const int count = b + lane < requests ? count_of(b + lane) : 0;
        int end = count;  // of the parts of these requests up to this one
        for (int lanes = 1; lanes < 32; lanes *= 2) {
            const int before = __shfl_up_sync(ALL_LANES, end, lanes);
            if (lane >= lanes) end += before;
        }
        const unsigned after = __ballot_sync(ALL_LANES, number < end);
        if (after) {
            const int found = __ffs(after) - 1;
            number -= __shfl_sync(ALL_LANES, end - count, found), b += found;
            return true;
        }
        number -= __shfl_sync(ALL_LANES, end, 31);
    }
    return false;
}

// What the warps of a block found is merged: into `out` and `lse` if the request has no other part, else into
// row part_row(part, row) of `parts` and `part_lse`, O / l and m + log2 l. The block that arrives last at the
// counter merges all parts; the counter wraps to 0 by itself.
template <class PartRow>
__device__ __forceinline__ void finish_part(const BlockRows& rows, stored* smem,
                                            const float (&m_smem)[WARPS][WARP_ROWS],
                                            const float (&l_smem)[WARPS][WARP_ROWS], element* out, float* lse,
                                            int b, int part, int count, float* parts, float* part_lse,
                                            PartRow part_row, uint32_t* arrived) {
    __shared__ float lse_smem[MAX_PARTS][WARP_ROWS];
    __shared__ bool last_smem;
    __syncthreads();  // the warps' parts are whole before threads merge what others wrote
#pragma unroll 1
    for (int i = threadIdx.x; i < rows.inside * QUADS; i += THREADS) {
        const int row = i / QUADS, column = i % QUADS * 4;
        float o[4] = {};
        const float lse_log2 = merge(
            o, WARPS, [&](int w) { return m_smem[w][row]; }, [&](int w) { return l_smem[w][row]; },
            [&](int w) { return (const float*)(smem + w * RING) + row * PART_ROW + column; });
        if (count == 1) {
            rows.store(out, lse, b, row, column, o, lse_log2);
        } else {
            *(float4*)(parts + part_row(part, row) * D + column) = make_float4(o[0], o[1], o[2], o[3]);
            if (column == 0) part_lse[part_row(part, row)] = lse_log2;
        }
    }
    __syncthreads();  // the block's part is whole; O of all warps has been read and may be written over
    if (count == 1) return;
    if (threadIdx.x == 0) last_smem = ptx::arrive_wrapping(arrived, count - 1) == count - 1;
    __syncthreads();  // all threads know whether it was the last, and see the parts that came before
    if (!last_smem) return;

    float* own_smem = (float*)smem + 4 * threadIdx.x;  // [MAX_PARTS, THREADS, 4]: a thread's place
    auto fetch = [&](int i) {
        if (i >= rows.inside * QUADS) return;
#pragma unroll 4
        for (int number = 0; number < count; number++) {
            const float* from = parts + part_row(number, i / QUADS) * D + i % QUADS * 4;
            ptx::cp_async_16(own_smem + number * 4 * THREADS, from);
        }
    };
    fetch(threadIdx.x);  // the log-sum-exps come meanwhile
#pragma unroll 1
    for (int i = threadIdx.x; i < count * WARP_ROWS; i += THREADS) {
        const int number = i / WARP_ROWS, row = i % WARP_ROWS;
        if (row < rows.inside) lse_smem[number][row] = part_lse[part_row(number, row)];
    }
    __syncthreads();  // the parts' log-sum-exps are there
#pragma unroll 1
    for (int i = threadIdx.x; i < rows.inside * QUADS; i += THREADS) {
        const int row = i / QUADS, column = i % QUADS * 4;
        ptx::cp_async_wait_all();  // what this thread has fetched, and no other reads
        float o[4] = {};
        const float lse_log2 = merge(
            o, count, [&](int number) { return lse_smem[number][row]; }, [](int) { return 1.0f; },
            [&](int number) { return own_smem + number * 4 * THREADS; });
        fetch(i + THREADS);
        rows.store(out, lse, b, row, column, o, lse_log2);
    }
    __syncthreads();  // the parts have been read before the next tiles take their place
}

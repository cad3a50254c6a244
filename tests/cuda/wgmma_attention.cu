// Attention with everything that Hopper adds, to hold the CPU executor to: a producer thread feeds a ring of
// K and V tiles by TMA, a consumer warpgroup multiplies them with wgmma, Q K^T from shared memory, P V with P
// in registers. One block is 64 query rows of one head of 64 components; S is a multiple of 64.
#include <cuda_fp16.h>

#include "ptx.cuh"

constexpr int D = 64, ROWS = 64, KEYS = 64, STAGES = 2, TILE = 64 * 64;

extern "C" __global__ void __launch_bounds__(256, 1)
wgmma_attention(const __grid_constant__ ptx::TensorMap q_map, const __grid_constant__ ptx::TensorMap k_map,
                const __grid_constant__ ptx::TensorMap v_map, half* out, int S, float scale_log2) {
    extern __shared__ __align__(1024) unsigned char smem[];
    half *q_smem = reinterpret_cast<half*>(smem), *k_smem = q_smem + TILE, *v_smem = k_smem + STAGES * TILE;
    uint64_t* full = reinterpret_cast<uint64_t*>(v_smem + STAGES * TILE);
    uint64_t *empty = full + STAGES, *q_full = empty + STAGES;
    const int first_row = blockIdx.x * ROWS, head_row = blockIdx.y * S, tiles = S / KEYS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            ptx::mbarrier_init(full + i, 1);
            ptx::mbarrier_init(empty + i, 128);
        }
        ptx::mbarrier_init(q_full, 1);
        ptx::fence_mbarrier_init();
    }
    __syncthreads();  // the mbarriers are initialised
    if (threadIdx.x < 128) {
        ptx::registers_down<40>();
        if (threadIdx.x != 0) return;
        ptx::mbarrier_arrive_expect(q_full, TILE * 2);
        ptx::tma_load_2d(q_smem, &q_map, q_full, 0, head_row + first_row);
        for (int tile = 0; tile < tiles; tile++) {
            const int stage = tile % STAGES;
            ptx::mbarrier_wait(empty + stage, tile / STAGES % 2 ^ 1);  // consumers have left the stage
            ptx::mbarrier_arrive_expect(full + stage, TILE * 4);
            ptx::tma_load_2d(k_smem + stage * TILE, &k_map, full + stage, 0, head_row + tile * KEYS);
            ptx::tma_load_2d(v_smem + stage * TILE, &v_map, full + stage, 0, head_row + tile * KEYS);
        }
        return;
    }
    ptx::registers_up<232>();
    const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
    float o[D / 2] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
    ptx::mbarrier_wait(q_full, 0);
    for (int tile = 0; tile < tiles; tile++) {
        const int stage = tile % STAGES;
        const uint64_t k_tile = ptx::wgmma_tile(k_smem + stage * TILE);
        const uint64_t v_tile = ptx::wgmma_tile(v_smem + stage * TILE);
        float s[KEYS / 2] = {};
        ptx::mbarrier_wait(full + stage, tile / STAGES % 2);  // K and V have arrived
        ptx::wgmma_pin(s);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            ptx::wgmma_ss<KEYS>(s, ptx::wgmma_tile(q_smem) + 2 * k, k_tile + 2 * k, k > 0);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();  // S is whole
        ptx::wgmma_pin(s);
        uint32_t p[KEYS / 16][4];
        float before[2] = {m[0], m[1]}, rescale[2];
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) m[i / 2 % 2] = fmaxf(m[i / 2 % 2], s[i] * scale_log2);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            m[r] = fmaxf(m[r], __shfl_xor_sync(0xffffffff, m[r], 1));
            m[r] = fmaxf(m[r], __shfl_xor_sync(0xffffffff, m[r], 2));
            rescale[r] = ptx::ex2(before[r] - m[r]);
            l[r] *= rescale[r];
        }
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            s[i] = ptx::ex2(s[i] * scale_log2 - m[i / 2 % 2]);
            l[i / 2 % 2] += s[i];
        }
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] *= rescale[i / 2 % 2];
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) p[i / 4][i % 4] = ptx::pack_pair(s[2 * i], s[2 * i + 1]);
        ptx::wgmma_pin(o);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) ptx::wgmma_rs<D, 1>(o, p[k], v_tile + 128 * k, 1);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();  // V has been read, and O may be rescaled
        ptx::wgmma_pin(o);
        ptx::mbarrier_arrive(empty + stage);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l[r] += __shfl_xor_sync(0xffffffff, l[r], 1);
        l[r] += __shfl_xor_sync(0xffffffff, l[r], 2);
        half* o_row = out + (size_t)(head_row + first_row + warp * 16 + lane / 4 + 8 * r) * D + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            *reinterpret_cast<uint32_t*>(o_row + 8 * i) =
                ptx::pack_pair(o[4 * i + 2 * r] / l[r], o[4 * i + 2 * r + 1] / l[r]);
    }
}

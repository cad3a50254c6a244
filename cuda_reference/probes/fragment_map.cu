// Which lane holds which element of the three operands of mma.m16n8k16: each lane writes down what it has.
//
// Element [i][j] of A is the number 16 i + j, element [k][n] of B is 8 k + n. A is read by ldmatrix as stages
// 12 and 13 read Q; B lies [n][k] in shared memory, as a tile of K does. A second product, with the identity
// in the place of A, gives D = B rows, so that a lane's part of D says which elements of D those are.
#include <cuda_fp16.h>

#include "ptx.cuh"

extern "C" __global__ void
fragment_map(const half* a, const half* identity, const half* b,   // [16, 16] twice, [16, 8]
             float* a_held, float* b_held, float* d_held) {        // [32, 8], [32, 4], [32, 4]
    __shared__ __align__(128) half a_smem[16][16], identity_smem[16][16], b_smem[8][16];
    const int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) {
        a_smem[i / 16][i % 16] = a[i], identity_smem[i / 16][i % 16] = identity[i];
        if (i < 128) b_smem[i % 8][i / 8] = b[i];
    }
    __syncwarp();  // the matrices are whole before ldmatrix reads what other lanes wrote
    uint32_t a_rmem[4], identity_rmem[4], b_rmem[2];
    float d_rmem[4] = {};
    ptx::ldmatrix_x4(a_rmem, &a_smem[lane % 16][lane / 16 * 8]);
    ptx::ldmatrix_x4(identity_rmem, &identity_smem[lane % 16][lane / 16 * 8]);
    ptx::ldmatrix_x2(b_rmem, &b_smem[lane % 8][lane / 8 % 2 * 8]);
    ptx::mma_m16n8k16(d_rmem, identity_rmem, b_rmem[0], b_rmem[1]);
    for (int i = 0; i < 4; i++) {
        const float2 pair = __half22float2(*(const half2*)&a_rmem[i]);
        a_held[8 * lane + 2 * i] = pair.x, a_held[8 * lane + 2 * i + 1] = pair.y;
        d_held[4 * lane + i] = d_rmem[i];
    }
    for (int i = 0; i < 2; i++) {
        const float2 pair = __half22float2(*(const half2*)&b_rmem[i]);
        b_held[4 * lane + 2 * i] = pair.x, b_held[4 * lane + 2 * i + 1] = pair.y;
    }
}

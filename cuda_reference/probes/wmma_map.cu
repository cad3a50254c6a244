// Which lane holds which element of a WMMA accumulator: each lane writes its own number into all it holds.
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

extern "C" __global__ void wmma_map(float* lane_of) {  // [16, 16]
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> o;
    for (int i = 0; i < o.num_elements; i++) o.x[i] = threadIdx.x;
    wmma::store_matrix_sync(lane_of, o, 16, wmma::mem_row_major);
}

// Decoding without scratch memory: the parts of a request are the blocks of a cluster (decode_clusters.cuh),
// and a warp multiplies 16 or 32 query rows by mma.sync.
#include "decode.cuh"
#include "decode_clusters.cuh"

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, BLOCKS_PER_SM)
decode_cluster(const element* q,                    // [B, H, S_q, D]
               const stored* k, const stored* v,    // [pages, H / group, page, D], as their strides say
               element* out, float* lse,            // [B, H, S_q, D]; [B, H, S_q] or null
               PARAMS, CACHE_PARAMS) {
    const Params params = PARAMS_GIVEN;
    const Table cache CACHE_GIVEN;
    extern __shared__ __align__(128) stored smem[];
    decode_in_cluster(smem, q, k, v, out, lse, params, cache, inverse_group);
}

// Decoding in clusters (decode_clusters.cuh) for more rows: a warpgroup multiplies 64 query rows by wgmma, so
// that K and V are read once for all tokens of a group.
#include "decode_wgmma.cuh"
#include "decode_clusters.cuh"

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, BLOCKS_PER_SM)
decode_cluster_wide(const element* q,                    // [B, H, S_q, D]
                    const stored* k, const stored* v,    // [pages, H / group, page, D], as their strides say
                    element* out, float* lse,            // [B, H, S_q, D]; [B, H, S_q] or null
                    PARAMS, CACHE_PARAMS) {
    const Params params = PARAMS_GIVEN;
    const Table cache CACHE_GIVEN;
    extern __shared__ __align__(1024) stored smem[];
    decode_in_cluster(smem, q, k, v, out, lse, params, cache, inverse_group);
}

// Writes down what a kernel makes of its parameters, in the order in which params.cuh declares them.
#include "mask.cuh"

extern "C" __global__ void params(const float* q, const float* k, const float* v, float* out, float* lse,
                                  PARAMS, long long* fields, float* scale_log2_out, int* intervals) {
    const Params params = PARAMS_GIVEN;
    const Strides* arrays[] = {&params.q, &params.k, &params.v, &params.out};
    for (int i = 0; i < 4; i++) {
        fields[3 * i] = arrays[i]->batch, fields[3 * i + 1] = arrays[i]->head, fields[3 * i + 2] = arrays[i]->row;
    }
    fields[12] = params.S_q, fields[13] = params.S_k, fields[14] = params.H, fields[15] = params.group;
    fields[16] = params.causal;
    fields[17] = params.k.at(1, 2, 3), fields[18] = params.rows_before(1, 2);
    *scale_log2_out = params.scale_log2;
    const Mask mask(params);
    for (int row = 0; row < params.S_q; row++) {
        const Interval seen = mask.interval(row);
        intervals[2 * row] = seen.begin, intervals[2 * row + 1] = seen.end;
    }
}

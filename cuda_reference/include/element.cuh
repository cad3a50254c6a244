// The element type of Q, K, V, P and O. ELEMENT is its name in NumPy; the struct of that name says what C++,
// conversions and PTX call it. All else says `element`.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef ELEMENT
#define ELEMENT float16
#endif

namespace elements {
struct float16 {
    using type = half;
    using pair = half2;
    static constexpr __device__ float largest() { return 65504.0f; }    // of the finite ones
    static constexpr __device__ unsigned exponent() { return 0x7c00; }  // all set: an infinity or a NaN
    static __device__ __forceinline__ float2 floats(pair x) { return __half22float2(x); }
    static __device__ __forceinline__ unsigned pair_of(unsigned f16x2) { return f16x2; }
};
#define PTX_float16 "f16"

struct bfloat16 {
    using type = __nv_bfloat16;
    using pair = __nv_bfloat162;
    static constexpr __device__ float largest() { return 3.38953139e38f; }
    static constexpr __device__ unsigned exponent() { return 0x7f80; }
    static __device__ __forceinline__ float2 floats(pair x) { return __bfloat1622float2(x); }
    static __device__ __forceinline__ unsigned pair_of(unsigned f16x2) {
        const float2 two = __half22float2(*(const half2*)&f16x2);
        const pair rounded = __floats2bfloat162_rn(two.x, two.y);
        return *(const unsigned*)&rounded;
    }
};
#define PTX_bfloat16 "bf16"
}  // namespace elements

using Element = elements::ELEMENT;
using element = Element::type;
using element2 = Element::pair;

#define ELEMENT_JOINED(prefix, name) prefix##name
#define ELEMENT_NAMED(prefix, name) ELEMENT_JOINED(prefix, name)
#define ELEMENT_PTX ELEMENT_NAMED(PTX_, ELEMENT)  // as instructions call it; a pair of them: ELEMENT_PTX "x2"

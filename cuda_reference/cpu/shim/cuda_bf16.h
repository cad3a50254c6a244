// bfloat16 as its bits: the upper half of a float, to which conversions round, to nearest even.
#pragma once
#include "cuda_dialect.h"

struct __nv_bfloat16 {
  unsigned short bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __float2bfloat16(float f) { return {cpu::bfloat16_bits(f)}; }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return {cpu::bfloat16_bits(f)}; }
inline float __bfloat162float(__nv_bfloat16 b) { return cpu::bfloat16_float(b.bits); }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 b) { return {__bfloat162float(b.x), __bfloat162float(b.y)}; }

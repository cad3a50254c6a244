// half is the compiler's own 16-bit float: every operation rounds to half, as on the device.
#pragma once
#include "cuda_dialect.h"

#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
using __half = __fp16;
#else
using __half = _Float16;
#endif
using half = __half;
struct alignas(4) __half2 {
  __half x, y;
};
using half2 = __half2;

inline __half __float2half(float f) { return (__half)f; }
inline __half __float2half_rn(float f) { return (__half)f; }
inline float __half2float(__half h) { return (float)h; }
inline __half __int2half_rn(int i) { return (__half)i; }
inline __half __hadd(__half a, __half b) { return (__half)((float)a + (float)b); }
inline __half __hmul(__half a, __half b) { return (__half)((float)a * (float)b); }
inline __half2 __floats2half2_rn(float a, float b) { return {(__half)a, (__half)b}; }
inline __half2 __float22half2_rn(float2 f) { return {(__half)f.x, (__half)f.y}; }
inline __half2 __float2half2_rn(float f) { return {(__half)f, (__half)f}; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half __low2half(__half2 h) { return h.x; }
inline __half __high2half(__half2 h) { return h.y; }
inline float __low2float(__half2 h) { return (float)h.x; }
inline float __high2float(__half2 h) { return (float)h.y; }
inline float2 __half22float2(__half2 h) { return {(float)h.x, (float)h.y}; }
inline __half2 __hadd2(__half2 a, __half2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
inline __half2 __hmul2(__half2 a, __half2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
inline unsigned short __half_as_ushort(__half h) {
  unsigned short u;
  memcpy(&u, &h, 2);
  return u;
}
inline __half __ushort_as_half(unsigned short u) {
  __half h;
  memcpy(&h, &u, 2);
  return h;
}

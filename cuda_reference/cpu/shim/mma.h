// nvcuda::wmma, shape 16x16x16 with half inputs. Which lane holds which element is unspecified in CUDA, so
// here it is a permutation drawn for each random schedule: code that assumes a layout gives wrong answers.
#pragma once
#include "cuda_fp16.h"

namespace nvcuda {
namespace wmma {
struct row_major {};
struct col_major {};
struct matrix_a {
  enum { use = 0, elements = 16 };
};  // every element is held by two lanes
struct matrix_b {
  enum { use = 1, elements = 16 };
};
struct accumulator {
  enum { use = 2, elements = 8 };
};
enum layout_t { mem_row_major, mem_col_major };

template <class L>
struct is_column {
  enum { value = 0 };
};
template <>
struct is_column<col_major> {
  enum { value = 1 };
};
template <class L>
struct is_layout {
  enum { value = 0 };
};
template <>
struct is_layout<row_major> {
  enum { value = 1 };
};
template <>
struct is_layout<col_major> {
  enum { value = 1 };
};

namespace detail {
// A NaN that no arithmetic makes.
template <class T>
struct unwritten;
template <>
struct unwritten<float> {
  static constexpr uint32_t bits = 0x7fc05a17;
};
template <>
struct unwritten<half> {
  static constexpr uint16_t bits = 0x7e17;
};

template <class T>
CPU_UNCHECKED bool is_unwritten(const T& element) {
  return !memcmp(&element, &unwritten<T>::bits, sizeof(T));
}
}  // namespace detail

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static_assert(M == 16 && N == 16 && K == 16, "the CPU executor knows the shape 16x16x16 only");
  using element_type = T;
  using storage_element_type = T;
  enum { num_elements = Use::elements, use = Use::use };
  T x[num_elements];
  CPU_UNCHECKED fragment() {  // holds nothing yet: what is read before it is written shows
    for (T& element : x) memcpy(&element, &detail::unwritten<T>::bits, sizeof(T));
  }
};

template <class F, class V>
inline void fill_fragment(F& f, V value) {
  for (int i = 0; i < F::num_elements; i++) f.x[i] = value;
}

namespace detail {
template <class F, class T>
struct Move {
  F* fragment;
  T* matrix;
  unsigned stride;
  bool column;
};

template <class F, class T>
CPU_UNCHECKED void check(const cpu::Lanes& lanes) {
  auto& first = *(Move<F, T>*)lanes.argument[0];
  for (int i = 0; i < 32; i++) {
    auto& mine = *(Move<F, T>*)lanes.argument[i];
    if (mine.matrix != first.matrix || mine.stride != first.stride)
      cpu::fault("bad instruction", lanes.site, "lane %d gives another address or stride than lane 0", i);
  }
  if ((uintptr_t)first.matrix % 32)
    cpu::fault("misaligned", lanes.site,
               "a WMMA matrix starts at a multiple of 32 bytes, this one at %d more",
               (int)((uintptr_t)first.matrix % 32));
  if (first.stride * sizeof(T) % 16)
    cpu::fault("misaligned", lanes.site, "a WMMA stride is a multiple of 16 bytes, this one is %d bytes",
               (int)(first.stride * sizeof(T)));
}

// Halves move as ldmatrix moves them, floats as two neighbours a lane: so nvcc 13.0 compiles them for sm_90.
template <class T>
CPU_UNCHECKED void count(const T* matrix, unsigned stride, bool column, cpu::Access access, cpu::Site site) {
  __attribute__((uninitialized)) const void* places[32];
  if (sizeof(T) == 2) {
    for (int i = 0; i < 32; i++) places[i] = matrix + i % 16 * stride + i / 16 * 8;
    cpu::count_rows(access, places, 32, site);
    return;
  }
  for (int part = 0; part < 4; part++)
    if (!column) {
      for (int i = 0; i < 32; i++)
        places[i] = matrix + (i / 4 + part / 2 * 8) * stride + i % 4 * 2 + part % 2 * 8;
      cpu::count_lanes(access, places, 8, site);
    } else {
      for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 32; i++)
          places[i] = matrix + (i % 4 * 2 + half + part % 2 * 8) * stride + i / 4 + part / 2 * 8;
        cpu::count_lanes(access, places, 4, site);
      }
    }
}

template <class F, class T, bool STORE>
CPU_UNCHECKED void move(const cpu::Lanes& lanes) {
  check<F, T>(lanes);
  const auto access = STORE ? cpu::Access::write : cpu::Access::read;
  for (int lane = 0; lane < 32; lane++) {
    auto& mine = *(Move<F, T>*)lanes.argument[lane];
    for (int i = 0; i < F::num_elements; i++) {
      const int element = cpu::fragment_element(F::use, lane, i), row = element / 16, column = element % 16;
      T* place = mine.matrix + (mine.column ? column * mine.stride + row : row * mine.stride + column);
      cpu::access(lanes.first_thread + lane, place, sizeof(T), access, lanes.site);
      if constexpr (STORE)
        *place = mine.fragment->x[i];
      else
        mine.fragment->x[i] = *place;
    }
  }
  auto& first = *(Move<F, T>*)lanes.argument[0];
  count(first.matrix, first.stride, first.column, access, lanes.site);
}

template <class D, class A, class B, class C>
struct Multiply {
  D* d;
  const A* a;
  const B* b;
  const C* c;
};

template <class D, class A, class B, class C>
CPU_UNCHECKED void multiply(const cpu::Lanes& lanes) {
  __attribute__((uninitialized)) float a[256], b[256], d[256];  // filled below
  for (int lane = 0; lane < 32; lane++) {
    auto& mine = *(Multiply<D, A, B, C>*)lanes.argument[lane];
    const char* empty = is_unwritten(mine.a->x[0])   ? "a, the second argument"
                        : is_unwritten(mine.b->x[0]) ? "b, the third argument"
                        : is_unwritten(mine.c->x[0]) ? "c, the last argument"
                                                     : nullptr;
    if (empty)
      cpu::fault("uninitialised read", lanes.site,
                 "the fragment %s of mma_sync, was never loaded or filled", empty);
    for (int i = 0; i < 8; i++) {
      a[cpu::fragment_element(0, lane, i)] = mine.a->x[i];
      b[cpu::fragment_element(1, lane, i)] = mine.b->x[i];
      d[cpu::fragment_element(2, lane, i)] = mine.c->x[i];
    }
  }
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < 16; k++)
      for (int column = 0; column < 16; column++)
        d[row * 16 + column] += a[row * 16 + k] * b[k * 16 + column];
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 8; i++)
      ((Multiply<D, A, B, C>*)lanes.argument[lane])->d->x[i] = d[cpu::fragment_element(2, lane, i)];
}
}  // namespace detail

template <class Use, class T, class L>
inline void load_matrix_sync(fragment<Use, 16, 16, 16, T, L>& f, const T* matrix, unsigned stride CPU_SITE) {
  using F = fragment<Use, 16, 16, 16, T, L>;
  static_assert((int)Use::use != (int)accumulator::use,
                "load_matrix_sync of an accumulator also takes its layout, wmma::mem_row_major");
  static_assert(is_layout<L>::value,
                "the type of an operand's fragment ends with wmma::row_major or col_major");
  detail::Move<F, const T> mine{&f, matrix, stride, (bool)is_column<L>::value};
  cpu::warp_collective("wmma::load_matrix_sync", "", ~0u, &mine, detail::move<F, const T, false>, site);
}
template <class T>
inline void load_matrix_sync(fragment<accumulator, 16, 16, 16, T>& f, const T* matrix, unsigned stride,
                             layout_t layout CPU_SITE) {
  using F = fragment<accumulator, 16, 16, 16, T>;
  detail::Move<F, const T> mine{&f, matrix, stride, layout == mem_col_major};
  cpu::warp_collective("wmma::load_matrix_sync", "", ~0u, &mine, detail::move<F, const T, false>, site);
}
template <class T>
inline void store_matrix_sync(T* matrix, const fragment<accumulator, 16, 16, 16, T>& f, unsigned stride,
                              layout_t layout CPU_SITE) {
  using F = const fragment<accumulator, 16, 16, 16, T>;
  detail::Move<F, T> mine{&f, matrix, stride, layout == mem_col_major};
  cpu::warp_collective("wmma::store_matrix_sync", "", ~0u, &mine, detail::move<F, T, true>, site);
}
template <class D, class A, class B, class C>
inline void mma_sync(D& d, const A& a, const B& b, const C& c CPU_SITE) {
  static_assert((int)A::use == (int)matrix_a::use, "mma_sync(d, a, b, c): a must be a fragment of matrix_a");
  static_assert((int)B::use == (int)matrix_b::use, "mma_sync(d, a, b, c): b must be a fragment of matrix_b");
  static_assert((int)C::use == (int)accumulator::use && (int)D::use == (int)accumulator::use,
                "mma_sync(d, a, b, c): c and d must be fragments of accumulator");
  detail::Multiply<D, A, B, C> mine{&d, &a, &b, &c};
  cpu::warp_collective("wmma::mma_sync", "mma", ~0u, &mine, detail::multiply<D, A, B, C>, site);
}
}  // namespace wmma
}  // namespace nvcuda

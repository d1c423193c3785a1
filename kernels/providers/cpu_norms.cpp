// The norms of normport/kernels for the CPU, row by row: each element is read once, what a row needs
// again stays in the first-level cache, and every rounding of the definition is made where it says.
// A plain C interface without PyTorch's headers compiles in seconds; the caller has checked everything.
//
// Compile with -ffp-contract=off: a product that is fused into an addition is not rounded.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace {

constexpr int kLanes = 32;

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The nearest bfloat16, ties to even, as a float; a NaN stays one. All in 32-bit lanes, and the
// comparison is signed, because AVX2 has no other.
inline float nearest_bfloat16(float value) {
  const uint32_t wide = bits_of(value);
  const uint32_t nearest = (wide + 0x7fffu + ((wide >> 16) & 1u)) & 0xffff0000u;
  return float_of(int32_t(wide & 0x7fffffffu) > 0x7f800000 ? 0x7fc00000u : nearest);
}

struct BFloat16 {
  uint16_t bits;
  operator float() const { return float_of(uint32_t(bits) << 16); }
  BFloat16() = default;
  explicit BFloat16(float value) : bits(uint16_t(bits_of(nearest_bfloat16(value)) >> 16)) {}
};

// A float that T has, as T: nothing is rounded.
template <typename T>
inline T exactly(float value) {
  return T(value);
}
template <>
inline BFloat16 exactly<BFloat16>(float value) {
  BFloat16 narrow;
  narrow.bits = uint16_t(bits_of(value) >> 16);
  return narrow;
}

template <typename T>
inline float rounded(float value) {
  return float(T(value));
}
template <>
inline float rounded<float>(float value) {
  return value;
}
template <>
inline float rounded<BFloat16>(float value) {
  return nearest_bfloat16(value);
}

// As T(value) and rounded<T>(value), for what is no NaN: the test for one is half of the work.
template <typename T>
inline float rounded_number(float value) {
  return rounded<T>(value);
}
template <>
inline float rounded_number<BFloat16>(float value) {
  const uint32_t wide = bits_of(value);
  return float_of((wide + 0x7fffu + ((wide >> 16) & 1u)) & 0xffff0000u);
}

template <typename T>
inline float sum_of_squares(const T* x, int64_t size) {
  float sums[kLanes];
  int64_t i = 0;
  if (size >= kLanes) {
    for (; i < kLanes; ++i) sums[i] = float(x[i]) * float(x[i]);
  } else {
    // Only here, because setting them to zero first costs as much as a head's squares.
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] = 0.0f;
  }
  for (; i + kLanes <= size; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = float(x[i + lane]);
      sums[lane] += value * value;
    }
  }
  for (int lane = 0; i < size; ++i, ++lane) {
    const float value = float(x[i]);
    sums[lane] += value * value;
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

inline float inverse_rms(float squares, int64_t size, float epsilon) {
  return 1.0f / std::sqrt(squares / float(size) + epsilon);
}

// The bits of a weight's kind; the caller composes them (cpu.py).
enum Kind : int { kGiven = 1, kFloat32 = 2, kOffset = 4, kWide = 8 };

// The factors of a row in float32, as the multiplication takes them, made once a call.
template <typename T>
struct Scale {
  const float* factors = nullptr;
  bool narrow = false;  // multiply in T, which is also the weight's dtype

  Scale(const void* weight, int kind, int64_t size, std::vector<float>& room) {
    if (!(kind & kGiven)) return;
    const bool offset = kind & kOffset;
    narrow = !(kind & kFloat32) && !(kind & kWide);
    if ((kind & kFloat32) && !offset) {
      factors = static_cast<const float*>(weight);
      return;
    }
    room.resize(size_t(size));
    const float plus = offset ? 1.0f : 0.0f;
    if (kind & kFloat32) {
      const float* from = static_cast<const float*>(weight);
      for (int64_t i = 0; i < size; ++i) room[i] = from[i] + plus;
    } else {
      const T* from = static_cast<const T*>(weight);
      for (int64_t i = 0; i < size; ++i) room[i] = float(from[i]);
      if (offset && narrow) {
        for (int64_t i = 0; i < size; ++i) room[i] = rounded<T>(room[i] + plus);
      } else if (offset) {
        for (int64_t i = 0; i < size; ++i) room[i] += plus;
      }
    }
    factors = room.data();
  }
};

// put(i, value) for every element of a row, scaled but not yet rounded to the input's dtype.
template <typename T, typename From, typename Put>
inline void scaled(const From* x, int64_t size, float inverse, const Scale<T>& scale, Put put) {
  const float* __restrict factors = scale.factors;
  if (factors == nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < size; ++i) put(i, float(x[i]) * inverse);
  } else if (scale.narrow) {
#pragma GCC ivdep
    for (int64_t i = 0; i < size; ++i) {
      put(i, rounded<T>(rounded<T>(float(x[i]) * inverse) * factors[i]));
    }
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < size; ++i) put(i, (float(x[i]) * inverse) * factors[i]);
  }
}

// How many rows are measured before the first of them is scaled: one head's square root and division
// would otherwise be waited for head by head. What they hold stays in the first-level cache.
constexpr int kRows = 8;
constexpr int64_t kHeld = 2048;

template <typename T>
void norm_rows(const T* x, T* out, int64_t inner, int64_t outer_stride, int64_t inner_stride,
               int64_t size, int64_t measured, float epsilon, const Scale<T>& scale, bool multiplied,
               float factor, int64_t begin, int64_t end) {
  const int64_t most = size * kRows <= kHeld ? kRows : 1;
  const bool whole = scale.factors == nullptr && measured == size;
  const bool finite_factor = std::isfinite(factor);
  // Counted along, because two divisions a row cost as much as the norm of a head.
  int64_t row = begin, index = begin % inner;
  for (const T* start = x + (begin / inner) * outer_stride; row < end; start += outer_stride) {
    while (index < inner && row < end) {
      int64_t count = most < inner - index ? most : inner - index;
      if (count > end - row) count = end - row;
      float squares[kRows] = {}, inverses[kRows];
      for (int64_t i = 0; i < count; ++i) {
        squares[i] = sum_of_squares(start + (index + i) * inner_stride, measured);
      }
      for (int i = 0; i < kRows; ++i) inverses[i] = inverse_rms(squares[i], measured, epsilon);
      for (int64_t i = 0; i < count; ++i, ++index, ++row) {
        const T* from = start + index * inner_stride;
        T* to = out + row * size;
        const float inverse = inverses[i];
        // Then every element is a number, and so is its norm and a finite multiple of that.
        const bool numbers = whole && std::isfinite(squares[i]);
        if (numbers && multiplied && finite_factor) {
          scaled<T>(from, size, inverse, scale, [=](int64_t i, float v) {
            to[i] = exactly<T>(rounded_number<T>(rounded_number<T>(v) * factor));
          });
        } else if (numbers && !multiplied) {
          scaled<T>(from, size, inverse, scale,
                    [=](int64_t i, float v) { to[i] = exactly<T>(rounded_number<T>(v)); });
        } else if (multiplied) {
          scaled<T>(from, size, inverse, scale,
                    [=](int64_t i, float v) { to[i] = T(rounded<T>(v) * factor); });
        } else {
          scaled<T>(from, size, inverse, scale, [=](int64_t i, float v) { to[i] = T(v); });
        }
      }
    }
    index = 0;
  }
}

// The arguments of each norm in one block, because converting them one by one costs Python more than
// the norm of a row. The formats in cpu.py are these structures, with native alignment.
struct RmsNorm {
  const void *x, *weight;
  void* out;
  int64_t outer, inner, outer_stride, inner_stride, size, measured;
  float epsilon;
  int kind, threads;
};

struct NormAddNorm {
  const void *x, *residual, *weight1, *weight2;
  void *z, *y;
  int64_t rows, size, x_stride, residual_stride;
  float epsilon1, epsilon2;
  int kind1, kind2, round_norm, round_sum, threads;
};

struct QkNorm {
  const void *q, *k, *weight_q, *weight_k;
  void *out_q, *out_k;
  int64_t tokens, q_heads, k_heads, q_token, q_head, k_token, k_head, size;
  float epsilon, query_scale;
  int kind_q, kind_k, multiplied, threads;
};

template <typename T>
void run(const RmsNorm& a) {
  std::vector<float> room;
  const Scale<T> scale(a.weight, a.kind, a.size, room);
  const int64_t rows = a.outer * a.inner;
#pragma omp parallel for num_threads(a.threads) if (a.threads > 1)
  for (int part = 0; part < a.threads; ++part) {
    norm_rows<T>(static_cast<const T*>(a.x), static_cast<T*>(a.out), a.inner, a.outer_stride,
                 a.inner_stride, a.size, a.measured, a.epsilon, scale, false, 1.0f,
                 rows * part / a.threads, rows * (part + 1) / a.threads);
  }
}

template <typename T>
void run(const NormAddNorm& a) {
  std::vector<float> room1, room2;
  const int64_t size = a.size;
  const bool round_norm = a.round_norm, round_sum = a.round_sum;
  const Scale<T> scale1(a.weight1, a.kind1, size, room1);
  const Scale<T> scale2(a.weight2, a.kind2, size, room2);
#pragma omp parallel num_threads(a.threads) if (a.threads > 1)
  {
    // What is normalized next. In float32 it is y itself.
    constexpr bool kept = std::is_same<T, float>::value;
    std::vector<float> sums(kept ? 0 : static_cast<size_t>(size));
#pragma omp for
    for (int64_t row = 0; row < a.rows; ++row) {
      const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
      const T* residual = static_cast<const T*>(a.residual) + row * a.residual_stride;
      T* y = static_cast<T*>(a.y) + row * size;
      T* z = static_cast<T*>(a.z) + row * size;
      float* __restrict sum = kept ? reinterpret_cast<float*>(y) : sums.data();
      const float inverse = inverse_rms(sum_of_squares(x, size), size, a.epsilon1);
      if (kept) {
        scaled<T>(x, size, inverse, scale1,
                  [=](int64_t i, float v) { sum[i] = v + float(residual[i]); });
      } else if (round_norm && round_sum) {
        scaled<T>(x, size, inverse, scale1, [=](int64_t i, float v) {
          const float total = rounded<T>(rounded<T>(v) + float(residual[i]));
          y[i] = exactly<T>(total);
          sum[i] = total;
        });
      } else {
        scaled<T>(x, size, inverse, scale1, [=](int64_t i, float v) {
          const float total = (round_norm ? rounded<T>(v) : v) + float(residual[i]);
          y[i] = T(total);
          sum[i] = round_sum ? float(y[i]) : total;
        });
      }
      const float again = inverse_rms(sum_of_squares(sum, size), size, a.epsilon2);
      scaled<T>(sum, size, again, scale2, [=](int64_t i, float v) { z[i] = T(v); });
    }
  }
}

template <typename T>
void run(const QkNorm& a) {
  std::vector<float> room_q, room_k;
  const Scale<T> scale_q(a.weight_q, a.kind_q, a.size, room_q);
  const Scale<T> scale_k(a.weight_k, a.kind_k, a.size, room_k);
#pragma omp parallel for num_threads(a.threads) if (a.threads > 1)
  for (int part = 0; part < a.threads; ++part) {
    const int64_t begin = a.tokens * part / a.threads, end = a.tokens * (part + 1) / a.threads;
    norm_rows<T>(static_cast<const T*>(a.q), static_cast<T*>(a.out_q), a.q_heads, a.q_token,
                 a.q_head, a.size, a.size, a.epsilon, scale_q, a.multiplied, a.query_scale,
                 begin * a.q_heads, end * a.q_heads);
    norm_rows<T>(static_cast<const T*>(a.k), static_cast<T*>(a.out_k), a.k_heads, a.k_token,
                 a.k_head, a.size, a.size, a.epsilon, scale_k, false, 1.0f, begin * a.k_heads,
                 end * a.k_heads);
  }
}

}  // namespace

#define NORMPORT_NORMS(suffix, T)                                                                  \
  extern "C" void rms_norm_##suffix(const void* a) { run<T>(*static_cast<const RmsNorm*>(a)); }    \
  extern "C" void norm_add_norm_##suffix(const void* a) {                                          \
    run<T>(*static_cast<const NormAddNorm*>(a));                                                   \
  }                                                                                                \
  extern "C" void qk_norm_##suffix(const void* a) { run<T>(*static_cast<const QkNorm*>(a)); }

NORMPORT_NORMS(float32, float)
NORMPORT_NORMS(bfloat16, BFloat16)
#ifdef __FLT16_MANT_DIG__
NORMPORT_NORMS(float16, _Float16)
#endif

// Metal's standard library for NVIDIA GPUs: a body for each function that `check/metal_check.h` declares, in the terms
// of clang's NVPTX target. That file comes between the two halves of this one, so what kernels may use is said once.
//
// A simdgroup is a warp, a threadgroup a block, and memory of a device or a threadgroup has the same numbers as there.
// Kernels call what meets others only where all lanes arrive, so every mask is of all lanes. Nothing is fast at the
// cost of being right: functions are within a few units in the last place, as Metal's are with safe mathematics.

#ifndef METAL_BODIES
#define METAL_BODIES

// A kernel is a function that its entry calls. Constants are ordinary memory, and scalars are the entry's own copy.
#define kernel static inline __attribute__((always_inline))
#define constant const
// What a lane holds of a matrix: see `matrices.h`.
#define MATRIX_HELD pair held, transposed; bool has_transposed;
// Kernels cannot name it; a body here may.
typedef double wide;

#else

#define INLINE inline __attribute__((always_inline))

// ── Vectors ──────────────────────────────────────────────────────────────────────────────────────
#define VECTOR_BODIES(T)                                                                     \
    INLINE T##2 make_##T##2(T x) { return T##2{x, x}; }                                      \
    INLINE T##2 make_##T##2(T x, T y) { return T##2{x, y}; }                                 \
    INLINE T##2 make_##T##2(T##2 v) { return v; }                                            \
    INLINE T##3 make_##T##3(T x) { return T##3{x, x, x}; }                                   \
    INLINE T##3 make_##T##3(T x, T y, T z) { return T##3{x, y, z}; }                         \
    INLINE T##3 make_##T##3(T##3 v) { return v; }                                            \
    INLINE T##4 make_##T##4(T x) { return T##4{x, x, x, x}; }                                \
    INLINE T##4 make_##T##4(T x, T y, T z, T w) { return T##4{x, y, z, w}; }                 \
    INLINE T##4 make_##T##4(T##2 a, T##2 b) { return T##4{a.x, a.y, b.x, b.y}; }             \
    INLINE T##4 make_##T##4(T##3 a, T w) { return T##4{a.x, a.y, a.z, w}; }                  \
    INLINE T##4 make_##T##4(T##4 v) { return v; }
VECTOR_BODIES(char)
VECTOR_BODIES(uchar)
VECTOR_BODIES(short)
VECTOR_BODIES(ushort)
VECTOR_BODIES(int)
VECTOR_BODIES(uint)
VECTOR_BODIES(long)
VECTOR_BODIES(ulong)
VECTOR_BODIES(half)
VECTOR_BODIES(float)
INLINE float2 make_float2(half2 v) { return __builtin_convertvector(v, float2); }
INLINE float3 make_float3(half3 v) { return __builtin_convertvector(v, float3); }
INLINE float4 make_float4(half4 v) { return __builtin_convertvector(v, float4); }
INLINE half2 make_half2(float2 v) { return __builtin_convertvector(v, half2); }
INLINE half4 make_half4(float4 v) { return __builtin_convertvector(v, half4); }

// ── Where a thread is ────────────────────────────────────────────────────────────────────────────
// Threadgroups have one dimension, and whole simdgroups. Lanes have other numbers than the GPU gives them, because kernels know
// which elements of a matrix Apple's hardware gives to which lane: it has 4 times bit 4, twice bit 2, bit 1 of a lane's number
// for rows and bits 3 and 0 for pairs of columns. The GPU's matrix units have bits 4, 3, 2 for rows and 1, 0 for columns.
INLINE uint unit_lane(uint lane) { return (lane & 17u) | (lane & 6u) << 1 | (lane & 8u) >> 2; }
INLINE uint own_unit_lane() { return __nvvm_read_ptx_sreg_tid_x() & 31u; }
INLINE uint lane_index() {
    uint lane = own_unit_lane();
    return (lane & 17u) | (lane & 12u) >> 1 | (lane & 2u) << 2;
}
INLINE uint thread_index() { return (__nvvm_read_ptx_sreg_tid_x() & ~31u) | lane_index(); }
INLINE void position(uint& p) { p = __nvvm_read_ptx_sreg_ctaid_x(); }
INLINE void position(uint2& p) { p = uint2{uint(__nvvm_read_ptx_sreg_ctaid_x()), uint(__nvvm_read_ptx_sreg_ctaid_y())}; }
INLINE void position(uint3& p) {
    p = uint3{uint(__nvvm_read_ptx_sreg_ctaid_x()), uint(__nvvm_read_ptx_sreg_ctaid_y()), uint(__nvvm_read_ptx_sreg_ctaid_z())};
}
struct threadgroup_position_in_grid {
    template <class P>
    INLINE operator P() const {
        P p;
        position(p);
        return p;
    }
};
struct thread_index_in_threadgroup {
    INLINE operator uint() const { return thread_index(); }
};
struct simdgroup_index_in_threadgroup {
    INLINE operator uint() const { return thread_index() >> 5; }
};
struct thread_index_in_simdgroup {
    INLINE operator uint() const { return lane_index(); }
};

namespace metal {

template <class To, class From, class>
INLINE To as_type(From value) {
    return __builtin_bit_cast(To, value);
}

// ── Arithmetic ───────────────────────────────────────────────────────────────────────────────────
#define ORDER_BODIES(T)                                   \
    INLINE T min(T a, T b) { return b < a ? b : a; }      \
    INLINE T max(T a, T b) { return a < b ? b : a; }      \
    INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }
ORDER_BODIES(int)
ORDER_BODIES(uint)
ORDER_BODIES(ulong)
ORDER_BODIES(half)
ORDER_BODIES(float)

INLINE float fabs(float x) { return __builtin_fabsf(x); }
INLINE float rint(float x) { return __builtin_rintf(x); }
INLINE float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
INLINE float dot(float2 a, float2 b) { return fma(a.y, b.y, a.x * b.x); }
INLINE float dot(float3 a, float3 b) { return fma(a.z, b.z, fma(a.y, b.y, a.x * b.x)); }
INLINE float dot(float4 a, float4 b) { return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, a.x * b.x))); }

// 2^x for a whole x, in two factors of which neither overflows before the product does.
INLINE float times_power_of_two(float y, int exponent) {
    int part = exponent >> 1;
    float first = as_type<float>(uint(part + 127) << 23), second = as_type<float>(uint(exponent - part + 127) << 23);
    return y * first * second;
}

namespace precise {

// x = n log 2 + r with |r| <= log 2 / 2, and e^r by its series.
// What is no number stays none; that is asked last, so that nobody branches.
INLINE float exp(float x) {
    float n = __builtin_rintf(min(max(x, -150.0f), 130.0f) * 1.44269504f);
    float r = fma(n, -0.693359375f, min(max(x, -150.0f), 130.0f));
    r = fma(n, 2.12194440e-4f, r);
    float y = 1.0f / 5040.0f;
    y = fma(y, r, 1.0f / 720.0f);
    y = fma(y, r, 1.0f / 120.0f);
    y = fma(y, r, 1.0f / 24.0f);
    y = fma(y, r, 1.0f / 6.0f);
    y = fma(y, r, 0.5f);
    y = fma(y, r, 1.0f);
    y = fma(y, r, 1.0f);
    y = times_power_of_two(y, int(n));
    return x == x ? y : x;
}

// The unit's own, within 2 units in the last place.
INLINE float exp2(float x) { return __nvvm_ex2_approx_f(x); }

// x = 2^n m with m between the roots of a half and of 2; log m is twice the area tangent of (m - 1) / (m + 1).
INLINE float log(float x) {
    if (!(x > 0.0f)) return x == 0.0f ? -__builtin_inff() : __builtin_nanf("");
    if (x == __builtin_inff()) return x;
    int n = 0;
    if (x < 1.17549435e-38f) {
        x *= 8388608.0f;
        n = -23;
    }
    uint bits = as_type<uint>(x);
    int up = (bits & 0x7fffffu) > 0x3504f3u;
    n += int(bits >> 23) - 127 + up;
    float m = as_type<float>((bits & 0x7fffffu) | (up ? 0x3f000000u : 0x3f800000u));
    float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    float y = fma(fma(fma(fma(1.0f / 9.0f, z, 1.0f / 7.0f), z, 0.2f), z, 1.0f / 3.0f), z * s, s);
    return fma(float(n), 0.693359375f, fma(float(n), -2.12194440e-4f, 2.0f * y));
}

INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

// An angle is a position times a frequency, which may be large: it is brought into a quarter in double precision.
INLINE float sine(float x, int quarters) {
    wide n = __builtin_rint(wide(x) * 0.63661977236758134308);
    wide r = wide(x) - n * 1.57079632679489655800;
    r -= n * 6.12323399573676603587e-17;
    wide z = r * r;
    int quarter = int(long(n) & 3) + quarters;
    wide sine = r * (1.0 + z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 - z / 39916800)))));
    wide cosine = 1.0 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 + z / 479001600)))));
    wide value = quarter & 1 ? cosine : sine;
    return float(quarter & 2 ? -value : value);
}
INLINE float sin(float x) { return sine(x, 0); }
INLINE float cos(float x) { return sine(x, 1); }

// Near 0 by its series, where a quotient of sums would cancel.
INLINE float tanh(float x) {
    float z = x * x;
    if (z < 0.12f) {
        float y = fma(fma(-1382.0f / 155925.0f, z, 62.0f / 2835.0f), z, -17.0f / 315.0f);
        y = fma(fma(y, z, 2.0f / 15.0f), z, -1.0f / 3.0f);
        return fma(y, z * x, x);
    }
    float size = 1.0f - 2.0f / (exp(2.0f * __builtin_fabsf(x)) + 1.0f);
    return x < 0.0f ? -size : size;
}

}  // namespace precise

#define SAME_FUNCTIONS                                          \
    INLINE float exp(float x) { return precise::exp(x); }       \
    INLINE float exp2(float x) { return precise::exp2(x); }     \
    INLINE float log(float x) { return precise::log(x); }       \
    INLINE float sqrt(float x) { return precise::sqrt(x); }     \
    INLINE float rsqrt(float x) { return precise::rsqrt(x); }   \
    INLINE float sin(float x) { return precise::sin(x); }       \
    INLINE float cos(float x) { return precise::cos(x); }       \
    INLINE float tanh(float x) { return precise::tanh(x); }
SAME_FUNCTIONS
namespace fast {
SAME_FUNCTIONS
}

// ── Kernels one after the other ──────────────────────────────────────────────────────────────────
// See `kernels/support/sync/grid_dependency_wait.metal`. The next kernel may be begun when every threadgroup of this one says so, or has ended: then
// it is there, and waits, when this one's last results have come.
#define OWN_WAIT
INLINE void wait_for_others() {
#ifdef BEGUN_EARLY
    __asm__ volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
INLINE void wait_for_others_if(bool needed) {
    if (needed) {
        wait_for_others();
    }
}
INLINE void let_others_begin() {
#ifdef BEGUN_EARLY
    __asm__ volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ── Tables ───────────────────────────────────────────────────────────────────────────────────────────────
// See `kernels/support/format/iq4.metal`. An instruction picks four bytes of eight by three bits each; with the fourth bit set
// it repeats a byte's sign.
#define OWN_IQ4_BYTES
INLINE uint picked_bytes(uint low, uint high, uint places) {
    uint found;
    __asm__("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(low), "r"(high), "r"(places));
    return found;
}
INLINE uint iq4_bytes(uint codes) {
    const uint low = codes & 0x07070707u;
    const uint places = picked_bytes(low | low >> 4u, 0u, 0x4420u);
    const uint negative = picked_bytes(0x3f2d1801u, 0x766a5d4fu, places);
    const uint positive = picked_bytes(0xa6998d81u, 0xf1d9c5b5u, places);
    const uint is_positive = picked_bytes((codes & 0x08080808u) << 4u, 0u, 0xba98u);
    return (negative & ~is_positive) | (positive & is_positive);
}

// ── Threads together ─────────────────────────────────────────────────────────────────────────────
INLINE void threadgroup_barrier(mem_flags) { __nvvm_bar_sync(0); }
INLINE void simdgroup_barrier(mem_flags) { __nvvm_bar_warp_sync(0xffffffffu); }

INLINE uint atomic_load_explicit(const volatile threadgroup atomic_uint* at, memory_order) {
    return __atomic_load_n((const volatile threadgroup uint*)at, __ATOMIC_RELAXED);
}
INLINE void atomic_store_explicit(volatile threadgroup atomic_uint* at, uint value, memory_order) {
    __atomic_store_n((volatile threadgroup uint*)at, value, __ATOMIC_RELAXED);
}
INLINE uint atomic_fetch_add_explicit(volatile threadgroup atomic_uint* at, uint value, memory_order) {
    return __atomic_fetch_add((volatile threadgroup uint*)at, value, __ATOMIC_RELAXED);
}

// What a lane has, named as the GPU numbers it.
INLINE int unit_of(int value, uint lane) { return __nvvm_shfl_sync_idx_i32(0xffffffffu, value, int(lane), 31); }
INLINE uint unit_of(uint value, uint lane) { return uint(unit_of(int(value), lane)); }
INLINE float unit_of(float value, uint lane) { return as_type<float>(unit_of(as_type<int>(value), lane)); }
INLINE half unit_of(half value, uint lane) { return as_type<half>(ushort(unit_of(uint(as_type<ushort>(value)), lane))); }
template <class T>
INLINE T lane_of(T value, uint lane) {
    return unit_of(value, unit_lane(lane));
}

#define SIMDGROUP_REDUCTION(T, name, combined)                          \
    INLINE T name(T a) {                                                \
        _Pragma("unroll") for (uint mask = 16u; mask > 0u; mask >>= 1) { \
            T b = simd_shuffle_xor(a, ushort(mask));                    \
            a = (combined);                                             \
        }                                                               \
        return a;                                                       \
    }
#define SIMDGROUP_BODIES(T)                                                                           \
    INLINE T simd_shuffle(T value, ushort lane) { return lane_of(value, lane); }                      \
    INLINE T simd_broadcast(T value, ushort lane) { return lane_of(value, lane); }                    \
    INLINE T simd_shuffle_xor(T value, ushort mask) { return unit_of(value, own_unit_lane() ^ unit_lane(mask)); }   \
    SIMDGROUP_REDUCTION(T, simd_sum, a + b)                                                           \
    SIMDGROUP_REDUCTION(T, simd_max, max(a, b))                                                       \
    SIMDGROUP_REDUCTION(T, simd_min, min(a, b))
SIMDGROUP_BODIES(int)
SIMDGROUP_BODIES(uint)
SIMDGROUP_BODIES(half)
SIMDGROUP_BODIES(float)

}  // namespace metal

#endif

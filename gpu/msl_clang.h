// msl_clang.h - MSL on stock clang (no CUDA toolkit): native ext_vector types, _Float16, real address spaces, NVPTX back end.
#pragma once
#define device      __attribute__((address_space(1)))
#define threadgroup __attribute__((address_space(3)))
#define constant    const
#define thread
#define MSL_FN static inline __attribute__((always_inline))
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint; typedef unsigned long ulong;
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t; typedef int int32_t; typedef unsigned int uint32_t; typedef unsigned long size_t;
typedef _Float16 half;
typedef __bf16 bfloat;
MSL_FN float bf_(ushort u) { return __builtin_bit_cast(float, uint(u) << 16); }
template<class T, int N> using vec = T __attribute__((ext_vector_type(N)));
#define V(T) typedef T T##2 __attribute__((ext_vector_type(2))); typedef T T##3 __attribute__((ext_vector_type(3))); typedef T T##4 __attribute__((ext_vector_type(4)));
V(float) V(half) V(int) V(uint) V(short) V(ushort) V(char) V(uchar) V(long) V(ulong)
typedef int bool2 __attribute__((ext_vector_type(2))); typedef int bool3 __attribute__((ext_vector_type(3))); typedef int bool4 __attribute__((ext_vector_type(4)));
#define MKC(T, U) MSL_FN T##2 mk_##T##2(U##2 a) { return __builtin_convertvector(a, T##2); } MSL_FN T##3 mk_##T##3(U##3 a) { return __builtin_convertvector(a, T##3); } MSL_FN T##4 mk_##T##4(U##4 a) { return __builtin_convertvector(a, T##4); }
#define MK(T) MKC(T, float) MKC(T, half) MKC(T, int) MKC(T, uint) MKC(T, short) MKC(T, ushort) MKC(T, char) MKC(T, uchar) MKC(T, long) MKC(T, ulong) \
  template<class A> MSL_FN auto mk_##T##2(A a) -> decltype(T(a), T##2()) { T t = T(a); return T##2{t, t}; } MSL_FN T##2 mk_##T##2(T a, T b) { return T##2{a, b}; } \
  template<class A> MSL_FN auto mk_##T##3(A a) -> decltype(T(a), T##3()) { T t = T(a); return T##3{t, t, t}; } MSL_FN T##3 mk_##T##3(T a, T b, T c) { return T##3{a, b, c}; } \
  template<class A> MSL_FN auto mk_##T##4(A a) -> decltype(T(a), T##4()) { T t = T(a); return T##4{t, t, t, t}; } MSL_FN T##4 mk_##T##4(T a, T b, T c, T d) { return T##4{a, b, c, d}; } \
  MSL_FN T##4 mk_##T##4(T##2 a, T##2 b) { return T##4{a.x, a.y, b.x, b.y}; } MSL_FN T##4 mk_##T##4(T##3 a, T b) { return T##4{a.x, a.y, a.z, b}; }
MK(float) MK(half) MK(int) MK(uint) MK(short) MK(ushort) MK(char) MK(uchar) MK(long) MK(ulong)
#define float2(...) mk_float2(__VA_ARGS__)
#define float3(...) mk_float3(__VA_ARGS__)
#define float4(...) mk_float4(__VA_ARGS__)
#define half2(...) mk_half2(__VA_ARGS__)
#define half4(...) mk_half4(__VA_ARGS__)
#define uint2(...) mk_uint2(__VA_ARGS__)
#define uint3(...) mk_uint3(__VA_ARGS__)
#define uint4(...) mk_uint4(__VA_ARGS__)
#define char4(...) mk_char4(__VA_ARGS__)
#define ulong2(...) mk_ulong2(__VA_ARGS__)
constexpr half operator""h(long double v) { return half(v); }
typedef uchar packed_uchar4 __attribute__((ext_vector_type(4), aligned(1)));
template<class To, class From> MSL_FN To as_type(From f) { return __builtin_bit_cast(To, f); }
MSL_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#define VF(T, N) MSL_FN T##N fma(T##N a, T##N b, T##N c) { return __builtin_elementwise_fma(a, b, c); }
VF(float, 2) VF(float, 3) VF(float, 4) VF(half, 2) VF(half, 4)
MSL_FN float dot(float2 a, float2 b) { return fma(a.y, b.y, a.x * b.x); } MSL_FN float dot(float3 a, float3 b) { return fma(a.z, b.z, fma(a.y, b.y, a.x * b.x)); } MSL_FN float dot(float4 a, float4 b) { return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, a.x * b.x))); }
MSL_FN float exp2(float x) { return __nvvm_ex2_approx_f(x); } MSL_FN float exp(float x) { return __nvvm_ex2_approx_f(x * 1.44269504f); } MSL_FN float rsqrt(float x) { return __nvvm_rsqrt_approx_f(x); }
namespace fast { using ::exp; using ::rsqrt; } namespace precise { MSL_FN float rsqrt(float x) { return __nvvm_div_rn_f(1.0f, __nvvm_sqrt_rn_f(x)); } }
#define MM(T) MSL_FN T max(T a, T b) { return a < b ? b : a; } MSL_FN T min(T a, T b) { return b < a ? b : a; } MSL_FN T clamp(T x, T a, T b) { return min(max(x, a), b); }
MM(float) MM(half) MM(int) MM(uint) MM(ushort) MM(long) MM(ulong)
template<class T> MSL_FN T select(T a, T b, bool c) { return c ? b : a; } MSL_FN bool any(bool3 v) { return (v.x | v.y | v.z) != 0; } MSL_FN bool all(bool3 v) { return v.x && v.y && v.z; } MSL_FN uint popcount(uint x) { return __builtin_popcount(x); }
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
MSL_FN void threadgroup_barrier(mem_flags) { __nvvm_bar_sync(0); }
MSL_FN void simdgroup_barrier(mem_flags) { __nvvm_bar_warp_sync(0xffffffffu); }
template<class T, class F> MSL_FN T words(T v, F f) { if constexpr (sizeof(T) == 4) return __builtin_bit_cast(T, f(__builtin_bit_cast(int, v))); else if constexpr (sizeof(T) == 2) return __builtin_bit_cast(T, ushort(f(int(__builtin_bit_cast(ushort, v))))); else { struct W { int w[sizeof(T) / 4]; } w = __builtin_bit_cast(W, v); for (unsigned i = 0; i < sizeof(T) / 4; i++) w.w[i] = f(w.w[i]); return __builtin_bit_cast(T, w); } }
template<class T> MSL_FN T simd_shuffle_xor(T v, ushort m) { return words(v, [=](int w) __attribute__((always_inline)) { return __nvvm_shfl_sync_bfly_i32(0xffffffffu, w, m, 31); }); }
template<class T> MSL_FN T simd_shuffle(T v, ushort l) { return words(v, [=](int w) __attribute__((always_inline)) { return __nvvm_shfl_sync_idx_i32(0xffffffffu, w, l, 31); }); }
template<class T> MSL_FN T simd_shuffle_up(T v, ushort d) { return words(v, [=](int w) __attribute__((always_inline)) { return __nvvm_shfl_sync_up_i32(0xffffffffu, w, d, 0); }); }
template<class T> MSL_FN T simd_sum(T v) { for (int m = 16; m; m >>= 1) v = v + simd_shuffle_xor(v, ushort(m)); return v; }
template<class T> MSL_FN T simd_max(T v) { for (int m = 16; m; m >>= 1) v = max(v, simd_shuffle_xor(v, ushort(m))); return v; }
template<class T> MSL_FN T simd_broadcast_first(T v) { return simd_shuffle(v, ushort(0)); }
MSL_FN uint lane_() { return __nvvm_read_ptx_sreg_laneid(); }
template<class T> MSL_FN T simd_prefix_inclusive_sum(T v) { uint l = lane_(); for (int d = 1; d < 32; d <<= 1) { T o = simd_shuffle_up(v, ushort(d)); if (l >= uint(d)) v = v + o; } return v; }
struct simd_vote { uint v; explicit inline __attribute__((always_inline)) operator ulong() const { return v; } }; MSL_FN simd_vote simd_ballot(bool b) { return simd_vote{uint(__nvvm_vote_ballot_sync(0xffffffffu, b))}; }
template<class T, int R = 8, int C = 8> struct simdgroup_matrix { vec<T, 2> e; __attribute__((always_inline)) vec<T, 2>& thread_elements() { return e; } __attribute__((always_inline)) const vec<T, 2>& thread_elements() const { return e; } simdgroup_matrix() = default; explicit __attribute__((always_inline)) simdgroup_matrix(T v) { uint l = lane_(), r = ((l >> 2) & 4u) + ((l >> 1) & 3u), c = ((l >> 2) & 2u) * 2u + (l & 1u) * 2u; e = vec<T, 2>{r == c ? v : T(0), r == c + 1 ? v : T(0)}; } };
template<class T, int R, int C> MSL_FN simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) { simdgroup_matrix<T, R, C> m; m.e = vec<T, 2>{v, v}; return m; }
MSL_FN uint row_() { uint l = lane_(); return ((l >> 2) & 4u) + ((l >> 1) & 3u); }
MSL_FN uint col_() { uint l = lane_(); return ((l >> 2) & 2u) * 2u + (l & 1u) * 2u; }
MSL_FN uint at_(uint r, uint c) { return ((r >> 2) << 4) | ((c >> 2) << 3) | ((r & 3u) << 1) | ((c >> 1) & 1u); }
#define SG(AS) template<class T> MSL_FN void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const AS T* p, ulong ld = 8, vec<ulong, 2> o = vec<ulong, 2>{0, 0}, bool tr = false) { uint r = row_(), c = col_(); p += o.y * ld + o.x; m.e = tr ? vec<T, 2>{p[c * ld + r], p[(c + 1) * ld + r]} : vec<T, 2>{p[r * ld + c], p[r * ld + c + 1]}; } \
  template<class T> MSL_FN void simdgroup_store(simdgroup_matrix<T, 8, 8> m, AS T* p, ulong ld = 8, vec<ulong, 2> o = vec<ulong, 2>{0, 0}) { uint r = row_(), c = col_(); p += o.y * ld + o.x; p[r * ld + c] = m.e.x; p[r * ld + c + 1] = m.e.y; }
SG(device) SG(threadgroup)
typedef simdgroup_matrix<float, 8, 8> mf_; typedef simdgroup_matrix<half, 8, 8> mh_;
template<class A, class B, class C> MSL_FN void simdgroup_multiply_accumulate(mf_& D, A a, B b, C c) { uint r = row_(), q = col_(); float d0 = c.e.x, d1 = c.e.y;
  for (uint k = 0; k < 8; k++) { uint la = at_(r, k), lb = at_(k, q); float ax = simd_shuffle(float(a.e.x), ushort(la)), ay = simd_shuffle(float(a.e.y), ushort(la)); float x = (k & 1) ? ay : ax; d0 = fma(x, simd_shuffle(float(b.e.x), ushort(lb)), d0); d1 = fma(x, simd_shuffle(float(b.e.y), ushort(lb)), d1); } D.e = vec<float, 2>{d0, d1}; }
template<class A, class B> MSL_FN void simdgroup_multiply(mf_& D, A a, B b) { mf_ z; z.e = vec<float, 2>{0.0f, 0.0f}; simdgroup_multiply_accumulate(D, a, b, z); }
template<class T> MSL_FN T simd_min(T v) { for (int m = 16; m; m >>= 1) v = min(v, simd_shuffle_xor(v, ushort(m))); return v; }
MSL_FN float fabs(float x) { return __builtin_fabsf(x); }
namespace precise {
MSL_FN double poly_(double r, bool s) { double z = r * r; return s ? r * (1 + z * (-1.0/6 + z * (1.0/120 + z * (-1.0/5040 + z * (1.0/362880 + z * (-1.0/39916800)))))) : 1 + z * (-0.5 + z * (1.0/24 + z * (-1.0/720 + z * (1.0/40320 + z * (-1.0/3628800 + z / 479001600))))); }
MSL_FN float trig_(float x, int add) { double y = double(x) * 0.63661977236758134308; double k = __nvvm_round_d(y); double r = double(x) - k * 1.57079632679489661923; int q = (int(k) + add) & 3; double v = poly_(r, (q & 1) == 0); return float(q & 2 ? -v : v); }
MSL_FN float sin(float x) { return trig_(x, 0); } MSL_FN float cos(float x) { return trig_(x, 1); }
MSL_FN float exp(float x) { double y = double(x) * 1.44269504088896340736; if (y < -160) return 0.0f; if (y > 130) return __builtin_inff(); double k = __nvvm_round_d(y), r = (y - k) * 0.69314718055994530942; double p = 1 + r * (1 + r * (0.5 + r * (1.0/6 + r * (1.0/24 + r * (1.0/120 + r * (1.0/720 + r * (1.0/5040 + r / 40320))))))); return float(p * __builtin_bit_cast(double, (long)(int(k) + 1023) << 52)); }
MSL_FN float log(float x) { return __nvvm_lg2_approx_f(x) * 0.69314718f; }
MSL_FN float tanh(float x) { float e = exp(2.0f * x); return 1.0f - 2.0f / (e + 1.0f); }
}
MSL_FN float log(float x) { return precise::log(x); } MSL_FN float tanh(float x) { return precise::tanh(x); } MSL_FN float sqrt(float x) { return __nvvm_sqrt_rn_f(x); } MSL_FN float abs(float x) { return __builtin_fabsf(x); } MSL_FN float rint(float x) { return __builtin_rintf(x); }
enum memory_order { memory_order_relaxed }; typedef uint atomic_uint;
#define AT(AS, NM, OP) MSL_FN uint NM(AS atomic_uint* p, uint v, memory_order) { return __nvvm_atom_add_gen_i((int*)p, int(v)); }
#define ATS(AS) MSL_FN uint atomic_fetch_add_explicit(AS atomic_uint* p, uint v, memory_order) { return __scoped_atomic_fetch_add((uint*)p, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE); } MSL_FN uint atomic_fetch_max_explicit(AS atomic_uint* p, uint v, memory_order) { return __scoped_atomic_fetch_max((uint*)p, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE); } \
  MSL_FN void atomic_store_explicit(AS atomic_uint* p, uint v, memory_order) { *(volatile uint*)p = v; } MSL_FN uint atomic_load_explicit(AS atomic_uint* p, memory_order) { return *(volatile uint*)p; }
ATS(device) ATS(threadgroup)
#define INFINITY __builtin_inff()
struct u3_ { uint x, y, z; };
#define TID_ ((uint)__nvvm_read_ptx_sreg_tid_x())
#define BID_(d) ((uint)__nvvm_read_ptx_sreg_ctaid_##d())
#define BD_ ((uint)__nvvm_read_ptx_sreg_ntid_x())

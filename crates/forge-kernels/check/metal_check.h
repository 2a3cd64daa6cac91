// The part of Metal's standard library that kernels may use, as declarations: clang checks their types with it.
//
// Address spaces are real, so a pointer into `device` is no pointer into `threadgroup`. Nothing here has a body and
// nothing can be linked. A function that is missing here is one that the simulator and other devices do not have.
//
// `ptx/metal_ptx.h` gives what is declared here bodies, for another GPU: it says first what a kernel is there, where
// constants lie and what a lane holds of a matrix.

#ifndef METAL_BODIES
#define kernel
#define constant __attribute__((address_space(2)))
#define MATRIX_HELD
#endif
#define thread
#define device __attribute__((address_space(1)))
#define threadgroup __attribute__((address_space(3)))

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;

constexpr half operator""h(long double value) {
    return half(value);
}

// Metal has no such type, and rejects code that names it.
#define double metal_has_no_double

// Vectors, and their constructors. `float4(...)` is a macro's call; `float4 x` is no call, and means the type. What is
// deleted would be found by making vectors of scalars, which clang does on its own.
#define VECTORS(T)                                        \
    typedef T T##2 __attribute__((ext_vector_type(2)));   \
    typedef T T##3 __attribute__((ext_vector_type(3)));   \
    typedef T T##4 __attribute__((ext_vector_type(4)));   \
    T##2 make_##T##2(T);                                  \
    T##2 make_##T##2(T, T);                               \
    T##2 make_##T##2(T##2);                               \
    T##3 make_##T##3(T);                                  \
    T##3 make_##T##3(T, T, T);                            \
    T##3 make_##T##3(T##3);                               \
    T##3 make_##T##3(T, T) = delete;                      \
    T##4 make_##T##4(T);                                  \
    T##4 make_##T##4(T, T, T, T);                         \
    T##4 make_##T##4(T##2, T##2);                         \
    T##4 make_##T##4(T##3, T);                            \
    T##4 make_##T##4(T##4);                               \
    T##4 make_##T##4(T, T) = delete;                      \
    T##4 make_##T##4(T, T, T) = delete;

VECTORS(char)
VECTORS(uchar)
VECTORS(short)
VECTORS(ushort)
VECTORS(int)
VECTORS(uint)
VECTORS(long)
VECTORS(ulong)
VECTORS(half)
VECTORS(float)

// Conversions between element types are spelled out by kernels, and these are those that exist.
float2 make_float2(half2);
float3 make_float3(half3);
float4 make_float4(half4);
half2 make_half2(float2);
half4 make_half4(float4);

#define char4(...) make_char4(__VA_ARGS__)
#define uchar4(...) make_uchar4(__VA_ARGS__)
#define int2(...) make_int2(__VA_ARGS__)
#define int4(...) make_int4(__VA_ARGS__)
#define uint2(...) make_uint2(__VA_ARGS__)
#define uint3(...) make_uint3(__VA_ARGS__)
#define uint4(...) make_uint4(__VA_ARGS__)
#define ulong2(...) make_ulong2(__VA_ARGS__)
#define half2(...) make_half2(__VA_ARGS__)
#define half4(...) make_half4(__VA_ARGS__)
#define float2(...) make_float2(__VA_ARGS__)
#define float3(...) make_float3(__VA_ARGS__)
#define float4(...) make_float4(__VA_ARGS__)

namespace metal {

template <bool>
struct only_if {};
template <>
struct only_if<true> {
    typedef void yes;
};

template <class To, class From, class = typename only_if<sizeof(To) == sizeof(From)>::yes>
To as_type(From value);

// Arithmetic. Arguments of one call have one type.
#define SAME_TYPE(T)  \
    T min(T, T);      \
    T max(T, T);      \
    T clamp(T, T, T);
SAME_TYPE(int)
SAME_TYPE(uint)
SAME_TYPE(ulong)
SAME_TYPE(half)
SAME_TYPE(float)

#define FUNCTIONS         \
    float exp(float);     \
    float exp2(float);    \
    float log(float);     \
    float sqrt(float);    \
    float rsqrt(float);   \
    float sin(float);     \
    float cos(float);     \
    float tanh(float);
FUNCTIONS
namespace fast {
FUNCTIONS
}
namespace precise {
FUNCTIONS
}

float fabs(float);
float rint(float);
float fma(float, float, float);
float dot(float2, float2);
float dot(float3, float3);
float dot(float4, float4);

// Threads together.
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

// Words that threads of a threadgroup add to in any order. A class would need constructors, which clang has none of for
// memory of a threadgroup.
enum memory_order { memory_order_relaxed };
enum class atomic_uint : uint {};
uint atomic_load_explicit(const volatile threadgroup atomic_uint*, memory_order);
void atomic_store_explicit(volatile threadgroup atomic_uint*, uint, memory_order);
uint atomic_fetch_add_explicit(volatile threadgroup atomic_uint*, uint, memory_order);

#define SIMDGROUP(T)               \
    T simd_sum(T);                 \
    T simd_max(T);                 \
    T simd_min(T);                 \
    T simd_shuffle(T, ushort);     \
    T simd_shuffle_xor(T, ushort); \
    T simd_broadcast(T, ushort);
SIMDGROUP(int)
SIMDGROUP(uint)
SIMDGROUP(half)
SIMDGROUP(float)

// Matrices that a simdgroup holds together.
template <class T, int Columns, int Rows>
struct simdgroup_matrix {
    typedef T pair __attribute__((ext_vector_type(2)));
    MATRIX_HELD
    thread pair& thread_elements();
};

template <class T, int Columns, int Rows>
simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value);

#define MATRIX_MEMORY(space)                                                                                      \
    template <class T>                                                                                            \
    void simdgroup_load(                                                                                          \
        simdgroup_matrix<T, 8, 8>& matrix, const space T* source, ulong elements_per_row = 8, ulong2 origin = 0,  \
        bool transpose = false);                                                                                  \
    template <class T>                                                                                            \
    void simdgroup_store(                                                                                         \
        simdgroup_matrix<T, 8, 8> matrix, space T* target, ulong elements_per_row = 8, ulong2 origin = 0,         \
        bool transpose = false);
MATRIX_MEMORY(device)
MATRIX_MEMORY(threadgroup)

// Halves may be added up as floats, and met by floats.
template <class T, class U>
void simdgroup_multiply(simdgroup_matrix<T, 8, 8>& product, simdgroup_matrix<U, 8, 8>, simdgroup_matrix<U, 8, 8>);
template <class T, class U, class V>
void simdgroup_multiply_accumulate(
    simdgroup_matrix<T, 8, 8>& sum, simdgroup_matrix<U, 8, 8>, simdgroup_matrix<V, 8, 8>, simdgroup_matrix<T, 8, 8>);

}  // namespace metal

// Scalar and vector types, their constructors, and as_type. There is no bfloat: kernels load such numbers as ushort and
// widen them by a shift, which every Metal has.
#pragma once
#define device
#define constant const
#define threadgroup
#define thread
#define kernel static __attribute__((noinline))
#define FORGE_INLINE static inline __attribute__((always_inline))

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef _Float16 half;

constexpr half operator""h(long double value) { return half(value); }
constexpr half operator""h(unsigned long long value) { return half(value); }

#define FORGE_VECTORS(T)                                   \
    typedef T T##2 __attribute__((ext_vector_type(2)));    \
    typedef T T##3 __attribute__((ext_vector_type(3)));    \
    typedef T T##4 __attribute__((ext_vector_type(4)));
FORGE_VECTORS(char)
FORGE_VECTORS(uchar)
FORGE_VECTORS(short)
FORGE_VECTORS(ushort)
FORGE_VECTORS(int)
FORGE_VECTORS(uint)
// Vectors of three and four longs are wider than any access that is watched, so there are none.
typedef long long2 __attribute__((ext_vector_type(2)));
typedef ulong ulong2 __attribute__((ext_vector_type(2)));
FORGE_VECTORS(half)
FORGE_VECTORS(float)
// A comparison of vectors of 4-byte elements gives this; of others, a vector of integers of their size.
typedef int bool2 __attribute__((ext_vector_type(2)));
typedef int bool3 __attribute__((ext_vector_type(3)));
typedef int bool4 __attribute__((ext_vector_type(4)));

namespace metal {
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));
}

// What a type is made of: itself once, or the elements of a vector.
template <class V> struct forge_shape {
    using element = V;
    static constexpr int count = 1;
    static constexpr bool vector = false;
};
template <class T, int N> struct forge_shape<T __attribute__((ext_vector_type(N)))> {
    using element = T;
    static constexpr int count = N;
    static constexpr bool vector = true;
};

template <class A, class B> struct forge_same { static constexpr bool value = false; };
template <class A> struct forge_same<A, A> { static constexpr bool value = true; };
template <bool C, class T = void> struct forge_enable {};
template <class T> struct forge_enable<true, T> { using type = T; };

// Component K of a list of scalars and vectors.
template <int K, class A, class... Rest> FORGE_INLINE auto forge_component(A first, Rest... rest) {
    if constexpr (K >= forge_shape<A>::count) return forge_component<K - forge_shape<A>::count>(rest...);
    else if constexpr (forge_shape<A>::vector) return first[K];
    else return first;
}

template <class T, int N, class... A> FORGE_INLINE metal::vec<T, N> forge_build(A... parts) {
    constexpr int given = (0 + ... + forge_shape<A>::count);
    using V = metal::vec<T, N>;
    if constexpr (sizeof...(A) == 0) return V(T(0));
    else if constexpr (sizeof...(A) == 1 && given == 1) return V(T(forge_component<0>(parts...)));
    else {
        static_assert(given == N, "a vector is made of one scalar, or of exactly as many components as it has");
        if constexpr (N == 2) return V{T(forge_component<0>(parts...)), T(forge_component<1>(parts...))};
        else if constexpr (N == 3)
            return V{T(forge_component<0>(parts...)), T(forge_component<1>(parts...)), T(forge_component<2>(parts...))};
        else
            return V{T(forge_component<0>(parts...)), T(forge_component<1>(parts...)), T(forge_component<2>(parts...)),
                     T(forge_component<3>(parts...))};
    }
}
namespace metal {
using ::forge_build;
}

#define char2(...) forge_build<char, 2>(__VA_ARGS__)
#define char3(...) forge_build<char, 3>(__VA_ARGS__)
#define char4(...) forge_build<char, 4>(__VA_ARGS__)
#define uchar2(...) forge_build<uchar, 2>(__VA_ARGS__)
#define uchar3(...) forge_build<uchar, 3>(__VA_ARGS__)
#define uchar4(...) forge_build<uchar, 4>(__VA_ARGS__)
#define short2(...) forge_build<short, 2>(__VA_ARGS__)
#define short3(...) forge_build<short, 3>(__VA_ARGS__)
#define short4(...) forge_build<short, 4>(__VA_ARGS__)
#define ushort2(...) forge_build<ushort, 2>(__VA_ARGS__)
#define ushort3(...) forge_build<ushort, 3>(__VA_ARGS__)
#define ushort4(...) forge_build<ushort, 4>(__VA_ARGS__)
#define int2(...) forge_build<int, 2>(__VA_ARGS__)
#define int3(...) forge_build<int, 3>(__VA_ARGS__)
#define int4(...) forge_build<int, 4>(__VA_ARGS__)
#define uint2(...) forge_build<uint, 2>(__VA_ARGS__)
#define uint3(...) forge_build<uint, 3>(__VA_ARGS__)
#define uint4(...) forge_build<uint, 4>(__VA_ARGS__)
#define long2(...) forge_build<long, 2>(__VA_ARGS__)
#define ulong2(...) forge_build<ulong, 2>(__VA_ARGS__)
#define half2(...) forge_build<half, 2>(__VA_ARGS__)
#define half3(...) forge_build<half, 3>(__VA_ARGS__)
#define half4(...) forge_build<half, 4>(__VA_ARGS__)
#define float2(...) forge_build<float, 2>(__VA_ARGS__)
#define float3(...) forge_build<float, 3>(__VA_ARGS__)
#define float4(...) forge_build<float, 4>(__VA_ARGS__)
#define bool2(...) forge_build<int, 2>(__VA_ARGS__)
#define bool3(...) forge_build<int, 3>(__VA_ARGS__)
#define bool4(...) forge_build<int, 4>(__VA_ARGS__)

// Vectors without padding, aligned as their elements are: read and written element by element.
template <class T, int N> struct forge_packed {
    T part[N];
    forge_packed() = default;
    inline __attribute__((always_inline)) forge_packed(metal::vec<T, N> value) {
        for (int i = 0; i < N; i++) part[i] = value[i];
    }
    inline __attribute__((always_inline)) operator metal::vec<T, N>() const {
        metal::vec<T, N> value;
        for (int i = 0; i < N; i++) value[i] = part[i];
        return value;
    }
    inline __attribute__((always_inline)) T& operator[](int i) { return part[i]; }
    inline __attribute__((always_inline)) T operator[](int i) const { return part[i]; }
};
#define FORGE_PACKED(T)                      \
    typedef forge_packed<T, 2> packed_##T##2; \
    typedef forge_packed<T, 3> packed_##T##3; \
    typedef forge_packed<T, 4> packed_##T##4;
FORGE_PACKED(char)
FORGE_PACKED(uchar)
FORGE_PACKED(short)
FORGE_PACKED(ushort)
FORGE_PACKED(int)
FORGE_PACKED(uint)
FORGE_PACKED(half)
FORGE_PACKED(float)

namespace metal {
template <class To, class From> FORGE_INLINE To as_type(From value) {
    static_assert(sizeof(To) == sizeof(From), "as_type is between types of one size");
    return __builtin_bit_cast(To, value);
}
}

#define INFINITY __builtin_inff()
#define HUGE_VALF __builtin_inff()
#define NAN __builtin_nanf("")
#define MAXFLOAT 3.40282346638528859812e+38f
#define FLT_MAX 3.40282346638528859812e+38f
#define FLT_MIN 1.17549435e-38f
#define FLT_EPSILON 1.19209290e-07f
#define HALF_MAX 65504.0h
#define M_PI_F 3.14159274101257f
#define M_LOG2E_F 1.44269504088896f
#define M_LN2_F 0.69314718055994f
#define UCHAR_MAX 255
#define CHAR_MAX 127
#define USHRT_MAX 65535
#define SHRT_MAX 32767
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define ULONG_MAX 18446744073709551615ul

// min, max, clamp, abs and select on every scalar and vector type, and the bit operations.
#pragma once

namespace metal {
// Not templates over T alone: arguments of two types must be ambiguous here, as they are in Metal. Metal leaves open what comes of
// what is not a number: here it is lost, so that whoever counts on it to stay is found out.
#define FORGE_ORDER(T)                                                                                          \
    FORGE_INLINE T min(T a, T b) { return b < a || a != a ? b : a; }                                            \
    FORGE_INLINE T max(T a, T b) { return a < b || a != a ? b : a; }                                            \
    FORGE_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }                                 \
    FORGE_INLINE T min3(T a, T b, T c) { return min(a, min(b, c)); }                                            \
    FORGE_INLINE T max3(T a, T b, T c) { return max(a, max(b, c)); }
FORGE_ORDER(char)
FORGE_ORDER(uchar)
FORGE_ORDER(short)
FORGE_ORDER(ushort)
FORGE_ORDER(int)
FORGE_ORDER(uint)
FORGE_ORDER(long)
FORGE_ORDER(ulong)
FORGE_ORDER(half)
FORGE_ORDER(float)

#define FORGE_VECTOR_ORDER(name)                                                                                \
    template <class T, int N> FORGE_INLINE vec<T, N> name(vec<T, N> a, vec<T, N> b) {                           \
        vec<T, N> r;                                                                                            \
        for (int i = 0; i < N; i++) r[i] = name(T(a[i]), T(b[i]));                                              \
        return r;                                                                                               \
    }                                                                                                           \
    template <class T, int N> FORGE_INLINE vec<T, N> name(vec<T, N> a, T b) { return name(a, vec<T, N>(b)); }   \
    template <class T, int N> FORGE_INLINE vec<T, N> name(T a, vec<T, N> b) { return name(vec<T, N>(a), b); }
FORGE_VECTOR_ORDER(min)
FORGE_VECTOR_ORDER(max)
template <class T, int N> FORGE_INLINE vec<T, N> clamp(vec<T, N> x, vec<T, N> low, vec<T, N> high) {
    return min(max(x, low), high);
}
template <class T, int N> FORGE_INLINE vec<T, N> clamp(vec<T, N> x, T low, T high) { return min(max(x, low), high); }

FORGE_INLINE int abs(int x) { return x < 0 ? -x : x; }
FORGE_INLINE long abs(long x) { return x < 0 ? -x : x; }
FORGE_INLINE short abs(short x) { return short(x < 0 ? -x : x); }
FORGE_INLINE char abs(char x) { return char(x < 0 ? -x : x); }
FORGE_INLINE float abs(float x) { return __builtin_fabsf(x); }
FORGE_INLINE half abs(half x) { return half(__builtin_fabsf(float(x))); }
template <class T, int N> FORGE_INLINE vec<T, N> abs(vec<T, N> v) {
    vec<T, N> r;
    for (int i = 0; i < N; i++) r[i] = abs(T(v[i]));
    return r;
}

template <class T> FORGE_INLINE T select(T a, T b, bool c) { return c ? b : a; }
template <class T, class B, int N> FORGE_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<B, N> c) {
    vec<T, N> r;
    for (int i = 0; i < N; i++) r[i] = c[i] ? b[i] : a[i];
    return r;
}
FORGE_INLINE bool any(bool v) { return v; }
FORGE_INLINE bool all(bool v) { return v; }
template <class B, int N> FORGE_INLINE bool any(vec<B, N> v) {
    bool r = false;
    for (int i = 0; i < N; i++) r = r || v[i] != 0;
    return r;
}
template <class B, int N> FORGE_INLINE bool all(vec<B, N> v) {
    bool r = true;
    for (int i = 0; i < N; i++) r = r && v[i] != 0;
    return r;
}

FORGE_INLINE uint popcount(uint x) { return uint(__builtin_popcount(x)); }
FORGE_INLINE int popcount(int x) { return __builtin_popcount(uint(x)); }
FORGE_INLINE ulong popcount(ulong x) { return ulong(__builtin_popcountl(x)); }
FORGE_INLINE uint clz(uint x) { return x ? uint(__builtin_clz(x)) : 32u; }
FORGE_INLINE uint ctz(uint x) { return x ? uint(__builtin_ctz(x)) : 32u; }
FORGE_INLINE ulong clz(ulong x) { return x ? ulong(__builtin_clzl(x)) : 64ul; }
FORGE_INLINE ulong ctz(ulong x) { return x ? ulong(__builtin_ctzl(x)) : 64ul; }
FORGE_INLINE uint reverse_bits(uint x) { return __builtin_bitreverse32(x); }
FORGE_INLINE uint rotate(uint x, uint n) { return __builtin_rotateleft32(x, n); }
FORGE_INLINE uint mulhi(uint a, uint b) { return uint((ulong(a) * ulong(b)) >> 32); }
FORGE_INLINE int mulhi(int a, int b) { return int((long(a) * long(b)) >> 32); }
FORGE_INLINE uint extract_bits(uint x, uint offset, uint bits) {
    return bits == 0u ? 0u : (bits >= 32u ? x >> offset : (x >> offset) & ((1u << bits) - 1u));
}
FORGE_INLINE uint insert_bits(uint base, uint value, uint offset, uint bits) {
    uint mask = (bits >= 32u ? 0xffffffffu : (1u << bits) - 1u) << offset;
    return (base & ~mask) | ((value << offset) & mask);
}
}

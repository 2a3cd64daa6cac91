// Arithmetic on floats and halves, and on vectors of them, element by element.
#pragma once

// A function of one, two or three floats, for half and for vectors too.
#define FORGE_MATH1(name, expression)                                                                \
    FORGE_INLINE float name(float x) { return (expression); }                                        \
    FORGE_INLINE half name(half h) { float x = float(h); return half(expression); }                  \
    template <class T, int N> FORGE_INLINE vec<T, N> name(vec<T, N> v) {                             \
        vec<T, N> r;                                                                                 \
        for (int i = 0; i < N; i++) r[i] = name(T(v[i]));                                            \
        return r;                                                                                    \
    }
#define FORGE_MATH2(name, expression)                                                                \
    FORGE_INLINE float name(float x, float y) { return (expression); }                               \
    FORGE_INLINE half name(half a, half b) { float x = float(a), y = float(b); return half(expression); } \
    template <class T, int N> FORGE_INLINE vec<T, N> name(vec<T, N> a, vec<T, N> b) {                \
        vec<T, N> r;                                                                                 \
        for (int i = 0; i < N; i++) r[i] = name(T(a[i]), T(b[i]));                                   \
        return r;                                                                                    \
    }
#define FORGE_MATH3(name, expression)                                                                \
    FORGE_INLINE float name(float x, float y, float z) { return (expression); }                      \
    FORGE_INLINE half name(half a, half b, half c) {                                                 \
        float x = float(a), y = float(b), z = float(c);                                              \
        return half(expression);                                                                     \
    }                                                                                                \
    template <class T, int N> FORGE_INLINE vec<T, N> name(vec<T, N> a, vec<T, N> b, vec<T, N> c) {   \
        vec<T, N> r;                                                                                 \
        for (int i = 0; i < N; i++) r[i] = name(T(a[i]), T(b[i]), T(c[i]));                          \
        return r;                                                                                    \
    }
#define FORGE_TRUTH(name, expression)                                                                \
    FORGE_INLINE bool name(float x) { return (expression); }                                         \
    FORGE_INLINE bool name(half h) { float x = float(h); return (expression); }                      \
    template <class T, int N> FORGE_INLINE vec<int, N> name(vec<T, N> v) {                           \
        vec<int, N> r;                                                                               \
        for (int i = 0; i < N; i++) r[i] = name(T(v[i])) ? -1 : 0;                                   \
        return r;                                                                                    \
    }

#define FORGE_TRANSCENDENTAL                                                                         \
    FORGE_MATH1(exp, __builtin_expf(x))                                                              \
    FORGE_MATH1(exp2, __builtin_exp2f(x))                                                            \
    FORGE_MATH1(exp10, __builtin_powf(10.0f, x))                                                     \
    FORGE_MATH1(log, __builtin_logf(x))                                                              \
    FORGE_MATH1(log2, __builtin_log2f(x))                                                            \
    FORGE_MATH1(log10, __builtin_log10f(x))                                                          \
    FORGE_MATH1(sqrt, __builtin_sqrtf(x))                                                            \
    FORGE_MATH1(rsqrt, 1.0f / __builtin_sqrtf(x))                                                    \
    FORGE_MATH1(sin, __builtin_sinf(x))                                                              \
    FORGE_MATH1(cos, __builtin_cosf(x))                                                              \
    FORGE_MATH1(tan, __builtin_tanf(x))                                                              \
    FORGE_MATH1(asin, __builtin_asinf(x))                                                            \
    FORGE_MATH1(acos, __builtin_acosf(x))                                                            \
    FORGE_MATH1(atan, __builtin_atanf(x))                                                            \
    FORGE_MATH1(sinh, __builtin_sinhf(x))                                                            \
    FORGE_MATH1(cosh, __builtin_coshf(x))                                                            \
    FORGE_MATH1(tanh, __builtin_tanhf(x))                                                            \
    FORGE_MATH2(atan2, __builtin_atan2f(x, y))                                                       \
    FORGE_MATH2(pow, __builtin_powf(x, y))                                                           \
    FORGE_MATH2(powr, __builtin_powf(x, y))                                                          \
    FORGE_MATH2(divide, x / y)

namespace metal {
FORGE_TRANSCENDENTAL
namespace precise {
FORGE_TRANSCENDENTAL
}
namespace fast {
FORGE_TRANSCENDENTAL
}

FORGE_MATH1(fabs, __builtin_fabsf(x))
FORGE_MATH1(floor, __builtin_floorf(x))
FORGE_MATH1(ceil, __builtin_ceilf(x))
FORGE_MATH1(trunc, __builtin_truncf(x))
FORGE_MATH1(round, __builtin_roundf(x))
FORGE_MATH1(rint, __builtin_rintf(x))
FORGE_MATH1(fract, x - __builtin_floorf(x))
FORGE_MATH1(saturate, x < 0.0f ? 0.0f : (x > 1.0f ? 1.0f : x))
FORGE_MATH1(sign, x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : 0.0f))
FORGE_MATH2(fmin, __builtin_fminf(x, y))
FORGE_MATH2(fmax, __builtin_fmaxf(x, y))
FORGE_MATH2(fmod, __builtin_fmodf(x, y))
FORGE_MATH2(copysign, __builtin_copysignf(x, y))
FORGE_MATH2(step, y < x ? 0.0f : 1.0f)
FORGE_MATH3(fma, __builtin_fmaf(x, y, z))
FORGE_MATH3(mix, x + (y - x) * z)
FORGE_TRUTH(isnan, x != x)
FORGE_TRUTH(isinf, __builtin_isinf(x))
FORGE_TRUTH(isfinite, __builtin_isfinite(x))
template <class T> FORGE_INLINE T ldexp(T x, int e) { return T(__builtin_ldexpf(float(x), e)); }
template <class T, int N> FORGE_INLINE vec<T, N> mix(vec<T, N> a, vec<T, N> b, T t) { return a + (b - a) * t; }

template <class T, int N> FORGE_INLINE T dot(vec<T, N> a, vec<T, N> b) {
    T r = a[0] * b[0];
    for (int i = 1; i < N; i++) r += a[i] * b[i];
    return r;
}
template <class T, int N> FORGE_INLINE T length_squared(vec<T, N> a) { return dot(a, a); }
template <class T, int N> FORGE_INLINE T length(vec<T, N> a) { return sqrt(dot(a, a)); }
template <class T, int N> FORGE_INLINE T distance(vec<T, N> a, vec<T, N> b) { return length(a - b); }
template <class T, int N> FORGE_INLINE vec<T, N> normalize(vec<T, N> a) { return a * rsqrt(dot(a, a)); }
template <class T> FORGE_INLINE vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) { return a.yzx * b.zxy - a.zxy * b.yzx; }

template <class T> struct numeric_limits;
template <> struct numeric_limits<float> {
    static constexpr float max() { return FLT_MAX; }
    static constexpr float lowest() { return -FLT_MAX; }
    static constexpr float min() { return FLT_MIN; }
    static constexpr float epsilon() { return FLT_EPSILON; }
    static constexpr float infinity() { return INFINITY; }
    static constexpr float quiet_NaN() { return NAN; }
};
template <> struct numeric_limits<half> {
    static constexpr half max() { return half(65504.0f); }
    static constexpr half lowest() { return half(-65504.0f); }
    static constexpr half infinity() { return half(INFINITY); }
};
template <> struct numeric_limits<uint> {
    static constexpr uint max() { return UINT_MAX; }
    static constexpr uint min() { return 0; }
};
template <> struct numeric_limits<int> {
    static constexpr int max() { return INT_MAX; }
    static constexpr int min() { return INT_MIN; }
};
}

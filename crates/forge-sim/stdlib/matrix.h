// Matrices of 8 by 8 held by a simdgroup, two elements a lane, laid out as Apple's hardware does.
#pragma once

namespace metal {
template <class T, int Columns = 8, int Rows = 8> struct simdgroup_matrix {
    static_assert(Columns == 8 && Rows == 8, "a simdgroup matrix is 8 by 8");
    vec<T, 2> held;
    simdgroup_matrix() = default;
    explicit inline __attribute__((always_inline)) simdgroup_matrix(T value);
    inline __attribute__((always_inline)) thread vec<T, 2>& thread_elements() { return held; }
    inline __attribute__((always_inline)) const thread vec<T, 2>& thread_elements() const { return held; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;

// The row and the first of two columns that a lane holds.
FORGE_INLINE uint forge_matrix_row(uint lane) { return ((lane >> 2) & 4u) + ((lane >> 1) & 3u); }
FORGE_INLINE uint forge_matrix_column(uint lane) { return ((lane >> 2) & 2u) * 2u + (lane & 1u) * 2u; }

// Makes a diagonal matrix, as Metal's constructor does.
template <class T, int C, int R> simdgroup_matrix<T, C, R>::simdgroup_matrix(T value) {
    uint lane = forge_lane_index(), row = forge_matrix_row(lane), column = forge_matrix_column(lane);
    held = vec<T, 2>{row == column ? value : T(0), row == column + 1u ? value : T(0)};
}

template <class T, int C, int R> FORGE_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value) {
    simdgroup_matrix<T, C, R> matrix;
    matrix.held = vec<T, 2>{value, value};
    return matrix;
}

template <class T> FORGE_INLINE void simdgroup_load(thread simdgroup_matrix<T, 8, 8>& matrix, const T* source,
                                                    ulong stride = 8, vec<ulong, 2> origin = vec<ulong, 2>(0ul),
                                                    bool transposed = false) {
    uint lane = forge_lane_index(), row = forge_matrix_row(lane), column = forge_matrix_column(lane);
    // The origin is that of the matrix in memory: it is not transposed.
    const T* corner = source + origin.y * stride + origin.x;
    if (transposed) matrix.held = vec<T, 2>{corner[column * stride + row], corner[(column + 1u) * stride + row]};
    else matrix.held = vec<T, 2>{corner[row * stride + column], corner[row * stride + column + 1u]};
}

template <class T> FORGE_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> matrix, T* target, ulong stride = 8,
                                                     vec<ulong, 2> origin = vec<ulong, 2>(0ul), bool transposed = false) {
    uint lane = forge_lane_index(), row = forge_matrix_row(lane), column = forge_matrix_column(lane);
    T* corner = target + origin.y * stride + origin.x;
    if (transposed) {
        corner[column * stride + row] = matrix.held.x;
        corner[(column + 1u) * stride + row] = matrix.held.y;
    } else {
        corner[row * stride + column] = matrix.held.x;
        corner[row * stride + column + 1u] = matrix.held.y;
    }
}

// d = a b + c, each element summed in float in the order of k.
template <class D, class A, class B, class C>
FORGE_OUTLINED vec<D, 2> forge_multiply(vec<A, 2> a, vec<B, 2> b, vec<C, 2> c) {
    struct Brought {
        vec<A, 2> a;
        vec<B, 2> b;
        vec<C, 2> c;
    } own = {a, b, c};
    static_assert(sizeof(Brought) <= 32, "a lane kv_source at most 32 bytes");
    forge_simd_values* values = forge_exchange(&own, sizeof(own), FORGE_HERE);
    if (!values->ready) {
        float left[8][8], right[8][8], sum[8][8];
        for (uint lane = 0; lane < 32u; lane++) {
            Brought it = forge_lane<Brought>(values, lane);
            uint row = forge_matrix_row(lane), column = forge_matrix_column(lane);
            left[row][column] = float(it.a.x), left[row][column + 1u] = float(it.a.y);
            right[row][column] = float(it.b.x), right[row][column + 1u] = float(it.b.y);
            sum[row][column] = float(it.c.x), sum[row][column + 1u] = float(it.c.y);
        }
        for (uint row = 0; row < 8u; row++) {
            typedef float line __attribute__((ext_vector_type(8), aligned(4)));
            line total = *(line*)sum[row];
            for (uint k = 0; k < 8u; k++) total += left[row][k] * *(line*)right[k];
            *(line*)sum[row] = total;
        }
        for (uint lane = 0; lane < 32u; lane++) {
            uint row = forge_matrix_row(lane), column = forge_matrix_column(lane);
            __builtin_memcpy(values->result + lane * 8u, &sum[row][column], 8);
        }
        values->ready = 1;
    }
    float mine[2];
    __builtin_memcpy(mine, values->result + values->lane * 8u, 8);
    return vec<D, 2>{D(mine[0]), D(mine[1])};
}

template <class D, class A, class B, class C>
FORGE_INLINE void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                                simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c) {
    d.held = forge_multiply<D, A, B, C>(a.held, b.held, c.held);
}
template <class D, class A, class B>
FORGE_INLINE void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                     simdgroup_matrix<B, 8, 8> b) {
    d.held = forge_multiply<D, A, B, D>(a.held, b.held, vec<D, 2>(D(0)));
}
}

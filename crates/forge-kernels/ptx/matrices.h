// Matrices of 8 by 8 for NVIDIA GPUs, read behind `metal_ptx.h`.
//
// A lane holds two neighbors of a row, those that Apple's hardware gives it: row 4 r + c of the GPU's lanes has columns 2 c and
// 2 c + 1 of row r. That is how the matrix units take a left factor and a sum. A right factor they take by columns: lane 4 n + c
// has rows 2 c and 2 c + 1 of column n. Who loads a matrix loads it both ways, and the compiler drops the one that nobody
// asks for; what was set or computed is transposed by shuffles where it is a right factor.
//
// The units know products of 16 rows, of two left factors at once. Halves are multiplied exactly and added up in singles. A single is
// the sum of two numbers of 11 bits, and of what they leave, and a product of singles the sum of three products: all but the
// smaller parts'. What is lost is about 2^-22 of each, as much as a sum in singles loses. Of `ranged` singles the first 11 bits are
// multiplied, as many as a half has.

namespace metal {

INLINE uint matrix_row() { return own_unit_lane() >> 2; }
INLINE uint matrix_column() { return (own_unit_lane() & 3u) * 2u; }

template <class T, int Columns, int Rows>
INLINE thread typename simdgroup_matrix<T, Columns, Rows>::pair& simdgroup_matrix<T, Columns, Rows>::thread_elements() {
    has_transposed = false;
    return held;
}

template <class T, int Columns, int Rows>
INLINE simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
    simdgroup_matrix<T, Columns, Rows> matrix;
    matrix.held.x = value;
    matrix.held.y = value;
    matrix.has_transposed = false;
    return matrix;
}

// The origin is that of the matrix in memory: it is not transposed.
#define MATRIX_MEMORY_BODIES(space)                                                                                \
    template <class T>                                                                                             \
    INLINE void simdgroup_load(                                                                                    \
        simdgroup_matrix<T, 8, 8>& matrix, const space T* source, ulong stride, ulong2 origin, bool transpose) {   \
        const space T* corner = source + origin.y * stride + origin.x;                                             \
        const space T* along = corner + matrix_row() * stride + matrix_column();                                   \
        const space T* across = corner + matrix_column() * stride + matrix_row();                                  \
        matrix.held.x = transpose ? across[0] : along[0];                                                          \
        matrix.held.y = transpose ? across[stride] : along[1];                                                     \
        matrix.transposed.x = transpose ? along[0] : across[0];                                                    \
        matrix.transposed.y = transpose ? along[1] : across[stride];                                               \
        matrix.has_transposed = true;                                                                              \
    }                                                                                                              \
    template <class T>                                                                                             \
    INLINE void simdgroup_store(                                                                                   \
        simdgroup_matrix<T, 8, 8> matrix, space T* target, ulong stride, ulong2 origin, bool transpose) {          \
        space T* corner = target + origin.y * stride + origin.x;                                                   \
        uint row = matrix_row(), column = matrix_column();                                                         \
        corner[transpose ? column * stride + row : row * stride + column] = matrix.held.x;                         \
        corner[transpose ? (column + 1u) * stride + row : row * stride + column + 1u] = matrix.held.y;             \
    }
MATRIX_MEMORY_BODIES(device)
MATRIX_MEMORY_BODIES(threadgroup)

// The two rows of its column that a lane holds of a right factor.
template <class T>
INLINE typename simdgroup_matrix<T, 8, 8>::pair transposed(simdgroup_matrix<T, 8, 8> matrix) {
    if (matrix.has_transposed) return matrix.transposed;
    uint from = matrix_column() * 4u + matrix_row() / 2u;
    bool is_odd = matrix_row() & 1u;
    T first[2] = {unit_of(matrix.held.x, from), unit_of(matrix.held.y, from)};
    T second[2] = {unit_of(matrix.held.x, from + 4u), unit_of(matrix.held.y, from + 4u)};
    typename simdgroup_matrix<T, 8, 8>::pair pair;
    pair.x = is_odd ? first[1] : first[0];
    pair.y = is_odd ? second[1] : second[0];
    return pair;
}

#ifdef MATRIX_UNITS

// upper += a right, lower += b right, of the two elements of the left factors that this lane has of its row, and the two of the right
// factor's that it has of its column.
INLINE void multiply(float2& upper, float2& lower, half2 a, half2 b, half2 right) {
    float x = upper.x, y = upper.y, z = lower.x, w = lower.y;
    __asm__ volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(x), "+f"(y), "+f"(z), "+f"(w)
        : "r"(as_type<uint>(a)), "r"(as_type<uint>(b)), "r"(as_type<uint>(right)));
    upper = float2{x, y};
    lower = float2{z, w};
}

// The 11 bits that a unit takes of a single.
INLINE uint most_of(float x) {
    uint bits;
    __asm__("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}
INLINE uint2 most_of(float2 x) { return uint2{most_of(x.x), most_of(x.y)}; }
INLINE uint2 rest_of(float2 x, uint2 most) { return most_of(x - float2{as_type<float>(most.x), as_type<float>(most.y)}); }
INLINE void multiply(float2& upper, float2& lower, uint2 a, uint2 b, uint2 right) {
    float x = upper.x, y = upper.y, z = lower.x, w = lower.y;
    __asm__ volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(x), "+f"(y), "+f"(z), "+f"(w)
        : "r"(a.x), "r"(b.x), "r"(a.y), "r"(b.y), "r"(right.x), "r"(right.y));
    upper = float2{x, y};
    lower = float2{z, w};
}
INLINE void multiply(float2& upper, float2& lower, float2 a, float2 b, float2 right) {
    uint2 most_a = most_of(a), most_b = most_of(b), most_right = most_of(right), rest = rest_of(right, most_right);
    // The smaller parts by themselves, so that one product does not wait for the next.
    float2 above = {0.0f, 0.0f}, below = {0.0f, 0.0f};
    multiply(above, below, rest_of(a, most_a), rest_of(b, most_b), most_right);
    multiply(above, below, most_a, most_b, rest);
    multiply(upper, lower, most_a, most_b, most_right);
    upper += above;
    lower += below;
}

// One product: the lower rows are zeros.
template <class Pair>
INLINE void multiply(float2& sum, Pair a, Pair right) {
    float2 unused = {0.0f, 0.0f};
    multiply(sum, unused, a, Pair{}, right);
}

// Halves are multiplied by singles as singles.
INLINE void multiply(float2& sum, half2 a, float2 right) { multiply(sum, float2{float(a.x), float(a.y)}, right); }
INLINE void multiply(float2& sum, float2 a, half2 right) { multiply(sum, a, float2{float(right.x), float(right.y)}); }

// See `kernels/support/products.metal`.
#define OWN_PRODUCTS
template <class T>
INLINE void add_products(
    simdgroup_matrix<float, 8, 8>& upper, simdgroup_matrix<float, 8, 8>& lower,
    simdgroup_matrix<T, 8, 8> upper_left, simdgroup_matrix<T, 8, 8> lower_left, simdgroup_matrix<T, 8, 8> right) {
    float2 above = upper.thread_elements(), below = lower.thread_elements();
    multiply(above, below, upper_left.held, lower_left.held, transposed(right));
    upper.held = above;
    lower.held = below;
}
INLINE void add_products_ranged(
    simdgroup_matrix<float, 8, 8>& upper, simdgroup_matrix<float, 8, 8>& lower,
    simdgroup_matrix<float, 8, 8> upper_left, simdgroup_matrix<float, 8, 8> lower_left, simdgroup_matrix<float, 8, 8> right) {
    float2 above = upper.thread_elements(), below = lower.thread_elements();
    multiply(above, below, most_of(upper_left.held), most_of(lower_left.held), most_of(transposed(right)));
    upper.held = above;
    lower.held = below;
}
INLINE void add_product_ranged(
    simdgroup_matrix<float, 8, 8>& sum, simdgroup_matrix<float, 8, 8> left, simdgroup_matrix<float, 8, 8> right) {
    float2 total = sum.thread_elements();
    multiply(total, most_of(left.held), most_of(transposed(right)));
    sum.held = total;
}

// See `kernels/support/block_products.metal`. Rows of a left factor are 16 rows of lanes' words, and columns of the right one the upper
// bytes of block 0, its lower ones, and so on: where a lane has words of another block than a column is of, the column has zeros.
// Then a lane's two sums of a row are those of its own block.
#define OWN_BLOCK_PRODUCTS
INLINE int2 block_products(const uint2* above, const uint2* below, threadgroup const uint* codes, uint row, uint quarter) {
    const threadgroup uint4* column = reinterpret_cast<const threadgroup uint4*>(codes + row * 8u);
    bool has_own = row >> 1u == quarter;
    uint4 first = has_own ? column[0] : uint4{0u, 0u, 0u, 0u}, second = has_own ? column[1] : uint4{0u, 0u, 0u, 0u};
    int x = 0, y = 0, z = 0, w = 0;
    _Pragma("unroll") for (uint i = 0u; i < 4u; i++) {
        __asm__ volatile(
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+r"(x), "+r"(y), "+r"(z), "+r"(w)
            : "r"(above[i].x), "r"(below[i].x), "r"(above[i].y), "r"(below[i].y), "r"(first[i]), "r"(second[i]));
    }
    return int2{256 * x + y, 256 * z + w};
}

// See `kernels/support/matrix/mma_i8.metal`.
#define OWN_QUAD_PRODUCTS
INLINE int2 quad_products(uint2 above, uint2 below, uint2 two, uint) {
    int x = 0, y = 0, z = 0, w = 0;
    __asm__ volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(x), "+r"(y), "+r"(z), "+r"(w)
        : "r"(above.x), "r"(below.x), "r"(above.y), "r"(below.y), "r"(two.x), "r"(two.y));
    return int2{256 * x + y, 256 * z + w};
}

// See `kernels/support/matrix/mma_f32.metal`. Of a 32-bit factor the units take the upper 19 bits.
#define OWN_ROW_PRODUCTS
INLINE void add_row_products(float4& sums, const float4* above, const float4* below, const float4* right, uint, uint) {
    float x = sums.x, y = sums.y, z = sums.z, w = sums.w;
    _Pragma("unroll") for (uint i = 0u; i < 4u; i++) {
        uint first = i % 2u * 2u, second = first + 1u;
        float4 a = above[i / 2u], b = below[i / 2u], c = right[i / 2u];
        __asm__ volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(x), "+f"(y), "+f"(z), "+f"(w)
            : "r"(as_type<uint>(a[first])), "r"(as_type<uint>(b[first])), "r"(as_type<uint>(a[second])), "r"(as_type<uint>(b[second])),
              "r"(as_type<uint>(c[first])), "r"(as_type<uint>(c[second])));
    }
    sums = float4{x, y, z, w};
}

// See `kernels/support/head_products.metal`. Rows of a left factor are what is nearest to eight heads' numbers and then what that leaves.
// Which channels its columns are, and the rows of the right factor, is for who loads them to say, as long as both say the same: a
// lane's 8 are columns of its own of two products. Of values a lane has four rows of 8 columns, which it pairs: column n of product i is
// channel 8 n + i.
#define OWN_HEAD_PRODUCTS
INLINE void multiply(float4& sums, half4 upper, half4 lower, half2 first, half2 second) {
    float x = sums.x, y = sums.y, z = sums.z, w = sums.w;
    __asm__ volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(x), "+f"(y), "+f"(z), "+f"(w)
        : "r"(as_type<uint>(upper.xy)), "r"(as_type<uint>(lower.xy)), "r"(as_type<uint>(upper.zw)), "r"(as_type<uint>(lower.zw)),
          "r"(as_type<uint>(first)), "r"(as_type<uint>(second)));
    sums = float4{x, y, z, w};
}
INLINE void add_scores(float4& sums, const half4* key, const half4* most, const half4* rest, uint, uint) {
    _Pragma("unroll") for (uint i = 0u; i < 2u; i++) {
        half4 right = key[i];
        multiply(sums, most[i], rest[i], right.xy, right.zw);
    }
}
INLINE void add_weighted(float4* sums, const half4* value, half4 most, half4 rest, uint, uint) {
    _Pragma("unroll") for (uint i = 0u; i < 8u; i++) {
        half a = value[i / 4u][i % 4u], b = value[2u + i / 4u][i % 4u], c = value[4u + i / 4u][i % 4u], d = value[6u + i / 4u][i % 4u];
        multiply(sums[i], most, rest, half2{a, b}, half2{c, d});
    }
}

// See `kernels/support/strips.metal`. Of halves in threadgroup memory, whose rows begin at 16 bytes, the units load 16 rows or columns at
// once: a lane names a row of 8, and is handed what it has of a right factor. Singles become halves, which have as many bits
// as the units take of a `ranged` one.
#define OWN_STRIPS
typedef const simdgroup_matrix<float, 8, 8>* lefts;
INLINE uint halves_of(float2 x) {
    uint bits;
    __asm__("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(bits) : "f"(x.x), "f"(x.y));
    return bits;
}
INLINE void add_strip(
    simdgroup_matrix<float, 8, 8>& upper, simdgroup_matrix<float, 8, 8>& lower, lefts upper_left, lefts lower_left,
    threadgroup const half* right, ulong pitch, bool is_transposed) {
    uint row = own_unit_lane() & 7u, second = own_unit_lane() & 8u, first, other;
    uint from = uint((unsigned long)(right + (is_transposed ? row * uint(pitch) + second : (row + second) * uint(pitch))));
    if (is_transposed) {
        __asm__ volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(first), "=r"(other) : "r"(from) : "memory");
    } else {
        __asm__ volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(first), "=r"(other) : "r"(from) : "memory");
    }
    float2 above = upper.held, below = lower.held;
    float x = above.x, y = above.y, z = below.x, w = below.y;
    __asm__ volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(x), "+f"(y), "+f"(z), "+f"(w)
        : "r"(halves_of(upper_left[0].held)), "r"(halves_of(lower_left[0].held)), "r"(halves_of(upper_left[1].held)),
          "r"(halves_of(lower_left[1].held)), "r"(first), "r"(other));
    upper.thread_elements() = float2{x, y};
    lower.thread_elements() = float2{z, w};
}
#define FLOAT_STRIP_BODY(name, add)                                                                                             \
    INLINE void name(                                                                                                          \
        simdgroup_matrix<float, 8, 8>& upper, simdgroup_matrix<float, 8, 8>& lower, lefts upper_left, lefts lower_left,         \
        threadgroup const float* right, ulong pitch, bool is_transposed) {                                                     \
        _Pragma("unroll") for (uint k = 0u; k < 2u; k++) {                                                                     \
            simdgroup_matrix<float, 8, 8> factor;                                                                              \
            simdgroup_load(factor, right + k * 8u * (is_transposed ? 1ul : pitch), pitch, ulong2{0, 0}, is_transposed);        \
            add(upper, lower, upper_left[k], lower_left[k], factor);                                                           \
        }                                                                                                                      \
    }
FLOAT_STRIP_BODY(add_strip, add_products)
FLOAT_STRIP_BODY(add_strip_ranged, add_products_ranged)

#else

// See `kernels/support/matrix/dot_i8.metal`.
#define OWN_BYTE_PRODUCTS
INLINE int byte_products(uint a, uint b) {
    int sum = 0;
    __asm__("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}

// See `kernels/support/block_products.metal`.
#define OWN_BLOCK_PRODUCTS
INLINE void add_bytes(int& sum, uint a, uint b) { __asm__("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b)); }
INLINE int2 block_products(const uint2* above, const uint2* below, threadgroup const uint* codes, uint, uint quarter) {
    const threadgroup uint* words = codes + quarter * 16u;
    int2 upper = {0, 0}, lower = {0, 0};
    _Pragma("unroll") for (uint word = 0u; word < 8u; word++) {
        uint a = above[word % 4u][word / 4u], b = below[word % 4u][word / 4u];
        int x = upper.x, y = upper.y, z = lower.x, w = lower.y;
        add_bytes(x, a, words[word]);
        add_bytes(y, b, words[word]);
        add_bytes(z, a, words[word + 8u]);
        add_bytes(w, b, words[word + 8u]);
        upper = int2{x, y};
        lower = int2{z, w};
    }
    return 256 * upper + lower;
}

// Every lane is handed the row of a and the columns of b that its two elements are made of.
template <class Left, class Right>
INLINE void multiply(float2& sum, Left a, Right b) {
    uint row = own_unit_lane() & ~3u, column = matrix_column() * 4u;
    _Pragma("unroll") for (uint k = 0u; k < 4u; k++) {
        float even = float(unit_of(a.x, row + k)), odd = float(unit_of(a.y, row + k));
        sum.x = fma(even, float(unit_of(b.x, column + k)), sum.x);
        sum.x = fma(odd, float(unit_of(b.y, column + k)), sum.x);
        sum.y = fma(even, float(unit_of(b.x, column + 4u + k)), sum.y);
        sum.y = fma(odd, float(unit_of(b.y, column + 4u + k)), sum.y);
    }
}

#endif

template <class T, class U, class V>
INLINE void simdgroup_multiply_accumulate(
    simdgroup_matrix<T, 8, 8>& sum, simdgroup_matrix<U, 8, 8> a, simdgroup_matrix<V, 8, 8> b, simdgroup_matrix<T, 8, 8> c) {
    float2 total = c.held;
    multiply(total, a.held, transposed(b));
    sum.held = total;
    sum.has_transposed = false;
}
template <class T, class U>
INLINE void simdgroup_multiply(simdgroup_matrix<T, 8, 8>& product, simdgroup_matrix<U, 8, 8> a, simdgroup_matrix<U, 8, 8> b) {
    simdgroup_multiply_accumulate(product, a, b, make_filled_simdgroup_matrix<T, 8, 8>(T(0)));
}

}  // namespace metal

// Tensors of Metal 4 and their products, as Apple's header MPPTensorOpsMatMul2d.h describes them: tensors over memory,
// products by the simdgroups of a threadgroup, sums in registers. How elements are distributed over threads is left open
// there, and some of a thread's may be invalid. Here the first of each thread is, and the others are neighbors in a row.
#pragma once

namespace metal {
struct bfloat {
    ushort bits;
    inline __attribute__((always_inline)) explicit operator float() const {
        return __builtin_bit_cast(float, uint(bits) << 16);
    }
};

template <class T, int Count> struct array {
    T elements[Count];
    inline __attribute__((always_inline)) T& operator[](int index) { return elements[index]; }
    inline __attribute__((always_inline)) const T& operator[](int index) const { return elements[index]; }
};

template <class Index, int Rank> struct dextents {
    Index extents[Rank];
    template <class... Each> inline __attribute__((always_inline)) dextents(Each... each) : extents{Index(each)...} {
        static_assert(sizeof...(Each) == Rank, "an extent for each dimension");
    }
    inline __attribute__((always_inline)) Index extent(int dimension) const { return extents[dimension]; }
};

struct tensor_inline {};
constexpr size_t dynamic_extent = ~size_t(0);

// Extents and strides begin with the dimension of neighbors in memory.
template <class T, class Extents, class Tag> struct tensor {
    typedef T element;
    T* data;
    Extents size;
    array<int, 2> strides;
    inline __attribute__((always_inline)) tensor(T* data, Extents size, array<int, 2> strides)
        : data(data), size(size), strides(strides) {}
};

template <int Count> struct execution_simdgroups {
    static constexpr int count = Count;
};
}

namespace mpp::tensor_ops {
struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n, k;
    bool transpose_left, transpose_right, relaxed_precision;
    mode matmul_mode;
    constexpr matmul2d_descriptor(int m, int n, int k = static_cast<int>(metal::dynamic_extent),
                                  bool transpose_left = false, bool transpose_right = false,
                                  bool relaxed_precision = false, mode matmul_mode = mode::multiply)
        : m(m), n(n), k(k), transpose_left(transpose_left), transpose_right(transpose_right),
          relaxed_precision(relaxed_precision), matmul_mode(matmul_mode) {}
};

// The caller's index in the threadgroup, once all lanes of its simdgroup are here.
FORGE_OUTLINED uint forge_thread_of(uint threads, void* where) {
    forge_simd_values* values = forge_exchange(&threads, sizeof(threads), where);
    // An operation of more or fewer simdgroups than were dispatched is undefined.
    return values->threads == threads ? values->index : ~0u;
}

// The sums of a thread: an invalid element, and its part of a row. The invalid element is the index of the first sum, so
// that whoever writes it gets other results. (All members have one type, because a pattern of several types would be copied
// from memory that no kernel has.)
template <class T, int Rows, int Columns, int Threads> struct cooperative_tensor {
    static constexpr int each = Rows * Columns / Threads;
    static_assert(each * Threads == Rows * Columns && Columns % each == 0, "threads hold equal parts of rows");
    T held[each + 1];
    inline __attribute__((always_inline)) int first() const { return int(held[0]); }
    inline __attribute__((always_inline)) ushort get_capacity() const { return each + 1; }
    inline __attribute__((always_inline)) bool is_valid_element(ushort index) const { return index != 0; }
    inline __attribute__((always_inline)) T& operator[](ushort index) { return held[index]; }
    inline __attribute__((always_inline)) metal::array<int, 2> get_multidimensional_index(ushort index) const {
        if (index == 0) return {-1, -1};
        int element = first() + index - 1;
        return {element % Columns, element / Columns};
    }
};

// Types of factors whose sums are f32. Apple's table has every pair of them.
template <class T>
constexpr bool forge_is_factor =
    forge_same<T, half>::value || forge_same<T, float>::value || forge_same<T, metal::bfloat>::value;

template <matmul2d_descriptor Shape, class Scope> struct matmul2d {
    static_assert(!Shape.transpose_left && !Shape.relaxed_precision, "such products are not emulated");
    // Columns of the factors, or none if those of the left factor count.
    static constexpr int columns = Shape.k == static_cast<int>(metal::dynamic_extent) ? 0 : Shape.k;
    static constexpr int threads = 32 * Scope::count;
    template <class T> using sums = cooperative_tensor<T, Shape.m, Shape.n, threads>;

    template <class Left, class Right, class T>
    inline __attribute__((always_inline)) sums<T> get_destination_cooperative_tensor() const {
        static_assert(forge_is_factor<typename Left::element> && forge_is_factor<typename Right::element>
                          && forge_same<T, float>::value,
                      "no product of these types");
        sums<T> sums;
        sums.held[0] = T(forge_thread_of(threads, FORGE_HERE) * sums.each);
        return sums;
    }

    // left is [m, k], and right [k, n] or [n, k] if transposed. Rows and outputs beyond the extents count as 0. Columns are
    // not compared with the extents, unless they are dynamic.
    template <class Left, class Right, class T>
    inline __attribute__((always_inline)) void run(Left& left, Right& right, sums<T>& sums) const {
        forge_thread_of(threads, FORGE_HERE);
        constexpr int across = Shape.transpose_right ? 0 : 1;
        const int row = sums.first() / Shape.n, output = sums.first() % Shape.n;
        const int count = columns ? columns : left.size.extent(0);
        for (int i = 0; i < sums.each; i++) {
            // The order of additions is left open: here, unlike products of matrices, those of a product come first.
            float sum = 0.0f;
            const bool exists = row < left.size.extent(1) && output + i < right.size.extent(1 - across);
            for (int k = 0; k < count && exists; k++) {
                const float factor = float(left.data[row * left.strides[1] + k * left.strides[0]]);
                sum += factor * float(right.data[(output + i) * right.strides[1 - across] + k * right.strides[across]]);
            }
            constexpr bool adds = Shape.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate;
            sums.held[i + 1] = adds ? sums.held[i + 1] + sum : sum;
        }
    }
};
}

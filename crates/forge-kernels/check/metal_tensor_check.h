// Metal 4: tensors and their products, as far as kernels use them, as declarations. Names, order of parameters and
// types of factors are those of Apple's header MPPTensorOpsMatMul2d.h.

namespace metal {

struct bfloat;

template <class T, int Count>
struct array {
    T elements[Count];
    T& operator[](int);
    const T& operator[](int) const;
};

template <class Index, int Rank>
struct dextents {
    dextents(Index, Index);
};

struct tensor_inline;
constexpr ulong dynamic_extent = ~0ul;

template <class T, class Extents, class Tag>
struct tensor {
    tensor(T*, Extents, array<int, 2>);
};

template <int Count>
struct execution_simdgroups;

}  // namespace metal

namespace mpp {
namespace tensor_ops {

struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n, k;
    bool transpose_left, transpose_right, relaxed_precision;
    mode matmul_mode;
    constexpr matmul2d_descriptor(
        int m, int n, int k = static_cast<int>(metal::dynamic_extent), bool transpose_left = false, bool transpose_right = false, bool relaxed_precision = false,
        mode matmul_mode = mode::multiply)
        : m(m), n(n), k(k), transpose_left(transpose_left), transpose_right(transpose_right),
          relaxed_precision(relaxed_precision), matmul_mode(matmul_mode) {}
};

template <class T>
struct sums {
    ushort get_capacity() const;
    bool is_valid_element(ushort) const;
    metal::array<int, 2> get_multidimensional_index(ushort) const;
    T& operator[](ushort);
};

// The element of a tensor, without its address space.
template <class Tensor>
struct element {};
template <class T, class Extents, class Tag>
struct element<metal::tensor<threadgroup T, Extents, Tag>> {
    typedef T type;
};
template <class T, class Extents, class Tag>
struct element<metal::tensor<device T, Extents, Tag>> {
    typedef T type;
};

// The types of factors with sums in f32.
template <class Left, class Right>
struct factors {};
#define FACTORS(left, right)        \
    template <>                     \
    struct factors<left, right> {   \
        typedef sums<float> result; \
    };
FACTORS(half, half)
FACTORS(half, float)
FACTORS(float, half)
FACTORS(float, float)
FACTORS(metal::bfloat, metal::bfloat)
FACTORS(metal::bfloat, float)
FACTORS(float, metal::bfloat)
FACTORS(metal::bfloat, half)
FACTORS(half, metal::bfloat)

template <matmul2d_descriptor Shape, class Scope>
struct matmul2d {
    // Operands are named variables, which the operation takes by reference.
    template <class Left, class Right, class Sums>
    void run(Left&, Right&, Sums&) const;
    template <class Left, class Right, class T>
    typename factors<typename element<Left>::type, typename element<Right>::type>::result get_destination_cooperative_tensor() const;
};

}  // namespace tensor_ops
}  // namespace mpp

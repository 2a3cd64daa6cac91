{# The staged blocks as tensors, their product by all simdgroups, and its sums, which start as 0. #}
{% set weights_type = "bfloat" if element == "ushort" else element %}
    // Metal 4: the simdgroups multiply the whole tile together.
    auto left = tensor<threadgroup {{ x_element }}, dextents<int, 2>, tensor_inline>(
        tile_x, dextents<int, 2>(32, {{ tile_rows }}), array<int, 2>{1, {{ tile_x_pitch }}});
    auto right = tensor<threadgroup {{ weights_type }}, dextents<int, 2>, tensor_inline>(
        {{ "(threadgroup bfloat*)" if element == "ushort" else "" }}tile_weights, dextents<int, 2>(32, {{ tile_outputs }}), array<int, 2>{1, {{ pitch }}});
    constexpr auto shape = mpp::tensor_ops::matmul2d_descriptor(
        {{ tile_rows }}, {{ tile_outputs }}, 32, false, true, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
    mpp::tensor_ops::matmul2d<shape, execution_simdgroups<4>> products;
    auto sums = products.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
    #pragma unroll
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) {
            sums[i] = 0.0f;
        }
    }

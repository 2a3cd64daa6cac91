{# Multiplies the staged blocks and accumulates this simdgroup's quarter of the tile. #}
        // Multiply.
{% if has_tensors %}
#if __METAL_VERSION__ >= 400
        products.run(left, right, sums);
#else
{% endif %}
        #pragma unroll
        for (uint k = 0u; k < 32u; k += 8u) {
            simdgroup_matrix<{{ x_element }}, 8, 8> left[{{ tile_rows // 16 }}];
            #pragma unroll
            for (uint i = 0u; i < {{ tile_rows // 16 }}u; i++) {
                simdgroup_load(left[i], tile_x + (own_row + i * 8u) * {{ tile_x_pitch }}u + k, {{ tile_x_pitch }}ul);
            }
            #pragma unroll
            for (uint j = 0u; j < {{ tile_outputs // 16 }}u; j++) {
                threadgroup {{ element }}* source = tile_weights + (own_output + j * 8u) * {{ pitch }}u + k;
                simdgroup_matrix<{{ factor }}, 8, 8> right;
{% if element == "ushort" %}
                right.thread_elements()[0] = as_type<float>(uint(source[pair * {{ pitch }}u + line]) << 16u);
                right.thread_elements()[1] = as_type<float>(uint(source[pair * {{ pitch }}u + line + {{ pitch }}u]) << 16u);
{% else %}
                simdgroup_load(right, source, {{ pitch }}ul, ulong2(0ul, 0ul), true);
{% endif %}
{% if is_mixed %}
                #pragma unroll
                for (uint i = 0u; i < {{ tile_rows // 16 }}u; i++) {
                    simdgroup_multiply_accumulate(sums[i][j], left[i], right, sums[i][j]);
                }
{% else %}
{% if tile_rows > 16 %}
                #pragma unroll
                for (uint i = 0u; i < {{ tile_rows // 32 * 2 }}u; i += 2u) {
                    add_products{{ "_ranged" if operand == "ranged" else "" }}(sums[i][j], sums[i + 1u][j], left[i], left[i + 1u], right);
                }
{% endif %}
{% if tile_rows % 32 != 0 %}
{% set last = tile_rows // 16 - 1 %}
                simdgroup_multiply_accumulate(sums[{{ last }}][j], left[{{ last }}], right, sums[{{ last }}][j]);
{% endif %}
{% endif %}
            }
        }
{% if has_tensors %}
#endif
{% endif %}

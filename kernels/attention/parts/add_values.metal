{# Adds a tile to the sums of values: softmax weights times staged values. #}
        // Rescale the sums of values and add those of the tile.
        simdgroup_matrix<float, 8, 8> scaling;
        simdgroup_matrix<float, 8, 8> weights[{{ tile // 8 }}];
        simdgroup_load(scaling, decay, 8ul);
        #pragma unroll
        for (uint k = 0u; k < {{ tile // 8 }}u; k++) {
            simdgroup_load(weights[k], scores + k * 8u, 36ul);
        }
        #pragma unroll
        for (uint j = 0u; j < {{ sums_each }}u; j++) {
{% if value_matrices % 4 != 0 %}
            if (simdgroup_id + j * 4u >= {{ value_matrices }}u) {
                continue;
            }
{% endif %}
            simdgroup_matrix<float, 8, 8> scaled;
            simdgroup_multiply(scaled, scaling, sums[j]);
            #pragma unroll
            for (uint k = 0u; k < {{ tile // 8 }}u; k++) {
                simdgroup_matrix<float, 8, 8> value;
                simdgroup_load(value, staged + k * {{ 8 * pitch }}u + (simdgroup_id + j * 4u) * 8u, {{ pitch }}ul);
                {{ added("scaled", "weights[k], value") }};
            }
            sums[j] = scaled;
        }

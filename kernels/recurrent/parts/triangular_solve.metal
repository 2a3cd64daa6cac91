        // Solves for the updates of rows: subtracts the contributions of earlier rows, first those of other
        // matrices, then those of the same matrix one by one.
        #pragma unroll
        for (uint b = 0u; b < {{ blocks }}u; b++) {
            #pragma unroll
            for (uint v = 0u; v < 2u; v++) {
                #pragma unroll
                for (uint e = 0u; e < 2u; e++) {
                    const uint i = b * 8u + pair + e;
                    const float delta = row_values[v][b][e] - decay_before[i] * updates[v][b].thread_elements()[e];
                    updates[v][b].thread_elements()[e] = betas[i] * delta;
                }
            }
{% if blocks > 1 %}
            #pragma unroll
            for (uint a = 0u; a < b; a++) {
                simdgroup_matrix<float, 8, 8> right;
                threadgroup float* source = k_dot_k + b * {{ 8 * line_pitch }}u + a * 8u;
                simdgroup_load(right, source, {{ line_pitch }}ul, ulong2(0ul, 0ul), true);
                add_products(updates[0][b], updates[1][b], updates[0][a], updates[1][a], right);
            }
{% endif %}
            threadgroup float* own_k_dot_k = k_dot_k + (b * 8u + pair) * {{ line_pitch }}u + b * 8u;
            #pragma unroll
            for (uint c = 0u; c < 7u; c++) {
                // The lane that has column c of this line.
                const ushort from = ushort((lane & 22u) | ((c >> 1u) & 1u) | ((c >> 2u) << 3u));
                #pragma unroll
                for (uint v = 0u; v < 2u; v++) {
                    const float update = simd_shuffle(float(updates[v][b].thread_elements()[c & 1u]), from);
                    updates[v][b].thread_elements()[0] += own_k_dot_k[c] * update;
                    updates[v][b].thread_elements()[1] += own_k_dot_k[{{ line_pitch }}u + c] * update;
                }
            }
        }

        // What rows teach: what the memory did not know, less what rows before have taught, those of other matrices and then
        // those of its own, one after the other.
        #pragma unroll
        for (uint b = 0u; b < {{ blocks }}u; b++) {
            #pragma unroll
            for (uint v = 0u; v < 2u; v++) {
                #pragma unroll
                for (uint e = 0u; e < 2u; e++) {
                    const uint i = b * 8u + pair + e;
                    const float unknown = brought[v][b][e] - since[i] * learnt[v][b].thread_elements()[e];
                    learnt[v][b].thread_elements()[e] = strengths[i] * unknown;
                }
            }
{% if blocks > 1 %}
            #pragma unroll
            for (uint a = 0u; a < b; a++) {
                simdgroup_matrix<float, 8, 8> right;
                threadgroup float* source = taught + b * {{ 8 * line_pitch }}u + a * 8u;
                simdgroup_load(right, source, {{ line_pitch }}ul, ulong2(0ul, 0ul), true);
                add_products(learnt[0][b], learnt[1][b], learnt[0][a], learnt[1][a], right);
            }
{% endif %}
            threadgroup float* own_taught = taught + (b * 8u + pair) * {{ line_pitch }}u + b * 8u;
            #pragma unroll
            for (uint c = 0u; c < 7u; c++) {
                // The lane that has column c of this line.
                const ushort from = ushort((lane & 22u) | ((c >> 1u) & 1u) | ((c >> 2u) << 3u));
                #pragma unroll
                for (uint v = 0u; v < 2u; v++) {
                    const float teaches = simd_shuffle(float(learnt[v][b].thread_elements()[c & 1u]), from);
                    learnt[v][b].thread_elements()[0] += own_taught[c] * teaches;
                    learnt[v][b].thread_elements()[1] += own_taught[{{ line_pitch }}u + c] * teaches;
                }
            }
        }

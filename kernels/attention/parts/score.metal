{# Scores of a tile: queries in registers times staged keys. #}
        // Scores.
        simdgroup_matrix<float, 8, 8> product = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        #pragma unroll
        for (uint i = 0u; i < {{ queries_each }}u; i++) {
{% if matrices % parts != 0 %}
            if ({{ matrix }} >= {{ matrices }}u) {
                continue;
            }
{% endif %}
            simdgroup_matrix<float, 8, 8> key;
            threadgroup float* source = staged + own_positions * {{ pitch }}u + {{ matrix }} * 8u;
            simdgroup_load(key, source, {{ pitch }}ul, ulong2(0ul, 0ul), true);
            {{ added("product", "queries[i], key") }};
        }
        simdgroup_store(product, scores + simdgroup_id * 8u, 36ul);
        threadgroup_barrier(mem_flags::mem_threadgroup);

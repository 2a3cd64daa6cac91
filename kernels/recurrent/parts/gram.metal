        // Dot products of keys with keys, and of queries with keys, divided among simdgroups.
{% if simdgroups > 1 %}
        for (uint n = simdgroup_id; n < {{ blocks * (blocks + 1) }}u; n += {{ simdgroups }}u) {
{% else %}
        for (uint n = 0u; n < {{ blocks * (blocks + 1) }}u; n++) {
{% endif %}
            const bool of_keys = n < {{ blocks * (blocks + 1) // 2 }}u;
{% if blocks > 1 %}
            const uint place = of_keys ? n : n - {{ blocks * (blocks + 1) // 2 }}u;
            const uint b = {% for b in range(1, blocks) %}{{ " + " if not loop.first else "" }}(place >= {{ b * (b + 1) // 2 }}u ? 1u : 0u){% endfor %};
            const uint i = b * 8u + line;
            const uint j = (place - b * (b + 1u) / 2u) * 8u + pair;
            threadgroup float* left_rows = (of_keys ? keys : queries) + (i - line) * {{ pitch }}u;
            threadgroup float* right_rows = keys + (j - pair) * {{ pitch }}u;
{% else %}
            const uint i = line;
            const uint j = pair;
            threadgroup float* left_rows = of_keys ? keys : queries;
            threadgroup float* right_rows = keys;
{% endif %}
            simdgroup_matrix<float, 8, 8> product = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            #pragma unroll
            for (uint m = 0u; m < {{ matrices }}u; m++) {
                simdgroup_matrix<float, 8, 8> left;
                simdgroup_matrix<float, 8, 8> right;
                simdgroup_load(left, left_rows + m * 8u, {{ pitch }}ul);
                simdgroup_load(right, right_rows + m * 8u, {{ pitch }}ul, ulong2(0ul, 0ul), true);
                simdgroup_multiply_accumulate(product, left, right, product);
            }
            float sums[2] = {0.0f, 0.0f};
            #pragma unroll
            for (uint k = 1u; k < {{ rows }}u; k++) {
                const float log = k <= i ? logs[k] : 0.0f;
                sums[0] += k > j ? log : 0.0f;
                sums[1] += k > j + 1u ? log : 0.0f;
            }
            #pragma unroll
            for (uint e = 0u; e < 2u; e++) {
                const float decayed_dot = exp(sums[e]) * product.thread_elements()[e];
                if (of_keys) {
                    k_dot_k[i * {{ line_pitch }}u + j + e] = j + e < i ? -betas[i] * decayed_dot : 0.0f;
                } else {
                    q_dot_k[i * {{ line_pitch }}u + j + e] = j + e <= i ? decayed_dot : 0.0f;
                }
            }
        }
        if (thread_id < {{ rows }}u) {
            float before = 0.0f;
            float after = 0.0f;
            #pragma unroll
            for (uint k = 0u; k < {{ rows }}u; k++) {
                before += k <= thread_id ? logs[k] : 0.0f;
                after += k > thread_id ? logs[k] : 0.0f;
            }
            decay_before[thread_id] = exp(before);
            decay_after[thread_id] = exp(after);
        }

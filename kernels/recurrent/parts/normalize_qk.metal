{# Stages L2-normalized queries and keys of a chunk, and the beta and log decay of each row. #}
{% set vectors = padded // step %}
{% set spare = each * row_threads != vectors %}
{% set bounded = each * row_threads * step != keys %}
{% set dotted = "dot(A, A)" if vector == "float4" else "A * A" %}
        {
            const uint r = thread_id / {{ row_threads }}u;
            const uint part = thread_id % {{ row_threads }}u;
            const uint row = first + min(r, count - 1u);
{% if gated %}
            device const float* own_convolved = convolved + row * {{ channels }}u + key_head * {{ keys }}u;
            device const {{ vector }}* query_row = (device const {{ vector }}*)own_convolved;
            device const {{ vector }}* key_row = (device const {{ vector }}*)(own_convolved + {{ key_heads * keys }}u);
            device const float* last_inputs = inputs + row * {{ input_pitch }}u + {{ channels + heads * values }}u;
            const float head_beta = sigmoid(last_inputs[head]);
            const float head_dt = last_inputs[{{ heads }}u + head];
{% else %}
            const uint place = (row * {{ key_heads }}u + key_head) * {{ keys }}u;
            device const {{ vector }}* query_row = (device const {{ vector }}*)(query + place);
            device const {{ vector }}* key_row = (device const {{ vector }}*)(key + place);
            const float head_beta = beta[row * {{ heads }}u + head];
            const float head_dt = dt[row * {{ heads }}u + head];
{% endif %}
            {{ vector }} q[{{ each }}];
            {{ vector }} k[{{ each }}];
            float query_squares = 0.0f;
            float key_squares = 0.0f;
            #pragma unroll
            for (uint i = 0u; i < {{ each }}u; i++) {
                const uint c = i * {{ row_threads }}u + part;
{% if bounded %}
                q[i] = {{ vector }}(0.0f);
                k[i] = {{ vector }}(0.0f);
                if (c < {{ keys // step }}u) {
                    q[i] = query_row[c];
                    k[i] = key_row[c];
                }
{% else %}
                q[i] = query_row[c];
                k[i] = key_row[c];
{% endif %}
                query_squares += {{ dotted | replace("A", "q[i]") }};
                key_squares += {{ dotted | replace("A", "k[i]") }};
            }
{% for distance in distances %}
            query_squares += simd_shuffle_xor(query_squares, ushort({{ distance }}));
            key_squares += simd_shuffle_xor(key_squares, ushort({{ distance }}));
{% endfor %}
            const float query_scale = {{ scale }} * rsqrt(query_squares + {{ epsilon }});
            const float key_scale = rsqrt(key_squares + {{ epsilon }});
            #pragma unroll
            for (uint i = 0u; i < {{ each }}u; i++) {
                const uint c = i * {{ row_threads }}u + part;
{% if spare %}
                if (c < {{ vectors }}u) {
                    *(threadgroup {{ vector }}*)(queries + r * {{ pitch }}u + c * {{ step }}u) = q[i] * query_scale;
                    *(threadgroup {{ vector }}*)(keys + r * {{ pitch }}u + c * {{ step }}u) = k[i] * key_scale;
                }
{% else %}
                *(threadgroup {{ vector }}*)(queries + r * {{ pitch }}u + c * {{ step }}u) = q[i] * query_scale;
                *(threadgroup {{ vector }}*)(keys + r * {{ pitch }}u + c * {{ step }}u) = k[i] * key_scale;
{% endif %}
            }
            // Rows past the last do not update the state, and do not decay it.
            if (part == 0u) {
                logs[r] = r < count ? -exp(a_log[head]) * softplus(head_dt + dt_bias[head]) : 0.0f;
                betas[r] = r < count ? head_beta : 0.0f;
            }
        }

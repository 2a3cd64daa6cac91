{# Reads the recurrent state out: k·S and q·S, with the squared lengths of q and k. #}
{% set dotted = "dot(A, B)" if vector == "float4" else "A * B" %}
        // Products of the state with key and query, in one pass. Lengths are divided out at the end.
        float k_dot_s = 0.0f;
        float q_dot_s = 0.0f;
        float key_squares = 0.0f;
        float query_squares = 0.0f;
        float q_dot_k = 0.0f;
        #pragma unroll
        for (uint i = 0u; i < {{ chunks }}u; i++) {
{% if guarded %}
            {{ vector }} q = {{ vector }}(0.0f);
            keys[i] = {{ vector }}(0.0f);
            if (i * 4u + part < {{ keys // step }}u) {
                q = query_row[i * 4u + part];
                keys[i] = key_row[i * 4u + part];
            }
{% else %}
            const {{ vector }} q = query_row[i * 4u + part];
            keys[i] = key_row[i * 4u + part];
{% endif %}
            k_dot_s += {{ dotted | replace("A", "state[i]") | replace("B", "keys[i]") }};
            q_dot_s += {{ dotted | replace("A", "state[i]") | replace("B", "q") }};
            key_squares += {{ dotted | replace("A", "keys[i]") | replace("B", "keys[i]") }};
            query_squares += {{ dotted | replace("A", "q") | replace("B", "q") }};
            q_dot_k += {{ dotted | replace("A", "keys[i]") | replace("B", "q") }};
        }
{% for distance in [1, 2] %}
{% for sum in ["k_dot_s", "q_dot_s", "key_squares", "query_squares", "q_dot_k"] %}
        {{ sum }} += simd_shuffle_xor({{ sum }}, ushort({{ distance }}));
{% endfor %}
{% endfor %}

        // Update and decay of the state.
        const float decay = exp(-exp(a_log[head]) * softplus(head_dt + dt_bias[head]));
        const float key_scale = rsqrt(key_squares + {{ epsilon }});
        const float query_scale = {{ scale }} * rsqrt(query_squares + {{ epsilon }});
        const float delta = row_value - decay * k_dot_s * key_scale;
        const float update = head_beta * delta * key_scale;
        #pragma unroll
        for (uint i = 0u; i < {{ chunks }}u; i++) {
            state[i] = decay * state[i] + update * keys[i];
        }
        const float readout = query_scale * (decay * q_dot_s + update * q_dot_k);

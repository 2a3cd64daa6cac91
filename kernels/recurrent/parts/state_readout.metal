{% set dotted = "dot(A, B)" if vector == "float4" else "A * B" %}
        // All that the row asks of the memory, in one pass over it. Lengths are divided out at the end.
        float known = 0.0f;
        float said = 0.0f;
        float key_squares = 0.0f;
        float query_squares = 0.0f;
        float likeness = 0.0f;
        #pragma unroll
        for (uint i = 0u; i < {{ chunks }}u; i++) {
{% if guarded %}
            {{ vector }} q = {{ vector }}(0.0f);
            keys[i] = {{ vector }}(0.0f);
            if (i * 4u + part < {{ keys // step }}u) {
                q = asked[i * 4u + part];
                keys[i] = told[i * 4u + part];
            }
{% else %}
            const {{ vector }} q = asked[i * 4u + part];
            keys[i] = told[i * 4u + part];
{% endif %}
            known += {{ dotted | replace("A", "held[i]") | replace("B", "keys[i]") }};
            said += {{ dotted | replace("A", "held[i]") | replace("B", "q") }};
            key_squares += {{ dotted | replace("A", "keys[i]") | replace("B", "keys[i]") }};
            query_squares += {{ dotted | replace("A", "q") | replace("B", "q") }};
            likeness += {{ dotted | replace("A", "keys[i]") | replace("B", "q") }};
        }
{% for distance in [1, 2] %}
{% for sum in ["known", "said", "key_squares", "query_squares", "likeness"] %}
        {{ sum }} += simd_shuffle_xor({{ sum }}, ushort({{ distance }}));
{% endfor %}
{% endfor %}

        // What is new, and what is left of the old.
        const float decay = exp(-exp(rate[head]) * softplus(elapsed + bias[head]));
        const float key_scale = rsqrt(key_squares + {{ epsilon }});
        const float query_scale = {{ scale }} * rsqrt(query_squares + {{ epsilon }});
        const float unknown = brought - decay * known * key_scale;
        const float learnt = force * unknown * key_scale;
        #pragma unroll
        for (uint i = 0u; i < {{ chunks }}u; i++) {
            held[i] = decay * held[i] + learnt * keys[i];
        }
        const float answer = query_scale * (decay * said + learnt * likeness);

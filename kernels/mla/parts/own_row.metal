{# Writes the row's normalized latent and RoPE key, rounded as in the cache, to `line`. #}
    device const float* source = latent + row * {{ latent_pitch }}u + {{ latent_first }}u;
    float squares = 0.0f;
    for (uint c = thread_id; c < {{ width }}u; c += {{ threads }}u) {
        squares += source[c] * source[c];
    }
    squares = simd_sum(squares);
{% if simdgroups > 1 %}
    if (lane == 0u) {
        partial_squares[simdgroup_id] = squares;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float all_squares = 0.0f;
    #pragma unroll
    for (uint i = 0u; i < {{ simdgroups }}u; i++) {
        all_squares += partial_squares[i];
    }
    const float factor = rsqrt(all_squares / {{ width_float }} + {{ epsilon }});
{% else %}
    const float factor = rsqrt(squares / {{ width_float }} + {{ epsilon }});
{% endif %}
    for (uint c = thread_id; c < {{ width }}u; c += {{ threads }}u) {
        line[c] = float({{ element }}(source[c] * factor * gain[c]));
    }
    device const float* rope_key = key + row * {{ key_pitch }}u + {{ key_first }}u;
    for (uint k = thread_id; k < {{ half }}u; k += {{ threads }}u) {
        const uint one = {{ one }};
        const uint other = {{ other }};
        float2 channels = float2(rope_key[one], rope_key[other]);
{% if pairs < half %}
        if (k < {{ pairs }}u) {
            channels = rope(channels, float(position) * {{ frequency }}, {{ magnitude }});
        }
{% else %}
        channels = rope(channels, float(position) * {{ frequency }}, {{ magnitude }});
{% endif %}
        line[{{ width }}u + one] = float({{ element }}(channels.x));
        line[{{ width }}u + other] = float({{ element }}(channels.y));
    }

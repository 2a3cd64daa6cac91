// y = gain * x / sqrt(mean(x * x) + {{ epsilon }}) of each row of {{ width }}. One threadgroup a row.
struct {{ args }} {
    uint rows;
};

// grid: rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* x [[buffer({{ slot() }})]],
    device const float* gain [[buffer({{ slot() }})]],
{% if gather %}
    device const uint* wanted [[buffer({{ slot() }})]],
{% endif %}
    device float* y [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float partials[{{ simdgroups }}];
{% if gather %}
    device const {{ vector }}* source = (device const {{ vector }}*)(x + wanted[row] * {{ width }}u);
{% else %}
    device const {{ vector }}* source = (device const {{ vector }}*)(x + row * {{ width }}u);
{% endif %}
    device const {{ vector }}* gains = (device const {{ vector }}*)gain;
    device {{ vector }}* target = (device {{ vector }}*)(y + row * {{ width }}u);

    // Squares: each thread its own, then over lanes, then over simdgroups.
    float squares = 0.0f;
    for (uint i = thread_id; i < {{ count }}u; i += {{ threads }}u) {
        squares += {{ "dot(source[i], source[i])" if vector == "float4" else "source[i] * source[i]" }};
    }
    squares = simd_sum(squares);
    if (lane == 0u) {
        partials[simdgroup_id] = squares;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    #pragma unroll
    for (uint i = 0u; i < {{ simdgroups }}u; i++) {
        total += partials[i];
    }

    // Scale.
    const float scale = rsqrt(total / {{ width_float }} + {{ epsilon }});
    for (uint i = thread_id; i < {{ count }}u; i += {{ threads }}u) {
        target[i] = source[i] * scale * gains[i];
    }
}

{% set part = " + part" if parts > 1 else "" %}
{% set product = " * gains[i]" if gain else "" %}
{% if parts > 1 %}
// y = {{ "gain * " if gain else "" }}x / sqrt(mean(x * x) + {{ epsilon }}) for each part of {{ width }} of
// rows of {{ row_width }}. One threadgroup per part.
{% else %}
// y = {{ "gain * " if gain else "" }}x / sqrt(mean(x * x) + {{ epsilon }}) for each row of {{ width }}. One
// threadgroup per row.
{% endif %}
struct {{ args }} {
    uint rows;
};

// grid: {{ parts }}, rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* x [[buffer({{ slot() }})]],
{% if gain %}
    device const float* gain [[buffer({{ slot() }})]],
{% endif %}
{% if gather %}
    device const uint* wanted [[buffer({{ slot() }})]],
{% endif %}
    device float* y [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
{% if simdgroups > 1 %}
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float partials[{{ simdgroups }}];
{% else %}
    uint thread_id [[thread_index_in_threadgroup]]) {
{% endif %}
{% if parts > 1 %}
    const uint part = group.x * {{ width }}u;
{% endif %}
{% if gather %}
    device const {{ vector }}* source = (device const {{ vector }}*)(x + wanted[group.y] * {{ from_row }}u{{ part }});
{% else %}
    device const {{ vector }}* source = (device const {{ vector }}*)(x + group.y * {{ from_row }}u{{ part }});
{% endif %}
{% if gain %}
    device const {{ vector }}* gains = (device const {{ vector }}*)gain;
{% endif %}
    device {{ vector }}* target = (device {{ vector }}*)(y + group.y * {{ row_width }}u{{ part }});

{% if simdgroups > 1 %}
    // Sum of squares: over a thread's elements, then over lanes, then over simdgroups.
{% else %}
    // Sum of squares: over a thread's elements, then over lanes.
{% endif %}
    float squares = 0.0f;
    for (uint i = thread_id; i < {{ count }}u; i += {{ threads }}u) {
        squares += {{ "dot(source[i], source[i])" if vector == "float4" else "source[i] * source[i]" }};
    }
{% if simdgroups > 1 %}
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
{% else %}
    const float total = simd_sum(squares);
{% endif %}

    // Scale.
    const float scale = rsqrt(total / {{ width_float }} + {{ epsilon }});
    for (uint i = thread_id; i < {{ count }}u; i += {{ threads }}u) {
        target[i] = source[i] * scale{{ product }};
    }
}

// heads = gain * heads / sqrt(mean(heads * heads) + {{ epsilon }}) * silu(gates) of each of {{ heads }} heads of {{ values }}, in place.
// Gates are columns of `inputs`, from {{ first }} on. A threadgroup has a row, a simdgroup a head at a time.
struct {{ args }} {
    uint rows;
};

// grid: rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* inputs [[buffer({{ slot() }})]],
    device const float* gain [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint row [[threadgroup_position_in_grid]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    device const float* gates = inputs + row * {{ pitch }}u + {{ first }}u;
    device float* own = heads + row * {{ heads * values }}u;
    for (uint head = simdgroup_id; head < {{ heads }}u; head += {{ simdgroups }}u) {
        float said[{{ each }}];
        float squares = 0.0f;
        #pragma unroll
        for (uint i = 0u; i < {{ each }}u; i++) {
            const uint c = i * 32u + lane;
{% if guarded %}
            said[i] = c < {{ values }}u ? own[head * {{ values }}u + c] : 0.0f;
{% else %}
            said[i] = own[head * {{ values }}u + c];
{% endif %}
            squares += said[i] * said[i];
        }
        const float scale = rsqrt(simd_sum(squares) / {{ values_float }} + {{ epsilon }});
        #pragma unroll
        for (uint i = 0u; i < {{ each }}u; i++) {
            const uint c = i * 32u + lane;
{% if guarded %}
            if (c < {{ values }}u) {
                own[head * {{ values }}u + c] = said[i] * scale * gain[c] * silu(gates[head * {{ values }}u + c]);
            }
{% else %}
            own[head * {{ values }}u + c] = said[i] * scale * gain[c] * silu(gates[head * {{ values }}u + c]);
{% endif %}
        }
    }
}

// y {{ assign }} the sum over a row's {{ chosen }} experts of weight * each, where `each` has the outputs of
// the down projections, {{ width }} elements each. The order of summation is that of the routes, independent
// of other rows.
struct {{ args }} {
    uint rows;
};

// grid: ceil({{ width }} / {{ threads }}), rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const uint* routes [[buffer({{ slot() }})]],
    device const float* each [[buffer({{ slot() }})]],
    device float* y [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]]) {
    const uint column = group.x * {{ threads }}u + thread_id;
{% if width % threads != 0 %}
    if (column >= {{ width }}u) {
        return;
    }
{% endif %}

    float sum = 0.0f;
    #pragma unroll
    for (uint place = 0u; place < {{ chosen }}u; place++) {
        const float weight = as_type<float>(routes[group.y * {{ 2 * chosen }}u + {{ chosen }}u + place]);
        sum += weight * each[(group.y * {{ chosen }}u + place) * {{ width }}u + column];
    }
    y[group.y * {{ width }}u + column] {{ assign }} sum;
}

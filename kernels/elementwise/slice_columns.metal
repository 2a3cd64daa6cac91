// y = columns first .. first + {{ width }} of each row of {{ of }}.
struct {{ args }} {
    uint rows;
    uint first;
};

// grid: ceil({{ width }} / {{ threads }}), rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* x [[buffer({{ slot() }})]],
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
    y[group.y * {{ width }}u + column] = x[group.y * {{ of }}u + args.first + column];
}

// y = {{ formula | replace("[place]", "") | replace("[group.y]", "") }} for each element of rows of
// {{ width }}.
struct {{ args }} {
    uint rows;
};

// grid: ceil({{ width }} / {{ threads }}), rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* a [[buffer({{ slot() }})]],
{% if binary %}
    device const float* b [[buffer({{ slot() }})]],
{% endif %}
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
    const uint place = group.y * {{ width }}u + column;
    y[place] = {{ formula }};
}

{% set block = "packet" if per_block == 1 else "packet / " ~ per_block ~ "u" %}
// Rows of the table, [{{ vocabulary }}, {{ width }}] in {{ format }}, widened to f32. One threadgroup a row.
struct {{ args }} {
    uint rows;
};

// grid: rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
{% for plane in planes %}
    device const {{ plane.element }}* table_{{ plane.name }} [[buffer({{ slot() }})]],
{% endfor %}
    device const uint* ids [[buffer({{ slot() }})]],
    device float* stream [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]]) {
    // The host refuses an id outside the table; should one come all the same, it reads row 0.
    const uint id = ids[row] < {{ vocabulary }}u ? ids[row] : 0u;
    device float* target = stream + row * {{ width }}u;

    for (uint packet = thread_id; packet < {{ packets }}u; packet += {{ threads }}u) {
        float4 weights[{{ vectors }}];
{% if scaled %}
        {{ format }}_decode(table_codes[id * {{ stride }}u + packet], weights);
        const float scale = float(table_scales[id * {{ blocks }}u + {{ block }}]);
{% else %}
        {{ format }}_decode(table_values[id * {{ stride }}u + packet], weights);
{% endif %}
        #pragma unroll
        for (uint v = 0u; v < {{ vectors }}u; v++) {
            const uint column = packet * {{ columns }}u + 4u * v;
{% if scaled %}
            const float4 values = weights[v] * scale;
{% else %}
            const float4 values = weights[v];
{% endif %}
{% if width % columns == 0 %}
            *(device float4*)(target + column) = values;
{% elif width % 4 == 0 %}
            if (column < {{ width }}u) {
                *(device float4*)(target + column) = values;
            }
{% else %}
            #pragma unroll
            for (uint i = 0u; i < 4u; i++) {
                if (column + i < {{ width }}u) {
                    target[column + i] = values[i];
                }
            }
{% endif %}
        }
    }
}

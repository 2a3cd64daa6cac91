{% set times = " * " ~ factor if scale != 1 else "" %}
{% set assign = "+=" if adds else "=" %}
{% set in_group = " / " ~ per_group ~ "u" if per_group > 1 else "" %}
{# Loads a packet of the matrix. #}
{% macro packet_at(plane, index) %}{% if packed %}{{ loader }}_at({{ plane }}, {{ index }}){% else %}{{ plane }}[{{ index }}]{% endif %}{% endmacro %}
// Rows of the table, [{{ vocabulary }}, {{ width }}] in {{ stored }}, as
// f32{{ times }}{{ ", added to the stream" if adds else "" }}. One threadgroup per row.
{% if squares %}
//
// For a deferred norm, the sum of squares of the row is
// written{{ ", and the row times the norm's gain" if squares.gain else "" }}.
{% endif %}
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
{% if squares and squares.gain %}
    device const float* gain [[buffer({{ slot() }})]],
{% endif %}
    device float* stream [[buffer({{ slot() }})]],
{% if squares and squares.gain %}
    device float* gained [[buffer({{ slot() }})]],
{% endif %}
{% if squares %}
    device float* squares [[buffer({{ slot() }})]],
{% endif %}
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint row [[threadgroup_position_in_grid]],
{% if squares and simdgroups > 1 %}
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
{% endif %}
    uint thread_id [[thread_index_in_threadgroup]]) {
{% if squares and simdgroups > 1 %}
    threadgroup float partials[{{ simdgroups }}];
{% endif %}
    // The host rejects ids outside the table; such an id reads row 0.
    const uint id = ids[row] < {{ vocabulary }}u ? ids[row] : 0u;
    device float* target = stream + row * {{ width }}u;
{% if squares %}
{% if squares.gain %}
    device float* gained_target = gained + row * {{ width }}u;
{% endif %}
    float square = 0.0f;
{% endif %}

    for (uint packet = thread_id; packet < {{ packets }}u; packet += {{ threads }}u) {
        float4 weights[{{ vectors }}];
        {{ decoder }}_decode({{ packet_at("table_" ~ planes[0].name, "id * " ~ stride ~ "u + packet") }}, weights);
{% if nested %}
        const {{ scale_type }} scale = {{ widened }}(table_scales, id * {{ stride }}u + packet);
{% elif scaled %}
        const {{ scale_type }} scale = {{ widened }}(table_scales[id * {{ groups }}u + packet{{ in_group }}]);
{% endif %}
        #pragma unroll
        for (uint v = 0u; v < {{ vectors }}u; v++) {
            const uint column = packet * {{ columns }}u + 4u * v;
{% if offset and half_block_scales %}
            // The packet's halves have separate scales and offsets.
            const float2 line = v < {{ vectors // 2 }}u ? scale.xz : scale.yw;
            const float4 values = (weights[v] * line.x + line.y){{ times }};
{% elif offset and times %}
            const float4 values = (weights[v] * scale.x + scale.y){{ times }};
{% elif offset %}
            const float4 values = weights[v] * scale.x + scale.y;
{% elif half_block_scales %}
            // The packet's halves have separate scales.
            const float4 values = weights[v] * (v < {{ vectors // 2 }}u ? scale.x : scale.y){{ times }};
{% elif scaled %}
            const float4 values = weights[v] * scale{{ times }};
{% else %}
            const float4 values = weights[v]{{ times }};
{% endif %}
{% if width % 4 == 0 %}
{% if width % columns != 0 %}
            if (column >= {{ width }}u) {
                continue;
            }
{% endif %}
            *(device float4*)(target + column) {{ assign }} values;
{% if squares %}
{% if squares.gain %}
            *(device float4*)(gained_target + column) = values * *(device const float4*)(gain + column);
{% endif %}
            square += dot(values, values);
{% endif %}
{% else %}
            #pragma unroll
            for (uint i = 0u; i < 4u; i++) {
                if (column + i >= {{ width }}u) {
                    continue;
                }
                target[column + i] {{ assign }} values[i];
{% if squares %}
{% if squares.gain %}
                gained_target[column + i] = values[i] * gain[column + i];
{% endif %}
                square += values[i] * values[i];
{% endif %}
            }
{% endif %}
        }
    }
{% if squares %}

    // Sum of the row's squares over lanes{{ ", then over simdgroups" if simdgroups > 1 else "" }}: the first
    // partial sum is the total.
    square = simd_sum(square);
{% if simdgroups > 1 %}
    if (lane == 0u) {
        partials[simdgroup_id] = square;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_id == 0u) {
        float total = 0.0f;
        #pragma unroll
        for (uint i = 0u; i < {{ simdgroups }}u; i++) {
            total += partials[i];
        }
        squares[row * {{ squares.partials }}u] = total;
    }
{% else %}
    if (thread_id == 0u) {
        squares[row * {{ squares.partials }}u] = square;
    }
{% endif %}
{% if squares.partials > 1 %}
    for (uint i = 1u + thread_id; i < {{ squares.partials }}u; i += {{ threads }}u) {
        squares[row * {{ squares.partials }}u + i] = 0.0f;
    }
{% endif %}
{% endif %}
}

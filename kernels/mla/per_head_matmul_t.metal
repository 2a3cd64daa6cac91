{% set in_group = " / " ~ per_group ~ "u" if per_group > 1 else "" %}
{# Loads a packet of the matrix. #}
{% macro packet_at(plane, index) %}{% if packed %}{{ loader }}_at({{ plane }}, {{ index }}){% else %}{{ plane }}[{{ index }}]{% endif %}{% endmacro %}
{% set sums = "sums[t]" if together > 1 else "sums" %}
// y = Wᵀ x, with a separate matrix and part of x per head.
//
// {{ heads }} matrices of [{{ rows }}, {{ width }}] in {{ stored }} are stacked along rows.
//
// A thread loads one packet of {{ packet_bytes }} bytes of every {{ parts }}th row of a matrix, and holds the
// sums of its {{ columns }} columns in registers; threads with the same columns are combined at the end.
{% if together > 1 %}
//
// A threadgroup computes {{ together }} rows of x, so that a packet is dequantized once for all of them.
{% endif %}
struct {{ args }} {
    uint rows;
};

{% if together > 1 %}
// grid: ceil({{ packets }} / {{ each }}), {{ heads }}, ceil(rows / {{ together }})
{% else %}
// grid: ceil({{ packets }} / {{ each }}), {{ heads }}, rows
{% endif %}
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
{% for plane in planes %}
    device const {{ plane.element }}* weight_{{ plane.name }} [[buffer({{ slot() }})]],
{% endfor %}
    device const float* x [[buffer({{ slot() }})]],
    device float* y [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]]) {
    threadgroup float shared[{{ threads * columns }}];  // sums of every thread
    const uint part = thread_id / {{ each }}u;
{% if ragged %}
    // Packets past the last repeat it.
    const uint packet = min(group.x * {{ each }}u + thread_id % {{ each }}u, {{ packets - 1 }}u);
{% else %}
    const uint packet = group.x * {{ each }}u + thread_id % {{ each }}u;
{% endif %}
{% if together == 1 %}
    device const float* own_x = x + group.z * {{ pitch }}u + group.y * {{ rows }}u;
{% endif %}

{% if together > 1 %}
    float4 sums[{{ together }}][{{ vectors }}];
    #pragma unroll
    for (uint t = 0u; t < {{ together }}u; t++) {
        #pragma unroll
        for (uint v = 0u; v < {{ vectors }}u; v++) {
            sums[t][v] = float4(0.0f);
        }
    }
{% else %}
    float4 sums[{{ vectors }}];
    #pragma unroll
    for (uint v = 0u; v < {{ vectors }}u; v++) {
        sums[v] = float4(0.0f);
    }
{% endif %}
    for (uint r = part; r < {{ rows }}u; r += {{ parts }}u) {
        const uint row = group.y * {{ rows }}u + r;
        float4 weights[{{ vectors }}];
        {{ decoder }}_decode({{ packet_at("weight_" ~ planes[0].name, "row * " ~ stride ~ "u + packet") }}, weights);
{% if nested %}
        const {{ scale_type }} scale = {{ widened }}(weight_scales, row * {{ stride }}u + packet);
{% elif scaled %}
        const {{ scale_type }} scale = {{ widened }}(weight_scales[row * {{ groups }}u + packet{{ in_group }}]);
{% endif %}
{% if together > 1 %}
        #pragma unroll
        for (uint t = 0u; t < {{ together }}u; t++) {
            const uint row_of_x = min(group.z * {{ together }}u + t, args.rows - 1u);
            const float value = x[row_of_x * {{ pitch }}u + group.y * {{ rows }}u + r];
{% filter indent(4, first=true) %}
{% include "mla/parts/axpy_packet" %}
{% endfilter %}

        }
{% else %}
        const float value = own_x[r];
{% include "mla/parts/axpy_packet" %}
{% endif %}
    }

{% if together > 1 %}
    #pragma unroll
    for (uint t = 0u; t < {{ together }}u; t++) {
        // The previous row's sums have been read.
        threadgroup_barrier(mem_flags::mem_threadgroup);
{% filter indent(4, first=true) %}
{% include "mla/parts/combine" %}
{% endfilter %}

    }
{% else %}
{% include "mla/parts/combine" %}
{% endif %}
}

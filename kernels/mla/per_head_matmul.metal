{% set in_group = " / " ~ per_group ~ "u" if per_group > 1 else "" %}
{# Loads the scales of a packet of a row. #}
{% macro scale_of(packet) %}{% if nested %}{{ widened }}(weight_scales, row * {{ stride }}u + {{ packet }}){% else %}{{ widened }}(weight_scales[row * {{ groups }}u + {{ packet }}{{ in_group }}]){% endif %}{% endmacro %}
{# Loads a packet of the matrix. #}
{% macro packet_at(plane, index) %}{% if packed %}{{ loader }}_at({{ plane }}, {{ index }}){% else %}{{ plane }}[{{ index }}]{% endif %}{% endmacro %}
// y = W x, with a separate matrix and part of x per head.
//
// {{ heads }} matrices of [{{ rows }}, {{ width }}] in {{ stored }} are stacked along rows.
//
// {{ lanes }} lanes share a matrix row, and {{ at_once }} rows are processed at once; a simdgroup computes
// {{ each }} times as many of one head. A lane loads every {{ lanes }}th packet of {{ packet_bytes }} bytes
// straight to registers, and reuses its values of x for all rows.
{% if together > 1 %}
//
// A threadgroup computes {{ together }} rows of x, so that a packet is loaded once for all of them.
{% endif %}
struct {{ args }} {
    uint rows;
};

{% if together > 1 %}
// grid: ceil({{ rows }} / {{ group_outputs }}), {{ heads }}, ceil(rows / {{ together }})
{% else %}
// grid: ceil({{ rows }} / {{ group_outputs }}), {{ heads }}, rows
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
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    // This lane's packets, and its matrix rows: every {{ at_once }}th from the first on.
    const uint lane_in_row = lane % {{ lanes }}u;
    const uint first = group.x * {{ group_outputs }}u + simdgroup_id * {{ each * at_once }}u + lane / {{ lanes }}u;

{% if together > 1 %}
    float all_sums[{{ together }}][{{ each }}];
    #pragma unroll
    for (uint t = 0u; t < {{ together }}u; t++) {
        #pragma unroll
        for (uint r = 0u; r < {{ each }}u; r++) {
            all_sums[t][r] = 0.0f;
        }
    }
{% else %}
    device const float* own_x = x + group.z * {{ pitch }}u + group.y * {{ width }}u;
    float sums[{{ each }}] = {0.0f};
{% endif %}
    for (uint packet = lane_in_row; packet < {{ packets }}u; packet += {{ lanes }}u) {
        // Weights first: all loads are in flight before the first is used.
{% if ragged %}
        // Rows past the last repeat it.
{% endif %}
        {{ packet_type }} codes[{{ each }}];
{% if scaled %}
        {{ scale_type }} scales[{{ each }}];
{% endif %}
        #pragma unroll
        for (uint r = 0u; r < {{ each }}u; r++) {
{% if ragged %}
            const uint row = group.y * {{ rows }}u + min(first + {{ at_once }}u * r, {{ rows - 1 }}u);
{% else %}
            const uint row = group.y * {{ rows }}u + first + {{ at_once }}u * r;
{% endif %}
            codes[r] = {{ packet_at("weight_" ~ planes[0].name, "row * " ~ stride ~ "u + packet") }};
{% if scaled %}
            scales[r] = {{ scale_of("packet") }};
{% endif %}
        }

{% if together > 1 %}
        #pragma unroll
        for (uint t = 0u; t < {{ together }}u; t++) {
            const uint row_of_x = min(group.z * {{ together }}u + t, args.rows - 1u);
            device const float* own_x = x + row_of_x * {{ pitch }}u + group.y * {{ width }}u;
            thread float* sums = all_sums[t];
{% filter indent(4, first=true) %}
{% include "mla/parts/multiply" %}
{% endfilter %}

        }
{% else %}
{% include "mla/parts/multiply" %}
{% endif %}
    }

    // Sum each matrix row over the lanes that share it. A lane writes one row.
{% if together > 1 %}
    #pragma unroll
    for (uint t = 0u; t < {{ together }}u; t++) {
        thread float* sums = all_sums[t];
{% filter indent(4, first=true) %}
{% include "mla/parts/write_result" %}
{% endfilter %}

    }
{% else %}
{% include "mla/parts/write_result" %}
{% endif %}
}

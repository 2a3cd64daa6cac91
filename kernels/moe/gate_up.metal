{% set in_group = " / " ~ per_group ~ "u" if per_group > 1 else "" %}
{# Loads the scales of a packet of a row. #}
{% macro scale_of(packet) %}{% if nested %}{{ widened }}(own_scales, row * {{ stride }}u + {{ packet }}){% else %}{{ widened }}(own_scales[row * {{ groups }}u + {{ packet }}{{ in_group }}]){% endif %}{% endmacro %}
{# Loads a packet of the matrix. #}
{% macro packet_at(plane, index) %}{% if packed %}{{ loader }}_at({{ plane }}, {{ index }}){% else %}{{ plane }}[{{ index }}]{% endif %}{% endmacro %}
// y = {{ gating }}{{ "(gate) * up" if limit is none else "(gate, up)" }} for each of the {{ chosen }} experts
// of a row. Rows of an expert's matrix alternate gate and up. Matrices are [{{ outputs }}, {{ inputs }}] in
// {{ stored }}, {{ record }} bytes apart; `expert_slots` maps experts to cache slots.
//
// A simdgroup computes {{ rows_per_simdgroup }} rows of one expert's matrix. A lane loads every 32nd packet
// of {{ packet_bytes }} bytes straight to registers, and reuses its values of x for all rows.
{% if norm %}
//
// The norm of x is deferred: x has been multiplied by the gain, and results are divided by its root mean
// square.
{% endif %}
{% if routing %}
//
// Every simdgroup selects its expert from the logits itself; the first one of the row writes the routes for
// later steps.
{% endif %}
//
// Experts that are not cached (slot 0xffffffff) are skipped; another dispatch computes them.
struct {{ args }} {
    uint rows;
};

// grid: ceil({{ outputs }} / {{ group_outputs }}), {{ chosen }}, rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
{% for plane in planes %}
    device const {{ plane.element }}* weight_{{ plane.name }} [[buffer({{ slot() }})]],
{% endfor %}
    device const uint* expert_slots [[buffer({{ slot() }})]],
{% if routing %}
    device const float* logits [[buffer({{ slot() }})]],
{% if correction %}
    device const float* correction [[buffer({{ slot() }})]],
{% endif %}
{% if scale %}
    device const float* scale [[buffer({{ slot() }})]],
{% endif %}
    device uint* routes [[buffer({{ slot() }})]],
{% else %}
    device const uint* routes [[buffer({{ slot() }})]],
{% endif %}
    device const float* x [[buffer({{ slot() }})]],
{% if bias %}
    device const float* bias [[buffer({{ slot() }})]],
{% endif %}
{% if norm %}
    device const float* squares [[buffer({{ slot() }})]],
{% endif %}
    device float* y [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    const uint first = group.x * {{ group_outputs }}u + simdgroup_id * {{ rows_per_simdgroup }}u;
    device const float* own_x = x + group.z * {{ inputs }}u;
    device float* own_y = y + (group.z * {{ chosen }}u + group.y) * {{ outputs // 2 }}u;
{% if routing %}
    device const float* own_logits = logits + group.z * {{ row_logits }}u;

{% include "moe/parts/topk" %}
{% if expert_groups %}

{% include "moe/parts/group_limit" %}

{% endif %}
    uint expert = take_best(keys, {{ per_lane }}u, lane);
    for (uint s = 0u; s < group.y; s++) {
        expert = take_best(keys, {{ per_lane }}u, lane);
    }
{% if shared %}
    // Shared experts follow.
    expert = group.y < {{ picked }}u ? expert : group.y + {{ candidates - picked }}u;
{% endif %}
{% else %}
    const uint expert = routes[group.z * {{ 2 * chosen }}u + group.y];
{% endif %}
    const uint cache_slot = expert_slots[expert];
    const bool is_cached = cache_slot != 0xffffffffu;
{% include "moe/parts/expert_planes" %}

    float sums[{{ rows_per_simdgroup }}] = {0.0f};
    for (uint packet = lane; is_cached && packet < {{ packets }}u; packet += 32u) {
        // Weights first: all loads are in flight before the first is used.
{% if ragged %}
        // Rows past the last repeat it.
{% endif %}
        {{ packet_type }} codes[{{ rows_per_simdgroup }}];
{% if scaled %}
        {{ scale_type }} scales[{{ rows_per_simdgroup }}];
{% endif %}
        #pragma unroll
        for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
{% if ragged %}
            const uint row = min(first + r, {{ outputs - 1 }}u);
{% else %}
            const uint row = first + r;
{% endif %}
            codes[r] = {{ packet_at("own_" ~ planes[0].name, "row * " ~ stride ~ "u + packet") }};
{% if scaled %}
            scales[r] = {{ scale_of("packet") }};
{% endif %}
        }

        // The part of x that these packets are multiplied by.
        float4 xs[{{ vectors }}];
        #pragma unroll
        for (uint v = 0u; v < {{ vectors }}u; v++) {
            xs[v] = {{ load }}(own_x, packet * {{ columns }}u + 4u * v{{ bound }});
        }
{% include "moe/parts/products" %}
    }
{% if norm %}

    // Divisor of the norm.
    device const float* own_squares = squares + group.z * {{ norm.partials }}u;
    {{ squares_vector }} squared = {{ squares_vector }}(0.0f);
    for (uint i = lane; i < {{ squares_count }}u; i += 32u) {
        squared += {{ squares_source }}[i];
    }
{% if squares_vector == "float4" %}
    const float square = simd_sum(squared.x + squared.y + squared.z + squared.w);
{% else %}
    const float square = simd_sum(squared);
{% endif %}
    const float by_norm = rsqrt(square / {{ inputs_float }} + {{ norm.epsilon }});
{% endif %}

    // Sum each row over lanes. A lane runs the epilogue of a pair of rows.
    float2 own_sums = float2(0.0f);
    #pragma unroll
    for (uint p = 0u; p < {{ rows_per_simdgroup // 2 }}u; p++) {
        const float2 sum = float2(simd_sum(sums[2u * p]), simd_sum(sums[2u * p + 1u]));
        own_sums = lane == p ? sum : own_sums;
    }
    const uint output = first + 2u * lane;
    if (lane < {{ rows_per_simdgroup // 2 }}u{{ " && output < " ~ outputs ~ "u" if ragged else "" }} && is_cached) {
{% if bias or limit is not none %}
{% if norm %}
        own_sums *= by_norm;
{% endif %}
{% if bias %}
        own_sums += ((device const float2*)bias)[(expert * {{ outputs }}u + output) / 2u];
{% endif %}
{% if limit is none %}
        own_y[output / 2u] = {{ gating }}(own_sums.x) * own_sums.y;
{% else %}
        own_y[output / 2u] = {{ gating }}(own_sums.x, own_sums.y, {{ limit }}, {{ sharpness }});
{% endif %}
{% elif norm %}
        own_y[output / 2u] = {{ gating }}(own_sums.x * by_norm) * (own_sums.y * by_norm);
{% else %}
        own_y[output / 2u] = {{ gating }}(own_sums.x) * own_sums.y;
{% endif %}
    }
{% if routing %}

    // The first simdgroup of a row also selects the other experts: lane s has the s-th, and computes its
    // weight.
    if (group.x == 0u && group.y == 0u && simdgroup_id == 0u) {
        device uint* own_routes = routes + group.z * {{ 2 * chosen }}u;
        uint lane_expert = expert;
        for (uint s = 1u; s < {{ picked }}u; s++) {
            const uint next = take_best(keys, {{ per_lane }}u, lane);
            lane_expert = lane == s ? next : lane_expert;
        }
{% filter indent(4, first=true) %}
{% include "moe/parts/routing_weights" %}
{% endfilter %}

    }
{% endif %}
}

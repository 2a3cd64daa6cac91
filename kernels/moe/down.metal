{% set in_group = " / " ~ per_group ~ "u" if per_group > 1 else "" %}
{# Loads the scales of a packet of a row. #}
{% macro scale_of(packet) %}{% if nested %}{{ widened }}(own_scales, row * {{ stride }}u + {{ packet }}){% else %}{{ widened }}(own_scales[row * {{ groups }}u + {{ packet }}{{ in_group }}]){% endif %}{% endmacro %}
{# Loads a packet of the matrix. #}
{% macro packet_at(plane, index) %}{% if packed %}{{ loader }}_at({{ plane }}, {{ index }}){% else %}{{ plane }}[{{ index }}]{% endif %}{% endmacro %}
{% set exists = " && output < " ~ outputs ~ "u" if ragged else "" %}
// y {{ assign }} the sum over a row's {{ chosen }} experts of weight *
// {{ "(W x + bias)" if bias else "W x" }}, each with its own x. The experts' matrices are [{{ outputs }},
// {{ inputs }}] in {{ stored }}, {{ record }} bytes apart; `expert_slots` maps experts to cache slots.
//
// A simdgroup computes {{ rows_per_simdgroup }} outputs. Rows of all chosen matrices count as one row: a lane
// loads every 32nd packet of {{ packet_bytes }} bytes of any of them, so that all lanes are used with narrow
// experts.
{% if add_squares %}
//
// For a deferred norm, each threadgroup writes the sum of squares of its part of
// y{{ "," if add_squares.gain else "." }}
{% if add_squares.gain %}
// and y times the norm's gain.
{% endif %}
{% endif %}
{% if not add_squares %}
//
// Rows with an expert that is not cached (slot 0xffffffff) are skipped; another dispatch computes them.
{% endif %}
struct {{ args }} {
    uint rows;
};

// grid: ceil({{ outputs }} / {{ group_outputs }}), rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
{% for plane in planes %}
    device const {{ plane.element }}* weight_{{ plane.name }} [[buffer({{ slot() }})]],
{% endfor %}
    device const uint* expert_slots [[buffer({{ slot() }})]],
    device const uint* routes [[buffer({{ slot() }})]],
    device const float* x [[buffer({{ slot() }})]],
{% if bias %}
    device const float* bias [[buffer({{ slot() }})]],
{% endif %}
    device float* y [[buffer({{ slot() }})]],
{% if add_squares %}
{% if add_squares.gain %}
    device const float* gain [[buffer({{ slot() }})]],
    device float* gained [[buffer({{ slot() }})]],
{% endif %}
    device float* squares_out [[buffer({{ slot() }})]],
{% endif %}
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
{% if add_squares %}
    threadgroup float partials[{{ group_outputs }}];
{% endif %}
    const uint first = group.x * {{ group_outputs }}u + simdgroup_id * {{ rows_per_simdgroup }}u;
    device const uint* own_routes = routes + group.y * {{ 2 * chosen }}u;
    device const float* own_x = x + group.y * {{ chosen * inputs }}u;
    device float* own_y = y + group.y * {{ outputs }}u;
{% if add_squares %}
{% if add_squares.gain %}
    device float* own_gained = gained + group.y * {{ outputs }}u;
{% endif %}
    device float* own_squares = squares_out + group.y * {{ add_squares.partials }}u;
{% endif %}

{% if not add_squares %}
    bool is_cached = true;
    for (uint slot = 0u; slot < {{ chosen }}u; slot++) {
        is_cached = is_cached && expert_slots[own_routes[slot]] != 0xffffffffu;
    }

{% endif %}
    float sums[{{ rows_per_simdgroup }}] = {0.0f};
    for (uint place = lane; {{ "" if add_squares else "is_cached && " }}place < {{ chosen * packets }}u; place += 32u) {
        const uint slot = place / {{ packets }}u;
        const uint packet = place % {{ packets }}u;
        const uint cache_slot = expert_slots[own_routes[slot]];
{% filter indent(4, first=true) %}
{% include "moe/parts/expert_planes" %}
{% endfilter %}

        const float weight = as_type<float>(own_routes[{{ chosen }}u + slot]);
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
            xs[v] = {{ load }}(own_x + slot * {{ inputs }}u, packet * {{ columns }}u + 4u * v{{ bound }});
        }
{% include "moe/parts/products" %}
    }

{% if add_squares %}
    // Sum each row over lanes; the first simdgroup runs the epilogue.
    #pragma unroll
    for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
        const float sum = simd_sum(sums[r]);
        if (lane == 0u) {
            partials[simdgroup_id * {{ rows_per_simdgroup }}u + r] = sum;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup_id == 0u) {
        const uint output = group.x * {{ group_outputs }}u + lane;
        float square = 0.0f;
        if (lane < {{ group_outputs }}u{{ exists }}) {
{% if bias %}
{% filter indent(4, first=true) %}
{% include "moe/parts/add_bias" %}
{% endfilter %}

            const float value = own_y[output] + partials[lane] + biased;
{% else %}
            const float value = own_y[output] + partials[lane];
{% endif %}
            own_y[output] = value;
{% if add_squares.gain %}
            own_gained[output] = gain[output] * value;
{% endif %}
            square = value * value;
        }
        square = simd_sum(square);
        if (lane == 0u) {
            own_squares[group.x] = square;
        }
{% if grid < add_squares.partials %}
        // Partial sums without a threadgroup.
        if (group.x == {{ grid - 1 }}u) {
            for (uint i = {{ grid }}u + lane; i < {{ add_squares.partials }}u; i += 32u) {
                own_squares[i] = 0.0f;
            }
        }
{% endif %}
    }
{% else %}
    // Sum each row over lanes; a lane runs the epilogue of a row.
    float row_sum = 0.0f;
    #pragma unroll
    for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
        const float sum = simd_sum(sums[r]);
        row_sum = lane == r ? sum : row_sum;
    }
    const uint output = first + lane;
    if (lane < {{ rows_per_simdgroup }}u{{ exists }} && is_cached) {
{% if bias %}
{% include "moe/parts/add_bias" %}
        own_y[output] {{ assign }} row_sum + biased;
{% else %}
        own_y[output] {{ assign }} row_sum;
{% endif %}
    }
{% endif %}
}

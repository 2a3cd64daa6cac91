{% set begin = "part" if split > 1 else "0u" %}
{% set blocks = rows_per_simdgroup // 8 %}
{% set in_group = " / " ~ per_group ~ "u" if per_group > 1 else "" %}
{% set low_by = "scales[n].x + scales[n].z" if offset and half_block_scales else "scales[n].x + scales[n].y" if offset else "scales[n].x" if half_block_scales else "scales[n]" %}
{% set high_by = "scales[n].y + scales[n].w" if offset and half_block_scales else "scales[n].y" if half_block_scales else low_by %}
{# Loads the scales of a packet of a row. #}
{% macro scale_of(packet) %}{% if nested %}{{ widened }}(weight_scales, row * {{ stride }}u + {{ packet }}){% else %}{{ widened }}(weight_scales[row * {{ groups }}u + {{ packet }}{{ in_group }}]){% endif %}{% endmacro %}
{# Loads a packet of the matrix. #}
{% macro packet_at(plane, index) %}{% if packed %}{{ loader }}_at({{ plane }}, {{ index }}){% else %}{{ plane }}[{{ index }}]{% endif %}{% endmacro %}
{# Multiply-accumulate. #}
{% macro added(sum, factors) %}
{% if operand == "ranged" %}add_product_ranged({{ sum }}, {{ factors }}){% else %}simdgroup_multiply_accumulate({{ sum }}, {{ factors }}, {{ sum }}){% endif %}
{%- endmacro %}
{# Bias and unary function of a sum, before the epilogue. #}
{% macro finished(sum, output) %}
{{ before }}{{ sum }}{% if bias %} + bias[{{ output }}]{% endif %}{{ after }}
{%- endmacro %}
// y = W x for 1 to 16 rows of x; W is [{{ outputs }}, {{ inputs }}] in {{ stored }}.
//
// Products are of 8 by 8 matrices: 8 rows of W by 8 columns, times the same columns of 8 rows of x. A lane
// has two adjacent elements of a matrix: row `slot`, columns `pair` and `pair + 1`. To dequantize
// {{ "two packets" if each > 1 else "a packet" }} of a row of W straight into its elements, columns are
// permuted: a step is 4 times {{ portion }} columns, of which each of the 4 lanes of a row has {{ portion }}.
// Product t multiplies columns t and t + {{ portion // 2 }} of each {{ portion }}.
//
{% if split > 1 %}
// {{ split }} simdgroups compute {{ rows_per_simdgroup }} rows of W at once, and alternate between steps.
{% else %}
// A simdgroup computes {{ rows_per_simdgroup }} rows of W at once.
{% endif %}
struct {{ args }} {
    uint rows;
};

// grid: ceil({{ outputs }} / {{ group_outputs }})
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
{% for plane in planes %}
    device const {{ plane.element }}* weight_{{ plane.name }} [[buffer({{ slot() }})]],
{% endfor %}
{% if bias %}
    device const float* bias [[buffer({{ slot() }})]],
{% endif %}
    device const float* x [[buffer({{ slot() }})]],
    device float* y [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    // For each simdgroup, 16 rows of x by {{ rows_per_simdgroup }} rows of W.
    threadgroup float partials[{{ simdgroups * rows_per_simdgroup * 16 }}];
    const uint slot = ((lane >> 2u) & 4u) + ((lane >> 1u) & 3u);
    const uint pair = ((lane >> 2u) & 2u) * 2u + (lane & 1u) * 2u;
{% if split > 1 %}
    const uint first = group * {{ group_outputs }}u + simdgroup_id / {{ split }}u * {{ rows_per_simdgroup }}u + slot;
    const uint part = simdgroup_id % {{ split }}u;
{% else %}
    const uint first = group * {{ group_outputs }}u + simdgroup_id * {{ rows_per_simdgroup }}u + slot;
{% endif %}

    // The lane's rows of x: 8 or 16 over all lanes. Rows past the last repeat it.
    const bool many = args.rows > 8u;
    const uint last = args.rows - 1u;
    device const float* x0 = x + min(pair, last) * {{ inputs }}u;
    device const float* x1 = x + min(pair + 1u, last) * {{ inputs }}u;
    device const float* x2 = x + min(pair + 8u, last) * {{ inputs }}u;
    device const float* x3 = x + min(pair + 9u, last) * {{ inputs }}u;

    simdgroup_matrix<float, 8, 8> sums[{{ blocks }}];
    simdgroup_matrix<float, 8, 8> more[{{ blocks }}];
    #pragma unroll
    for (uint n = 0u; n < {{ blocks }}u; n++) {
        sums[n] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        more[n] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    for (uint strip = {{ begin }}; strip < {{ strips }}u; strip += {{ split }}u) {
        // Weights first: all loads are in flight before the first is used.
{% if ragged %}
        // Rows past the last repeat it.
{% endif %}
{% if clamped %}
        const uint packet = min(4u * strip + pair / 2u, {{ stride - 1 }}u);
{% elif each > 1 %}
        const uint packet = {{ 4 * each }}u * strip + {{ each }}u * (pair / 2u);
{% else %}
        const uint packet = 4u * strip + pair / 2u;
{% endif %}
        {{ packet_type }} codes[{{ blocks }}]{% if each > 1 %}[{{ each }}]{% endif %};
{% if scaled %}
        {{ scale_type }} scales[{{ blocks }}];
{% endif %}
        #pragma unroll
        for (uint n = 0u; n < {{ blocks }}u; n++) {
{% if ragged %}
            const uint row = min(first + 8u * n, {{ outputs - 1 }}u);
{% else %}
            const uint row = first + 8u * n;
{% endif %}
{% if each > 1 %}
            codes[n][0] = weight_{{ planes[0].name }}[row * {{ stride }}u + packet];
            codes[n][1] = weight_{{ planes[0].name }}[row * {{ stride }}u + packet + 1u];
{% else %}
            codes[n] = {{ packet_at("weight_" ~ planes[0].name, "row * " ~ stride ~ "u + packet") }};
{% endif %}
{% if scaled %}
            scales[n] = {{ scale_of("packet") }};
{% endif %}
        }

        // Four products at a time.
        #pragma unroll
        for (uint i = 0u; i < {{ chunks }}u; i++) {
            // As a row of x's matrix a lane has one of the 8 columns.
            const uint column = {{ 4 * portion }}u * strip + {{ portion // 2 }}u * slot + 4u * i;
            simdgroup_matrix<float, 8, 8> right[4];
            simdgroup_matrix<float, 8, 8> below[4];
            const float4 values0 = {{ load }}(x0, column{{ bound }});
            const float4 values1 = {{ load }}(x1, column{{ bound }});
            #pragma unroll
            for (uint t = 0u; t < 4u; t++) {
                right[t].thread_elements()[0] = values0[t];
                right[t].thread_elements()[1] = values1[t];
            }
            if (many) {
                const float4 values2 = {{ load }}(x2, column{{ bound }});
                const float4 values3 = {{ load }}(x3, column{{ bound }});
                #pragma unroll
                for (uint t = 0u; t < 4u; t++) {
                    below[t].thread_elements()[0] = values2[t];
                    below[t].thread_elements()[1] = values3[t];
                }
            }
            #pragma unroll
            for (uint n = 0u; n < {{ blocks }}u; n++) {
{% if each > 1 %}
                const float4 low = as_type<float4>(codes[n][0]);
                const float4 high = as_type<float4>(codes[n][1]);
{% elif columns == 8 %}
                float4 weights[2];
                {{ decoder }}_decode(codes[n], weights);
                const float4 low = weights[0];
                const float4 high = weights[1];
{% elif columns == 16 %}
                const float4 low = {{ decoder }}_word(codes[n][i]) * {{ low_by }};
                const float4 high = {{ decoder }}_word(codes[n][i + 2u]) * {{ high_by }};
{% else %}
                float4 low;
                float4 high;
                {{ decoder }}_word({{ "codes[n], i" if packed else "codes[n][i]" }}, low, high);
                low = low * {{ low_by }};
                high = high * {{ high_by }};
{% endif %}
                simdgroup_matrix<float, 8, 8> left[4];
                #pragma unroll
                for (uint t = 0u; t < 4u; t++) {
                    left[t].thread_elements()[0] = low[t];
                    left[t].thread_elements()[1] = high[t];
                    {{ added("sums[n]", "left[t], right[t]") }};
                }
                if (many) {
                    #pragma unroll
                    for (uint t = 0u; t < 4u; t++) {
                        {{ added("more[n]", "left[t], below[t]") }};
                    }
                }
            }
        }
    }

    // Collect results in threadgroup memory; their rows are rows of W, their columns rows of x.
    #pragma unroll
    for (uint n = 0u; n < {{ blocks }}u; n++) {
        threadgroup float* target = partials + (simdgroup_id * 16u + pair) * {{ rows_per_simdgroup }}u + 8u * n + slot;
        target[0] = sums[n].thread_elements()[0];
        target[{{ rows_per_simdgroup }}] = sums[n].thread_elements()[1];
        target[{{ 8 * rows_per_simdgroup }}] = more[n].thread_elements()[0];
        target[{{ 9 * rows_per_simdgroup }}] = more[n].thread_elements()[1];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
{% if activation %}

    // Outputs alternate gate and up.
    for (uint i = thread_id; i < args.rows * {{ group_outputs // 2 }}u; i += {{ threads }}u) {
        const uint row = i / {{ group_outputs // 2 }}u;
        const uint local_output = i % {{ group_outputs // 2 }}u * 2u;
        const uint output = group * {{ group_outputs }}u + local_output;
{% else %}

    for (uint i = thread_id; i < args.rows * {{ group_outputs }}u; i += {{ threads }}u) {
        const uint row = i / {{ group_outputs }}u;
        const uint local_output = i % {{ group_outputs }}u;
        const uint output = group * {{ group_outputs }}u + local_output;
{% endif %}
{% if ragged %}
        if (output >= {{ outputs }}u) {
            continue;
        }
{% endif %}
{% if split > 1 %}
        const uint at = (local_output / {{ rows_per_simdgroup }}u * {{ 16 * split }}u + row) * {{ rows_per_simdgroup }}u + local_output % {{ rows_per_simdgroup }}u;
{% else %}
        const uint at = (local_output / {{ rows_per_simdgroup }}u * 16u + row) * {{ rows_per_simdgroup }}u + local_output % {{ rows_per_simdgroup }}u;
{% endif %}
{% for name, place in ([["first_sum", "at"], ["second_sum", "at + 1u"]] if activation else [["sum", "at"]]) %}
{% if split > 1 %}
        float {{ name }} = 0.0f;
        #pragma unroll
        for (uint p = 0u; p < {{ split }}u; p++) {
            {{ name }} += partials[{{ place }} + p * {{ 16 * rows_per_simdgroup }}u];
        }
{% else %}
        const float {{ name }} = partials[{{ place }}];
{% endif %}
{% endfor %}
{% if activation %}
        const float gate = {{ finished("first_sum", "output") }};
        const float up = {{ finished("second_sum", "output + 1u") }};
        y[row * {{ outputs // 2 }}u + output / 2u] = {{ activation }}(gate) * up;
{% else %}
        y[row * {{ outputs }}u + output] {{ assign }} {{ finished("sum", "output") }};
{% endif %}
    }
}

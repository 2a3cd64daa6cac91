{# Dot products over columns; each lane dequantizes its own packets of a row. #}
{% set begin = "part * 32u + lane" if split > 1 else "lane" %}
{% set in_group = " / " ~ per_group ~ "u" if per_group > 1 else "" %}
{# Loads the scales of a packet of a row. #}
{% macro scale_of(packet) %}{% if nested %}{{ widened }}(weight_scales, row * {{ stride }}u + {{ packet }}){% else %}{{ widened }}(weight_scales[row * {{ groups }}u + {{ packet }}{{ in_group }}]){% endif %}{% endmacro %}
{# Loads a packet of the matrix. #}
{% macro packet_at(plane, index) %}{% if packed %}{{ loader }}_at({{ plane }}, {{ index }}){% else %}{{ plane }}[{{ index }}]{% endif %}{% endmacro %}
{% if ahead %}
    // The first packets. In the loop the next packets are in flight while the current ones are multiplied.
{% if ragged %}
    // Rows past the last repeat it.
{% endif %}
    {{ packet_type }} next[{{ rows_per_simdgroup }}];
{% if scaled %}
    {{ scale_type }} next_scales[{{ rows_per_simdgroup }}];
{% endif %}
    #pragma unroll
    for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
        const uint packet = {{ begin }};
{% if ragged %}
        const uint row = min(first + r, {{ outputs - 1 }}u);
{% else %}
        const uint row = first + r;
{% endif %}
        next[r] = {{ packet_at("weight_" ~ planes[0].name, "row * " ~ stride ~ "u + packet") }};
{% if scaled %}
        next_scales[r] = {{ scale_of("packet") }};
{% endif %}
    }

{% endif %}
    wait_for_others();
{% include "matmul/parts/preload_epilogue" %}

    float sums[{{ rows_per_simdgroup }}] = {0.0f};
{% if own_norm %}
    float squared = 0.0f;
{% endif %}
    for (uint packet = {{ begin }}; packet < {{ packets }}u; packet += {{ 32 * split }}u) {
{% if ahead %}
        const uint following = min(packet + {{ 32 * split }}u, {{ packets - 1 }}u);
{% else %}
        // Weights first: all loads are in flight before the first is used.
{% if ragged %}
        // Rows past the last repeat it.
{% endif %}
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
{% if ahead %}
            codes[r] = next[r];
            next[r] = {{ packet_at("weight_" ~ planes[0].name, "row * " ~ stride ~ "u + following") }};
{% if scaled %}
            scales[r] = next_scales[r];
            next_scales[r] = {{ scale_of("following") }};
{% endif %}
{% else %}
            codes[r] = {{ packet_at("weight_" ~ planes[0].name, "row * " ~ stride ~ "u + packet") }};
{% if scaled %}
            scales[r] = {{ scale_of("packet") }};
{% endif %}
{% endif %}
        }

        // The part of x that these packets are multiplied by.
        float4 xs[{{ vectors }}];
        #pragma unroll
        for (uint v = 0u; v < {{ vectors }}u; v++) {
            xs[v] = {{ load }}(x, packet * {{ columns }}u + 4u * v{{ bound }});
{% if own_norm %}
            squared += dot(xs[v], xs[v]);
{% if own_norm.gain %}
            xs[v] *= {{ load }}(x_gain, packet * {{ columns }}u + 4u * v{{ bound }});
{% endif %}
{% endif %}
        }
{% if offset %}

        // A group's offset is multiplied by the sum of x, which is the same for all rows.
{% set of_x = "xs" %}
{% set total = "total" %}
{% include "matmul/parts/sum_of_x" %}
{% endif %}

        #pragma unroll
        for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
            float4 weights[{{ vectors }}];
            {{ decoder }}_decode(codes[r], weights);
{% if half_block_scales %}
            // The packet's halves have separate scales.
            float sum = 0.0f;
            float further = 0.0f;
            #pragma unroll
            for (uint v = 0u; v < {{ vectors // 2 }}u; v++) {
                sum += dot(weights[v], xs[v]);
                further += dot(weights[v + {{ vectors // 2 }}u], xs[v + {{ vectors // 2 }}u]);
            }
            sums[r] += scales[r].x * sum + scales[r].y * further{{ " + scales[r].z * total.x + scales[r].w * total.y" if offset else "" }};
{% else %}
            float sum = 0.0f;
            #pragma unroll
            for (uint v = 0u; v < {{ vectors }}u; v++) {
                sum += dot(weights[v], xs[v]);
            }
{% if offset %}
            sums[r] += scales[r].x * sum + scales[r].y * total;
{% else %}
            sums[r] += {{ "scales[r] * sum" if scaled else "sum" }};
{% endif %}
{% endif %}
        }
    }
